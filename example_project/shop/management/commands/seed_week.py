"""Fill the tables with an invented week, for screenshots.

The data depends only on the present time. It shows every kind of page content: all outcomes,
incidents, a job that has failed since noon, a running job, a paused job, runs that wait for a
limit, a job that was changed since it ran, a calendar, and two nodes. No process executes the runs.
Their rows look as if workers had written them.
"""

import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.contrib.admin.models import ADDITION, CHANGE, LogEntry
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.core.management.base import BaseCommand
from django.db import transaction
from django.utils import timezone

import django_dcron
from django_dcron import control
from django_dcron.conf import settings
from django_dcron.jobs.definitions import definition_id
from django_dcron.models import Attempt, Calendar, Job, Limit, LimitPlace, Node, Run
from django_dcron.models.incident import NOT_GROUPED
from django_dcron.models.statistics import Statistics, count_ended_runs
from django_dcron.policies.lifecycle import State, Trigger
from django_dcron.policies.sharding import shards_led_by
from django_dcron.runs.incidents import group_failed_attempts, resolve_recovered
from shop.catalog import CATALOG
from shop.models import Product

WEEK = timedelta(days=7)
SECOND = timedelta(seconds=1)
AHEAD = 10 * SECOND
NODES = ("node-a", "node-b")
RELEASE = "2026.46.1"
BANK_DAYS = "SAT-SUN\n12-24, 12-31\n2027-01-04..2027-01-08  # stocktaking\n12-23 14:00-24:00"
MAINTENANCE = "SUN 02:00-04:00  # Patch window"
WORKERS = ("celery@shop-1/2114", "celery@shop-1/2115", "celery@shop-2/1873", "celery@shop-2/1874")
IMPORT, REPORT, STOCK = (
    "shop.tasks.import_orders",
    "shop.tasks.sales_report",
    "shop.tasks.stocktake",
)
SALE, SESSIONS, PULSE = "shop.tasks.start_sale", "command:clearsessions", "shop.cron.shop_pulse"
UNAVAILABLE = "HTTP Error 503: Service Unavailable"
FAILURES = {
    IMPORT: ("urllib.error.HTTPError", UNAVAILABLE),
    REPORT: (
        "django.db.utils.OperationalError",
        "could not write to file: No space left on device",
    ),
    STOCK: ("builtins.ValueError", "C-104 House espresso: counted -3"),
    PULSE: ("builtins.TimeoutError", "timed out"),
    SESSIONS: ("django.db.utils.OperationalError", "canceling statement due to lock timeout"),
}
TRACEBACK = """Traceback (most recent call last):
  File "shop/tasks.py", line 41, in import_orders
    placed = marketplace.orders_after(newest)
  File "shop/marketplace.py", line 35, in orders_after
    with urlopen(f"{settings.MARKETPLACE_URL}?after={number}", timeout=TIMEOUT) as response:
"""


@dataclass(frozen=True)
class JobHistory:
    """A job and the history of its runs."""

    name: str
    target: str
    schedule: str
    seconds: float = 1.0
    """Approximate duration of a run in seconds."""
    retried: float = 0.0
    """The share of runs whose first attempt fails."""
    fails_since: timedelta | None = None
    """How long ago the job began to fail. None: it doesn't."""
    always_running: bool = False
    """Whether a manual run is in progress if no occurrence is."""
    log: str = "Done."
    result: str = "null"
    job: dict[str, Any] = field(default_factory=dict)


BERLIN = {"timezone": "Europe/Berlin"}
RETRIES = {"max_attempts": 5, "retry_backoff": 15 * SECOND, "timeout": 60 * SECOND}

HISTORIES = [
    JobHistory("nightly-backup", REPORT, "0 2 * * *", 1_640, log="Wrote 1.9 GB.", job=BERLIN),
    JobHistory("nightly-clearsessions", SESSIONS, "30 3 * * *", 75, job=BERLIN),
    JobHistory(
        "import-orders",
        IMPORT,
        "*/5 * * * *",
        38,
        retried=0.12,
        log="Imported 7 orders.",
        result='{"imported": 7}',
        job={
            "description": "Fetches new orders from the marketplace.",
            "tags": ["orders"],
            **RETRIES,
        },
    ),
    JobHistory(
        "import-returns", IMPORT, "3-59/15 6-22 * * *", 21, log="Imported 2 returns.", job=RETRIES
    ),
    JobHistory(
        "invoice-reminders", REPORT, "15 8 * * MON-FRI", 420, log="Sent 31 reminders.", job=BERLIN
    ),
    JobHistory(
        "newsletter", REPORT, "0 9 * * TUE,THU", 2_840, log="Sent 12,408 letters.", job=BERLIN
    ),
    JobHistory(
        "reprice-tea", REPORT, "*/6 9-17 * * MON-FRI", 110, log="Looked at 7 prices.", job=BERLIN
    ),
    JobHistory(
        "sales-report",
        REPORT,
        "*/30 7-20 * * *",
        260,
        log="Wrote a report of 84 orders.",
        result='{"orders": 84}',
    ),
    JobHistory(
        "search-index", REPORT, "7-59/20 * * * *", 390, log="Indexed 20 products.", job=BERLIN
    ),
    JobHistory("shop-pulse", PULSE, "*/2 8-20 * * *", 0.2, result='{"orders": 3}'),
    JobHistory(
        "stocktake",
        STOCK,
        "*/12 6-21 * * *",
        95,
        always_running=True,
        log="Counted 20 products, 1 sold out.",
    ),
    JobHistory(
        "supplier-prices",
        IMPORT,
        "*/10 6-19 * * MON-SAT",
        48,
        fails_since=timedelta(minutes=52),
        job={
            "max_attempts": 3,
            "retry_backoff": 20 * SECOND,
            "description": "Asks the suppliers for their prices.",
        },
    ),
    JobHistory("weekly-books", REPORT, "0 6 * * MON", 1_320, job=BERLIN),
]
SALE_FIELDS = {"target": SALE, "timezone": "Europe/Berlin"}


class Command(BaseCommand):
    help = __doc__

    @transaction.atomic
    def handle(self, *args: Any, **options: Any) -> None:
        now = timezone.now()
        Product.objects.bulk_create([Product(**article._asdict()) for article in CATALOG])
        owner = User.objects.create_superuser("ada", password="ada")
        nodes = [start_node(name, now) for name in NODES]
        for history in HISTORIES:
            job = control.save(
                Job(
                    name=history.name,
                    target=history.target,
                    schedule=history.schedule,
                    **history.job,
                )
            )
            Week(history, job, now, nodes).save_runs()
        change_after_its_runs(Job.objects.get(name="import-orders"))
        control.save_calendar(Calendar(name="bank days", dates=BANK_DAYS))
        control.save_calendar(Calendar(name="maintenance", dates=MAINTENANCE))
        fill_a_limit(Job.objects.get(name="stocktake"), now)
        in_a_week = f"{now + WEEK:%Y-%m-%d}T06:00"
        make_sale("tea-sale", "tea", schedule=f"@at {in_a_week}")
        coffee = make_sale("coffee-sale", "coffee", schedule="0 8 1 * *")
        control.pause(coffee, "The new price list is not out yet (ada)")
        record_progress_of_stocktake(now)
        while group_failed_attempts():
            pass
        resolve_recovered()
        add_change_history(Job.objects.get(name="import-orders"), owner, now)
        self.stdout.write(f"Made up {Run.objects.count()} runs of {Job.objects.count()} jobs.")


class Week:
    """The occurrences of one job and their outcomes."""

    def __init__(self, history: JobHistory, job: Job, now: datetime, nodes: list[Node]):
        self.history, self.job, self.now, self.nodes = history, job, now, nodes
        self.random = random.Random(history.name)
        self.attempts: list[Attempt] = []
        self.counts: dict[State, int] = {}

    def save_runs(self) -> None:
        occurrences = list(self.job.parsed_schedule.occurrences(self.now - WEEK, self.now - SECOND))
        ended = [at for at in occurrences if at < self.now - self.history.seconds * 1.5 * SECOND]
        runs = [self.run(at) for at in ended]
        if len(ended) < len(occurrences):
            runs.append(self.running_run(occurrences[-1]))
        elif self.history.always_running:
            # Only occurrences fall on a whole second.
            triggered_at = (self.now - 40 * SECOND).replace(microsecond=250_000)
            runs.append(
                self.running_run(triggered_at, claimed_at=triggered_at, trigger=Trigger.MANUAL)
            )
        Run.objects.bulk_create(runs, batch_size=500)
        Attempt.objects.bulk_create(self.attempts, batch_size=500)
        last = runs[len(ended) - 1]
        # Count the state of the last run last: the job's page shows it as the last outcome.
        for state in sorted(self.counts, key=lambda state: last.state == state):
            count_ended_runs([self.job.pk], state, self.counts[state])
        Statistics.objects.filter(job=self.job).update(last_finished_at=last.finished_at)

    def run(self, at: datetime) -> Run:
        state = self.outcome(at)
        run = Run(
            id=uuid.UUID(int=self.random.getrandbits(128), version=4),
            job=self.job,
            scheduled_at=at,
            due_at=at,
            claimed_at=at - AHEAD + self.random.random() * SECOND,
            state=state,
            node=self.random.choice(self.nodes).pk,
        )
        if state is State.SKIPPED:
            run.finished_at, run.reason = at + 0.02 * SECOND, "an earlier run was still unfinished"
        else:
            self.attempts += self.attempts_of(run)
            if state is State.FAILED:
                run.reason = FAILURES[self.job.target][1]
        self.counts[state] = self.counts.get(state, 0) + 1
        return run

    def running_run(self, at: datetime, **columns: Any) -> Run:
        run = Run(
            id=uuid.UUID(int=self.random.getrandbits(128), version=4),
            job=self.job,
            scheduled_at=at,
            due_at=at,
            queued_at=at + 0.002 * SECOND,
            started_at=at + 0.011 * SECOND,
            heartbeat_at=self.now - SECOND,
            deliveries=1,
            state=State.RUNNING,
            node=self.nodes[0].pk,
            **{"claimed_at": at - AHEAD, **columns},
        )
        attempt = Attempt(
            run=run,
            number=1,
            token=uuid.UUID(int=self.random.getrandbits(128), version=4),
            worker=WORKERS[0],
            definition_id=definition_id(self.job),
            release=RELEASE,
            due_at=run.due_at,
            queued_at=run.queued_at,
            started_at=run.started_at,
        )
        self.attempts.append(attempt)
        return run

    def outcome(self, at: datetime) -> State:
        since = self.history.fails_since
        if since is not None and at >= self.now - since:
            return State.FAILED
        number = self.random.random()
        if number < 0.004:
            return State.FAILED
        return State.SKIPPED if number > 0.996 and self.history.seconds > 60 else State.SUCCEEDED

    def attempts_of(self, run: Run) -> Iterator[Attempt]:
        first_fails = self.random.random() < self.history.retried
        last = self.job.max_attempts if run.state is State.FAILED else 1 + first_fails
        run.deliveries, at = last, run.due_at
        for number in range(1, last + 1):
            run.queued_at = at + self.random.uniform(0.001, 0.004) * SECOND
            run.started_at = run.queued_at + self.random.lognormvariate(-4.6, 0.6) * SECOND
            run.finished_at = (
                run.started_at + self.random.lognormvariate(0, 0.25) * self.history.seconds * SECOND
            )
            run.attempt = number
            fails = number < last or run.state is State.FAILED
            yield self.attempt(run, State.FAILED if fails else State.SUCCEEDED)
            at = run.finished_at + self.job.retry_backoff * 2 ** (number - 1)
            if number < last:
                run.due_at = at

    def attempt(self, run: Run, outcome: State) -> Attempt:
        failed = outcome is State.FAILED
        log = "Asking the marketplace." if failed else self.history.log
        name, message = FAILURES[self.job.target]
        failure = {
            "exception_class": name,
            "message": message,
            "traceback": f"{TRACEBACK}{name}: {message}\n",
        }
        return Attempt(
            run=run,
            number=run.attempt,
            token=uuid.UUID(int=self.random.getrandbits(128), version=4),
            worker=self.random.choice(WORKERS),
            definition_id=definition_id(self.job),
            release=RELEASE,
            due_at=run.due_at,
            queued_at=run.queued_at,
            started_at=run.started_at,
            finished_at=run.finished_at,
            outcome=outcome,
            log=(
                f"{run.finished_at:%Y-%m-%d %H:%M:%S},{self.random.randrange(1000):03} INFO "
                f"shop.tasks: {log}\n"
            ),
            incident=NOT_GROUPED if failed else None,
            **(failure if failed else {"result": self.history.result}),
        )


def node_id_of(name: str) -> str:
    return f"{name}-5f1c77a2"


def start_node(name: str, now: datetime) -> Node:
    node_id = node_id_of(name)
    return Node.objects.create(
        id=node_id,
        name=name,
        host=f"shop-{NODES.index(name) + 1}",
        pid=1840,
        version=django_dcron.__version__,
        started_at=now - timedelta(days=3, hours=4),
        heartbeat_at=now - 0.8 * SECOND,
        ticked_at=now - 0.4 * SECOND,
        shards=len(shards_led_by(node_id, map(node_id_of, NODES), settings.SHARDS)),
        shard_count=settings.SHARDS,
        agenda=2,
        skew=timedelta(milliseconds=3 + NODES.index(name)),
    )


def make_sale(name: str, category: str, schedule: str) -> Job:
    kwargs = {"category": category, "percent": 20}
    return control.save(Job(name=name, kwargs=kwargs, schedule=schedule, **SALE_FIELDS))


def change_after_its_runs(job: Job) -> None:
    job.timeout, job.retry_backoff = 45 * SECOND, 30 * SECOND
    control.save(job)


def fill_a_limit(job: Job, now: datetime) -> None:
    """Let the job's running run have the only place of a limit, and two other runs wait for it."""
    control.save_limit(Limit(name="sms", max_started=100, interval=timedelta(minutes=1)))
    limit = control.save_limit(
        Limit(name="warehouse", max_running=1, description="The warehouse accepts one connection.")
    )
    running = Run.objects.get(job=job, state=State.RUNNING)
    waiting = [
        Run(
            id=uuid.UUID(int=number, version=4),
            job=job,
            scheduled_at=triggered_at,
            due_at=triggered_at,
            claimed_at=triggered_at,
            state=State.WAITING,
            trigger=Trigger.MANUAL,
            reason=f"waits for limit {limit.name}: 1 of 1 running",
            limited=True,
        )
        for number, triggered_at in enumerate((now - 31.5 * SECOND, now - 12.25 * SECOND), start=1)
    ]
    Run.objects.bulk_create(waiting)
    LimitPlace.objects.bulk_create(
        LimitPlace(run=run, limit=limit, number=None if run in waiting else 1, due_at=run.due_at)
        for run in (running, *waiting)
    )


def record_progress_of_stocktake(now: datetime) -> None:
    """Record the progress of the running stocktake, which counts a product every 4 s."""
    attempt = Attempt.objects.get(run__job__name="stocktake", run__state=State.RUNNING)
    products = list(Product.objects.all())
    interval = 4 * SECOND
    done = min((now - attempt.started_at) // interval, len(products) - 1)
    times = [attempt.started_at + number * interval for number in range(done)]
    lines = [
        f"{at:%Y-%m-%d %H:%M:%S} INFO shop.tasks: {p}\n"
        for at, p in zip(times, products, strict=False)
    ]
    attempt.log = "".join(lines)
    attempt.progress_done, attempt.progress_total, attempt.progress_note = (
        done,
        len(products),
        products[done].name,
    )
    attempt.save()


def add_change_history(job: Job, owner: User, now: datetime) -> None:
    common = {
        "user": owner,
        "content_type": ContentType.objects.get_for_model(job),
        "object_id": str(job.pk),
        "object_repr": str(job),
    }
    LogEntry.objects.create(
        action_flag=ADDITION, action_time=now - WEEK, change_message='[{"added": {}}]', **common
    )
    changed = '[{"changed": {"fields": ["Schedule"]}}]'
    LogEntry.objects.create(
        action_flag=CHANGE,
        action_time=now - timedelta(days=2, hours=5),
        change_message=changed,
        **common,
    )
