"""Create a small healthy system: a node that leads every shard, and a job with a short history."""

from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest

from django_dcron.conf import settings
from django_dcron.db import clock
from django_dcron.db.clock import ClusterClock
from django_dcron.db.now import database_now
from django_dcron.diagnosis.doctor.findings import Code
from django_dcron.diagnosis.doctor.report import Report, examine
from django_dcron.diagnosis.doctor.window import Window
from django_dcron.diagnosis.why.explanation import Answer
from django_dcron.locks import Lock, get_lock
from django_dcron.models import Attempt, Cursor, Job, Node, Run, Statistics
from django_dcron.scheduler.membership import Membership
from tests import services
from tests.factories import make_job, make_run

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
MINUTES_OF_HISTORY = 4
"""Minutes of history before the latest occurrence."""


@dataclass
class System:
    lock: Lock
    node: Membership
    job: Job
    latest: datetime
    """The latest occurrence. The cursor is one minute ahead of it."""

    def examine(self, **window: object) -> Report:
        now = database_now("default")
        given = {"since": now - HOUR, "until": now, "now": now} | window
        return examine(Window(**given), self.lock)  # type: ignore[arg-type]

    def codes(self, **window: object) -> set[Code]:
        return set(self.examine(**window).findings.counts)


def codes(answer: Answer) -> list[str]:
    return [sentence.code for sentence in answer.sentences]


def create_history(
    job: Job, latest: datetime, *, age: timedelta = MINUTES_OF_HISTORY * MINUTE + MINUTE / 2
) -> None:
    """Create five succeeded runs, one per minute up to ``latest``.

    ``age`` is the age of the job at ``latest``. By default, the job is slightly older than the
    first run.
    """
    for back in range(MINUTES_OF_HISTORY, -1, -1):
        at = latest - back * MINUTE
        run = make_run(job, "running", scheduled_at=at, due_at=at, started_at=at, claimed_at=at)
        Attempt.objects.filter(run=run).update(outcome="succeeded", finished_at=at)
        Run.objects.filter(pk=run.pk).update(state="succeeded", finished_at=at)
    Cursor.objects.filter(pk=job.pk).update(
        next_at=latest + MINUTE, previous_at=latest, placed_at=latest - age
    )
    Statistics.objects.filter(pk=job.pk).update(succeeded=MINUTES_OF_HISTORY + 1)
    Job.objects.filter(pk=job.pk).update(created_at=latest - age)


def make_job_with_history(latest: datetime, **fields: object) -> Job:
    job = make_job(**{"schedule": "* * * * *", "overlap_policy": "queue_all"} | fields)
    create_history(job, latest)
    return job


@pytest.fixture
def system(db: None, redis_server: services.Server, monkeypatch: pytest.MonkeyPatch) -> System:
    # Stop the clock, so that nothing expires during a test on a slow machine.
    monkeypatch.setattr(clock, "fixed_at", now := database_now("default"))
    latest = now.replace(second=0, microsecond=0)
    lock = get_lock()
    node = Membership("a", "", lock, ClusterClock())
    node.register()
    # The node sends no heartbeats during a test. Its heartbeat and leases last for the whole test.
    Node.objects.update(
        started_at=now - HOUR,
        ticked_at=now + HOUR,
        heartbeat_at=now + HOUR,
        shards=settings.SHARDS,
    )
    lock.hold(node._lock_names(range(settings.SHARDS)), node.id, HOUR)
    return System(lock, node, make_job_with_history(latest), latest)
