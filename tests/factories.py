"""Create jobs, runs and nodes for tests. Jobs are saved through ``control.save``."""

from datetime import timedelta
from itertools import count, cycle
from typing import Any
from uuid import uuid4

from django.db.models import F, QuerySet

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.models import Attempt, AuditEntry, Job, Node, Run
from django_dcron.models.audit_entry import AuditEntryQuerySet

_numbers = count(1)
_microseconds = cycle(range(999, 0, -1))


def make_job(**fields: Any) -> Job:
    """Save and return a job. It runs every second unless ``fields`` says otherwise."""
    given = {
        "name": f"job-{next(_numbers)}",
        "target": "tests.app.tasks.ok",
        "schedule": "* * * * * *",
    } | fields
    return control.save(Job(**given))


def entries_by_users() -> AuditEntryQuerySet:
    """Return the audit entries of users, oldest first. Entries of test factories have no user."""
    return AuditEntry.objects.exclude(actor="").order_by("pk")


def forget_entries() -> None:
    """Delete all audit entries, as if the changes so far had been made without ``control``."""
    entries = AuditEntry.objects.all()
    entries.delete_for_retention(list(entries.values_list("pk", flat=True)))


def age_pauses(age: timedelta) -> None:
    """Change the audit log as if each pause had been ``age`` earlier."""
    QuerySet(AuditEntry).filter(action="pause").update(at=F("at") - age)


def make_idle_job(**fields: Any) -> Job:
    """Save and return a job that doesn't become due during a test."""
    return make_job(schedule="0 0 1 1 *", **fields)


def make_run(job: Job, state: str = "pending", **fields: Any) -> Run:
    """Create a run in ``state`` that is due now.

    A running run has the row of its attempt and a fresh heartbeat.
    """
    now = database_now("default")
    # Give each run its own instant: two runs of a job never share one, and a database's clock may
    # have a resolution of milliseconds. It has passed, because a change of the job deletes pending
    # runs that aren't due yet.
    scheduled_at = now - timedelta(microseconds=next(_microseconds))
    given = {"scheduled_at": scheduled_at, "due_at": now, "claimed_at": now, "state": state}
    if state == "queued":
        given |= {"queued_at": now, "deliveries": 1}
    if state == "running":
        given |= {"started_at": now, "heartbeat_at": now}
    run = Run.objects.create(job=job, **given | fields)
    if state == "running":
        Attempt.objects.create(
            run=run, number=run.attempt, token=uuid4(), worker="w", started_at=now
        )
    return run


def make_node(name: str = "node-a", age: timedelta = timedelta(), **fields: Any) -> Node:
    """Create the row of a node that leads all shards and has run for an hour.

    Its last heartbeat and its last tick were ``age`` ago.
    """
    seen = database_now("default") - age
    given = {
        "id": f"{name}-1",
        "name": name,
        "host": "web-1",
        "pid": 7,
        "version": "1",
        "started_at": seen - timedelta(hours=1),
        "heartbeat_at": seen,
        "ticked_at": seen,
        "shards": 64,
        "shard_count": 64,
    }
    return Node.objects.create(**given | fields)
