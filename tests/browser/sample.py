"""Create rows that give every page of the admin some content.

No node and no worker processes them, so nothing changes.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import cycle, islice
from uuid import uuid4

from django.db import transaction

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.models import Alert, Attempt, Calendar, Freeze, Incident, Job, Node, Run
from django_dcron.models.incident import NOT_GROUPED
from django_dcron.models.statistics import count_ended_runs
from django_dcron.policies.lifecycle import State
from django_dcron.runs.incidents import group_failed_attempts
from tests.factories import make_job, make_run

MINUTE = timedelta(minutes=1)
LONG_AGO = timedelta(days=1)
HISTORY = 24
STATES = ["succeeded"] * 6 + ["failed", "succeeded", "skipped", "missed", "cancelled"]
TRACEBACK = """Traceback (most recent call last):
  File "shop/tasks.py", line 10, in import_orders
    raise ValueError("no such order: 4711")
ValueError: no such order: 4711
"""


@dataclass(frozen=True)
class Sample:
    job: Job
    """A job with runs of every outcome."""
    paused: Job
    long_named: Job
    """A job whose namespace has no place for a line break."""
    failed: Run
    running: Run
    attempt: Attempt
    """An attempt of the failed run."""
    alert: Alert
    calendar: Calendar
    incident: Incident
    freeze: Freeze
    """In force, so that every page has the banner."""


@transaction.atomic
def make_sample() -> Sample:
    now = database_now("default")
    job = make_job(
        name="import-orders",
        namespace="shop",
        schedule="*/5 * * * *",
        timezone="Europe/Berlin",
        tags=["orders", "hourly"],
        description="Fetches new orders from the marketplace, which is down now and then.",
        max_attempts=3,
    )
    runs = [
        _past_run(job, now, number, state)
        for number, state in enumerate(islice(cycle(STATES), HISTORY), 1)
    ]
    failed = next(run for run in runs if run.state == State.FAILED)
    paused = make_job(name="send-newsletter", schedule="0 9 * * MON", namespace="marketing")
    control.pause(paused, "the provider is down (ada)")
    long_named = make_job(
        name="close-books",
        namespace="n" * 64,
        schedule="0 0 L * *",
        target="tests.app.tasks.echo",
        kwargs={"ledger": "main"},
    )
    nodes = [
        _node("node-a", now),
        _node("node-b", now, degraded=True),
        _node("node-c", now - LONG_AGO),
    ]
    running = _running(make_job(name="sync-stock", schedule="*/2 * * * *"), nodes[0], now)
    alert = _alert(failed, now)
    calendar = control.save_calendar(Calendar(name="closed", dates="SAT-SUN\n12-25"))
    freeze = control.freeze("deploy of 4.2", until=now + timedelta(hours=1), by="ada")
    Attempt.objects.filter(outcome="failed").update(incident=NOT_GROUPED)
    group_failed_attempts()
    incident = Incident.objects.get(job=job)
    Incident.objects.filter(pk=incident.pk).update(returned_at=incident.last_seen_at)
    Alert.objects.filter(job=job).update(incident=incident, run=failed.pk)
    return Sample(
        job=job,
        paused=paused,
        long_named=long_named,
        failed=failed,
        running=running,
        attempt=failed.attempts.get(),
        alert=alert,
        calendar=calendar,
        incident=incident,
        freeze=freeze,
    )


def _past_run(job: Job, now: datetime, number: int, state: str) -> Run:
    at = (now - 5 * number * MINUTE).replace(second=0, microsecond=0)
    ran = state in ("succeeded", "failed", "cancelled")
    started = at + timedelta(milliseconds=7 * number)
    ended = started + timedelta(seconds=number % 13, milliseconds=40)
    run = Run.objects.create(
        job=job,
        scheduled_at=at,
        due_at=at,
        claimed_at=at - timedelta(seconds=10),
        queued_at=started if ran else None,
        started_at=started if ran else None,
        finished_at=ended,
        state=state,
        reason="" if state == "succeeded" else f"an example of what {state} looks like",
        missed_before=3 if state == "missed" else 0,
        missed_from=at - 15 * MINUTE if state == "missed" else None,
    )
    count_ended_runs([job.pk], State(state))
    if ran:
        failure = {
            "exception_class": "builtins.ValueError",
            "message": "no such order: 4711",
            "traceback": TRACEBACK,
        }
        Attempt.objects.create(
            run=run,
            number=1,
            token=uuid4(),
            worker="celery@web-1/4242",
            due_at=run.due_at,
            queued_at=at + (started - at) / 2,
            started_at=started,
            finished_at=ended,
            outcome=state,
            log="Asking the marketplace\n3 orders\n",
            result='{"orders": 3}' if state == "succeeded" else "",
            **(failure if state == "failed" else {}),
        )
    return run


def _alert(failed: Run, now: datetime) -> Alert:
    """Create a sent alert, and one that waits because its channel is unreachable."""
    shown = {
        "kind": "failed",
        "job": failed.job,
        "subject": f"{failed.job} failed",
        "text": failed.reason,
    }
    away = {
        "try_at": now + MINUTE,
        "tries": 3,
        "error": "the service of URL 1 (slack) did not take it",
    }
    Alert.objects.create(channel="ops", key="1", created_at=now, **shown, **away)
    return Alert.objects.create(channel="mail", key="1", created_at=now, sent_at=now, **shown)


def _running(job: Job, node: Node, now: datetime) -> Run:
    run = make_run(job, "running", node=node.pk, heartbeat_at=now + LONG_AGO, queued_at=now)
    run.attempts.update(
        log="Fetching stock levels\n",
        progress_done=42,
        progress_total=120,
        progress_note="warehouse 2",
    )
    return run


def _node(name: str, at: datetime, *, degraded: bool = False) -> Node:
    return Node.objects.create(
        id=f"{name}-1",
        name=name,
        host="web-1",
        pid=100,
        version="0.1.0",
        started_at=at,
        heartbeat_at=at + 5 * MINUTE,  # keeps the run alive during the test
        ticked_at=at,
        shards=32,
        shard_count=64,
        agenda=3,
        skew=timedelta(milliseconds=4),
        degraded=degraded,
    )
