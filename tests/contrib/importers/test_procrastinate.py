"""Test the import from the real procrastinate: jobs are due when its deferrer defers the task."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
from django.apps import apps
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from procrastinate import RetryStrategy
from procrastinate.jobs import Job as TheirJob
from procrastinate.periodic import PeriodicDeferrer, PeriodicRegistry

from django_dcron.contrib.importers import procrastinate as importer
from django_dcron.contrib.importers.croniter_text import from_croniter
from django_dcron.contrib.importers.source_contents import EntryRefused, SourceEntry, SourceProblem
from django_dcron.exceptions import InvalidSchedule
from django_dcron.models import Job
from django_dcron.policies.retry import Failure, FailureClass
from django_dcron.schedules.schedule import parse_schedule
from tests import depth
from tests.app.tasks import echo
from tests.contrib.importers import procrastinate_tasks, public
from tests.contrib.importers.conftest import Install
from tests.contrib.importers.test_django_q import numbers
from tests.management.calling import call

pytestmark = pytest.mark.django_db

NOW = datetime(2027, 1, 1, 12, tzinfo=UTC)
HERE = "tests.contrib.importers.procrastinate_tasks"
APP = f"{HERE}.app"


def entries() -> dict[str, SourceEntry]:
    return {each.key.rsplit(".", 1)[-1]: each for each in importer.read(NOW, APP).entries}


def found(name: str) -> SourceEntry:
    return entries()[name]


def test_task_with_all_options_is_converted() -> None:
    north, south = found("report north"), found("report south")
    assert north.values == {
        "target": f"{HERE}.report",
        "args": [],
        "kwargs": {"region": "north"},
        "schedule": "*/20 8-17 * * 1-5",
        "timezone": "UTC",
        "max_attempts": 4,
        "retry_backoff": timedelta(),
        "retry_backoff_factor": 1.0,
        "retry_backoff_max": timedelta(),
        "retry_jitter": 0.0,
        "retry_on": [],
        "never_retry_on": [],
        "enabled": True,
        "pause_reason": "",
    }
    for message in ("'timestamp' isn't passed", "lock 'sales'", "priority 7", "retries"):
        assert any(message in warning for warning in north.warnings)
    for message in ("queue 'slow'", "queueing_lock 'one'"):
        assert any(message in warning for warning in south.warnings)
    assert south.values["schedule"] == "0 3 1 * mon"  # either day field may match


def test_tasks_of_an_app_become_jobs() -> None:
    done = call("import", "procrastinate", "--app", APP, "--apply")
    assert done.code == 1
    assert set(Job.objects.values_list("name", "schedule", "import_source")) == {
        ("report north", "*/20 8-17 * * 1-5", f"procrastinate {APP}"),
        ("report south", "0 3 1 * mon", f"procrastinate {APP}"),
        (f"shop:{HERE}.of_a_blueprint", "5 4 * * *", f"procrastinate {APP}"),
    }
    assert "3 same" in call("import", "procrastinate", "--app", APP).out


def test_timestamp_of_a_deferred_task_is_not_an_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    """Procrastinate adds it to the options of the task."""
    periodic = procrastinate_tasks.app.periodic_registry.periodic_tasks["report", "north"]
    monkeypatch.setitem(periodic.configure_kwargs["task_kwargs"], "timestamp", 1)
    assert found("report north").values["kwargs"] == {"region": "north"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("needs_its_timestamp", "current_run().scheduled_at"),
        ("needs_its_context", "'context'"),
        ("delayed", "schedule_in"),
        ("at_random", "random values"),
    ],
)
def test_unsupported_tasks_are_refused(name: str, message: str) -> None:
    assert message in found(name).refused


def test_own_tasks_are_omitted_and_own_strategies_are_warnings() -> None:
    assert found("remove_old_jobs").omitted
    blueprint = found("of_a_blueprint")
    for message in ("OwnStrategy", "'timestamp' isn't passed"):
        assert any(message in warning for warning in blueprint.warnings)
    assert "max_attempts" not in blueprint.values


@pytest.mark.parametrize(
    ("strategy", "same"),
    [
        ({"max_attempts": 4, "wait": 30}, True),
        ({"max_attempts": 4, "exponential_wait": 3}, True),
        ({"max_attempts": 4, "exponential_wait": 1, "wait": 2}, True),
        ({"max_attempts": 1, "linear_wait": 3}, True),
        ({"max_attempts": -1, "wait": 30}, True),
        ({"max_attempts": 4, "linear_wait": 3}, False),
        ({"max_attempts": 4, "wait": 5, "exponential_wait": 2}, False),
        ({"max_attempts": 4, "exponential_wait": 200}, False),
    ],
)
def test_retry_waits_match_procrastinate_or_are_reported(
    strategy: dict[str, int], same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waits that a job can't have become a constant wait that isn't shorter, and are reported."""
    retry_strategy = RetryStrategy(**strategy)
    warnings: list[str] = []
    values = importer._retries(retry_strategy, warnings.append)
    policy = Job(name="a", **values).retry
    failure = Failure(FailureClass.TRANSIENT, frozenset({"ValueError"}))
    now = datetime.now(UTC)
    for attempt in range(1, 7):
        job = TheirJob(
            id=1, queue="q", lock=None, queueing_lock=None, task_name="t", attempts=attempt - 1
        )
        decision = retry_strategy.get_retry_decision(exception=ValueError(), job=job)
        wait = policy.retry_after(failure, attempt)
        assert (decision is None) == (wait is None)
        if decision is not None and wait is not None and decision.retry_at is not None:
            expected = min(decision.retry_at - now, timedelta(hours=1))
            difference = wait - expected
            assert difference > timedelta(seconds=-30)
            assert not same or difference < timedelta(seconds=1)
    assert same == (not any("waits" in warning for warning in warnings))


def test_retries_without_a_limit_get_the_highest_limit() -> None:
    warnings: list[str] = []
    values = importer._retries(
        RetryStrategy(max_attempts=0, wait=5, retry_exceptions=[ConnectionError]), warnings.append
    )
    assert (values["max_attempts"], values["retry_on"]) == (100, ["ConnectionError"])
    assert "100 attempts" in warnings[0]


# --- The Django app -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def django_app(install: Install) -> Any:
    install("procrastinate.contrib.django", "procrastinate", PROCRASTINATE_READONLY_MODELS=False)
    config = apps.get_app_config("procrastinate")
    config.app.periodic(cron="7 * * * *")(config.app.task(name="tick")(echo))
    return config


def test_missing_django_app_is_a_usage_error() -> None:
    for result in (call("import", "procrastinate"), call("handover", "procrastinate", "--back")):
        assert result.code == 2
    with pytest.raises(SourceProblem):
        importer.runs_since(NOW)


def test_tasks_and_last_runs_of_the_django_app_are_read(django_app: Any) -> None:
    defers = django_app.get_model("ProcrastinatePeriodicDefer").objects
    for hours in (3, 2):
        at = NOW - timedelta(hours=hours)
        defers.create(task_name="tick", periodic_id="", defer_timestamp=int(at.timestamp()))
    reading = importer.read(NOW)
    assert reading.source == "procrastinate"
    (one,) = (each for each in reading.entries if each.key == "tick")
    assert one.last_run == NOW - timedelta(hours=2)
    source_runs = importer.runs_since(NOW - timedelta(hours=4))
    assert (source_runs.times, source_runs.complete) == (
        {one.origin: [NOW - timedelta(hours=2)]},
        False,
    )
    assert importer.runs_since(NOW).times == {}


def test_handover_of_another_app_does_not_rely_on_the_doctor(django_app: Any) -> None:
    """The doctor reads only the runs of the Django app."""
    done = call("handover", "procrastinate", "--apply")
    assert "dcron doctor" in done.out
    done = call("handover", "procrastinate", "--app", APP, "--apply")
    assert "jobs run here" in done.out
    assert "dcron doctor" not in done.out


# --- The occurrences ------------------------------------------------------------------------------


def source_occurrences(cron: str) -> Iterator[datetime]:
    """Yield the times for which procrastinate's deferrer defers a task."""
    registry = PeriodicRegistry()
    registry.register_task(
        task=SimpleNamespace(name="t"),  # type: ignore[arg-type]
        cron=cron,
        periodic_id="",
        configure_kwargs={},
    )
    deferrer, (periodic,) = PeriodicDeferrer(registry), registry.periodic_tasks.values()
    until = NOW.timestamp()
    while True:
        until += deferrer.get_next_tick(at=until)
        (stamp,) = deferrer.get_timestamps(periodic, since=int(until) - 1, until=until)
        yield datetime.fromtimestamp(stamp, UTC)


@hypothesis_settings(max_examples=depth.examples(100), deadline=None)
@given(
    cron=st.tuples(
        numbers(0, 59), numbers(0, 23), numbers(1, 31), numbers(1, 12), numbers(0, 7)
    ).map(" ".join)
)
def test_occurrences_match_procrastinate(cron: str) -> None:
    try:
        schedule = parse_schedule(from_croniter(cron), "UTC")
        expected = list(islice(source_occurrences(cron), 20))
    except (EntryRefused, InvalidSchedule, ValueError):
        assume(False)
    assert list(schedule.occurrences(NOW, datetime(2150, 1, 1, tzinfo=UTC), 20)) == expected


@public.each_of("procrastinate")
def test_public_schedules_match_procrastinate(given: str) -> None:
    schedule = parse_schedule(from_croniter(given), "UTC")
    occurrences = list(schedule.occurrences(NOW, datetime(2090, 1, 1, tzinfo=UTC), public.COUNT))
    assert occurrences == list(islice(source_occurrences(given), public.COUNT))
