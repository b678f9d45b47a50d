"""Create rows of two teams, "mine" and "hush", to test who can see which rows.

Every text and number of "hush" is recognizable wherever it appears.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import uuid4

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.models import (
    Alert,
    Attempt,
    AuditEntry,
    Calendar,
    Cursor,
    Freeze,
    Incident,
    Job,
    Limit,
    Node,
    Run,
    Statistics,
)
from django_dcron.runs.chains import follower_key
from tests.admin.conftest import make_run


@dataclass(frozen=True)
class Rows:
    """One row of each model."""

    job: Job
    paused: Job
    run: Run
    ended: Run
    ended_with_arguments: Run
    attempt: Attempt
    node: Node
    alert: Alert
    calendar: Calendar
    limit: Limit
    freeze: Freeze
    incident: Incident
    muted: Incident
    deletion: AuditEntry
    """The entry of a deleted job."""

    @property
    def auditentry(self) -> AuditEntry:
        """The oldest entry of the job."""
        return AuditEntry.objects.filter(kind="job", object_id=str(self.job.pk)).earliest("pk")


HOUR = timedelta(hours=1)
AFTER = {"mine/mine-job": "ended"}
KEY = 98_765_432
"""First primary key of the other team's rows. No page contains such a number by chance."""


@dataclass(frozen=True)
class World:
    mine: Rows
    theirs: Rows
    markers: dict[str, str]
    """By kind of row, the text that reveals the other team's rows."""


def make_incidents(job: Job, name: str, run: Run | None) -> tuple[Incident, Incident]:
    """Create an open incident, to which the attempt of ``run`` belongs, and a muted one."""
    now = database_now("default")
    known: dict[str, Any] = {
        "job": job,
        "exception_class": f"{name}-exception",
        "message": f"{name}-error",
        "changed_by": f"{name}-user",
        "note": f"{name}-note",
        "count": 1,
        "first_seen_at": now,
        "last_seen_at": now,
        "last_run": run.pk if run else None,
    }
    incident = Incident.objects.create(fingerprint=f"{name}-1", **known)
    if run is not None:
        run.attempts.update(incident=incident.pk)
        Incident.objects.filter(pk=incident.pk).update(last_attempt=run.attempts.get().pk)
    muted = Incident.objects.create(fingerprint=f"{name}-2", state="muted", **known)
    return incident, muted


def _team(name: str, first_key: int | None = None) -> tuple[Rows, list[Run]]:
    """Create every kind of row for a team, with its name in every text."""
    now = database_now("default").replace(microsecond=0)
    calendar = control.save_calendar(
        Calendar(name=f"{name}-calendar", dates="12-25", description=f"{name}-about")
    )
    limit = control.save_limit(
        Limit(name=f"{name}-limit", max_running=5, description=f"{name}-about")
    )
    given = {
        "namespace": name,
        "limit": limit,
        "target": "tests.app.tasks.echo",
        "calendar": calendar,
        "description": f"{name}-description",
        "tags": [f"{name}-tag"],
        "kwargs": {},
        "schedule": "0 3 * * *",
    }
    job = Job(name=f"{name}-job", **given)
    if first_key:
        job = Job.objects.create(pk=first_key, name=job.name, **given)
    job = control.save(job)
    paused = control.save(
        Job(name=f"{name}-paused", **given, enabled=False, pause_reason=f"{name}-pause")
    )
    paused.max_attempts = 2
    control.save(paused)
    Job.objects.filter(pk=job.pk).update(args=[f"{name}-argument"])
    times = {"claimed_at": now - HOUR, "due_at": now - HOUR}
    run = make_run(
        job, now - HOUR / 2, state="running", started_at=now - HOUR / 2, heartbeat_at=now, **times
    )
    ended = make_run(
        job,
        now - HOUR,
        state="failed",
        reason=f"{name}-reason",
        started_at=now - HOUR,
        finished_at=now,
        **times,
    )
    missed = make_run(
        job, now - 2 * HOUR, state="missed", reason=f"{name}-missed", finished_at=now, **times
    )
    keys = first_key or KEY - 10_001
    texts = {
        each: f"{name}-{each}"
        for each in ("log", "traceback", "result", "message", "exception_class")
    }
    attempts = [
        Attempt.objects.create(
            run=each,
            number=1,
            token=uuid4(),
            worker=f"{name}-worker",
            started_at=now - HOUR,
            **texts,
            **key,
        )
        for each, key in ((ended, {"pk": keys}), (run, {"pk": keys + 1}))
    ]
    beats = {"started_at": now, "heartbeat_at": now, "ticked_at": now}
    node = Node.objects.create(
        id=f"{name}-node-id",
        name=f"{name}-node",
        host=f"{name}-host",
        namespace=name,
        pid=1,
        version="1",
        shard_count=64,
        **beats,
    )
    alert = Alert.objects.create(
        channel="ops",
        kind="failed",
        key=name,
        job=job,
        subject=f"{name}-subject",
        text=f"{name}-text",
        created_at=now,
    )
    Statistics.objects.filter(pk=job.pk).update(failed=1, last_state="failed", last_finished_at=now)
    freeze = control.freeze(f"{name}-freeze", name)
    incidents = make_incidents(job, name, ended)
    alert.incident, alert.run = incidents[0], ended.pk
    alert.save()
    rows = Rows(
        job,
        paused,
        run,
        ended,
        ended,
        attempts[1],
        node,
        alert,
        calendar,
        limit,
        freeze,
        *incidents,
        _make_deletion(name),
    )
    return rows, [run, ended, missed]


def _make_deletion(name: str) -> AuditEntry:
    job = Job(
        name=f"{name}-deleted", namespace=name, target="tests.app.tasks.ok", schedule="@never"
    )
    control.delete(control.save(job))
    return AuditEntry.objects.get(kind="job", action="delete", label=str(job))


def make_world() -> World:
    mine, _runs = _team("mine")
    theirs, their_runs = _team("hush", KEY)
    job = Job(
        name="hush-follower",
        namespace="hush",
        target="tests.app.tasks.ok",
        schedule="@never",
        after=AFTER,
    )
    follower = control.save(job)
    chained = {
        "trigger": "chain",
        "idempotency_key": follower_key(mine.ended.pk),
        "finished_at": mine.ended.due_at,
    }
    their_runs.append(make_run(follower, database_now("default"), state="succeeded", **chained))
    # An alert without a namespace, to catch code that shows such rows to everybody.
    Alert.objects.create(
        channel="ops",
        kind="failed",
        key="gone",
        subject="hush-gone",
        created_at=mine.alert.created_at,
    )
    markers = {"name": "hush", "job or attempt": str(KEY), "paused job or attempt": str(KEY + 1)}
    markers |= {f"run {number}": str(run.pk) for number, run in enumerate(their_runs)}
    return World(mine, theirs, markers)


def rows_of_others() -> Any:
    """Return all rows of the other team, by kind."""
    hidden = Run.objects.filter(job__namespace="hush")
    rows = {
        # Without hush-follower and its log: it loses its link when the job of "mine" that it
        # follows is deleted.
        "jobs": Job.objects.filter(namespace="hush").exclude(name="hush-follower"),
        "cursors": Cursor.objects.filter(job__namespace="hush"),
        "runs": hidden,
        "attempts": Attempt.objects.filter(run__in=hidden.values("pk")),
        "nodes": Node.objects.filter(namespace="hush"),
        "incidents": Incident.objects.filter(job__namespace="hush"),
        "alerts": Alert.objects.filter(subject__startswith="hush"),
        "calendars": Calendar.objects.filter(name__startswith="hush"),
        "limits": Limit.objects.filter(name__startswith="hush"),
        "freezes": Freeze.objects.exclude(namespace="mine"),
        "log": AuditEntry.objects.filter(label__contains="hush").exclude(
            label="hush/hush-follower"
        ),
    }
    return {name: list(each.order_by("pk").values()) for name, each in rows.items()}
