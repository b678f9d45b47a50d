"""Test the import from the real django-tasks-scheduler: jobs are due when it schedules the task."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.contrib.contenttypes.models import ContentType
from django.utils import timezone
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pytest_django import Settings

from django_dcron.contrib.importers import tasks_scheduler
from django_dcron.contrib.importers.croniter_text import from_croniter
from django_dcron.contrib.importers.source_contents import EntryRefused, SourceEntry, SourceProblem
from django_dcron.exceptions import InvalidSchedule
from django_dcron.jobs import placement
from django_dcron.models import Job
from django_dcron.schedules.schedule import parse_schedule
from tests import depth
from tests.contrib.importers.conftest import Install
from tests.contrib.importers.test_django_q import numbers
from tests.management.calling import call

pytestmark = pytest.mark.django_db

NOW = datetime(2027, 1, 1, 12, tzinfo=UTC)
FAR = datetime(2090, 5, 4, 9, 30, tzinfo=UTC)


@pytest.fixture(scope="module", autouse=True)
def tables(install: Install) -> None:
    queue = {"URL": "redis://localhost:1/0"}  # never connected to
    install("scheduler", SCHEDULER_QUEUES={"default": queue, "slow": queue})


@pytest.fixture(autouse=True)
def content_types() -> Iterator[None]:
    """Forget the content types that a test created and that were rolled back."""
    yield
    ContentType.objects.clear_cache()


def make(kind: str = "Cron", name: str = "a", **fields: Any) -> Any:
    """Create a row without scheduling it in Redis."""
    from scheduler.models import Task

    given: dict[str, Any] = {"callable": "tests.app.tasks.echo", "queue": "default"}
    if kind == "Cron":
        given["cron_string"] = "30 9 * * *"
    row = Task(name=name, task_type=f"{kind}TaskType", **given | fields)
    row.save(schedule_job=False, clean=False)
    return row


def add_argument(row: Any, kind: str, text: str, key: str = "") -> None:
    from scheduler.models.args import TaskArg, TaskKwarg

    model, extra = (TaskKwarg, {"key": key}) if key else (TaskArg, {})
    content_type = ContentType.objects.get_for_model(type(row))
    model.objects.create(
        arg_type=kind, val=text, content_type=content_type, object_id=row.pk, **extra
    )


def found(now: datetime = NOW) -> SourceEntry:
    (one,) = tasks_scheduler.read(now).entries
    return one


def test_row_with_all_options_is_imported() -> None:
    row = make(
        name="nightly report", queue="slow", timeout=90, result_ttl=600, at_front=True, repeat=3
    )
    for kind, text in (("int", "1"), ("str", "two"), ("bool", "True"), ("float", "1.5")):
        add_argument(row, kind, text)
    add_argument(row, "json", '{"city": ["Ulm"]}', key="where")
    done = call("import", "django-tasks-scheduler", "--apply")
    assert done.code == 0
    job = Job.objects.get()
    assert (job.name, job.schedule, job.timezone) == ("nightly report", "30 9 * * *", "UTC")
    assert (job.args, job.kwargs) == ([1, "two", True, 1.5], {"where": {"city": ["Ulm"]}})
    assert (job.target, job.timeout, job.enabled) == (
        "tests.app.tasks.echo",
        timedelta(seconds=90),
        True,
    )
    for message in ("queue 'slow'", "result_ttl 600", "at_front", "ADMINS"):
        assert message in done.out
    assert "1 same" in call("import", "django-tasks-scheduler").out


def test_argument_values_match_the_source() -> None:
    row = make()
    for kind, text in (("int", "-3"), ("bool", "tRue"), ("bool", "no"), ("json", "[null]")):
        add_argument(row, kind, text)
    assert found().values["args"] == row.parse_args()


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("callable", "os.getcwd"),
        ("datetime", "2027-01-01"),
        ("int", "x"),
        ("json", "{"),
        ("float", "nan"),
        ("other", "x"),
    ],
)
def test_arguments_that_are_not_json_are_refused(kind: str, text: str) -> None:
    add_argument(make(), kind, text)
    assert "argument" in found().refused or "args" in found().refused


@pytest.mark.parametrize(("timeout", "seconds"), [(None, 300), (0, 300), (20, 20), (-1, None)])
def test_missing_timeout_becomes_the_default_of_the_source(
    timeout: int | None, seconds: int | None
) -> None:
    make(timeout=timeout)
    assert found().values["timeout"] == (None if seconds is None else timedelta(seconds=seconds))


def test_one_time_task_is_imported_refused_or_omitted() -> None:
    row = make("Once", scheduled_time=FAR)
    assert found().values["schedule"] == "@at 2090-05-04T09:30:00Z"
    assert "has passed" in found(FAR).refused
    row.failed_runs = 1
    row.save(schedule_job=False, clean=False)
    assert found(FAR).omitted
    row.failed_runs, row.scheduled_time = 0, None
    row.save(schedule_job=False, clean=False)
    assert found().omitted


def test_disabled_task_is_paused() -> None:
    make(enabled=False)
    assert (found().values["enabled"], bool(found().values["pause_reason"])) == (False, True)


@pytest.mark.parametrize("is_enabled", [False, True])
def test_refused_task_may_be_disabled(is_enabled: bool) -> None:
    make(enabled=is_enabled, cron_string="odd")
    assert (bool(found().refused), found().is_enabled) == (True, is_enabled)


def test_last_run_is_the_latest_end() -> None:
    make(last_successful_run=NOW - timedelta(hours=2), last_failed_run=NOW - timedelta(hours=1))
    assert found().last_run == NOW - timedelta(hours=1)
    with pytest.raises(SourceProblem):
        tasks_scheduler.runs_since(NOW)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "Repeatable", "interval": None}, "no interval"),
        ({"kind": "Repeatable", "interval": 5, "repeat": 2}, "scheduled time"),
        ({"kind": "Other"}, "unknown task type"),
        ({"cron_string": "61 * * * *"}, "croniter"),
        ({"cron_string": None}, "croniter"),
    ],
)
def test_unsupported_rows_are_refused(fields: dict[str, Any], message: str) -> None:
    make(**fields)
    assert message in found().refused


def test_missing_app_is_a_usage_error(settings: Settings) -> None:
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "scheduler"]
    assert call("import", "django-tasks-scheduler").code == 2


# --- The occurrences ------------------------------------------------------------------------------


def source_occurrences(
    row: Any, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> Iterator[datetime]:
    """Yield the times for which the row schedules its next run, one after the other."""
    while True:
        with monkeypatch.context() as clock:
            clock.setattr(timezone, "now", lambda now=now: now)
            at, row.repeat = row._next_schedule()
        if at is None or at < now:
            return
        yield at
        row.scheduled_time, now = at, at + timedelta(seconds=1)


@pytest.mark.parametrize(
    ("interval", "unit", "repeat", "scheduled"),
    [
        (20, "minutes", None, NOW + timedelta(minutes=7)),
        (3, "hours", None, NOW - timedelta(minutes=7)),
        (1, "weeks", None, NOW - timedelta(days=20)),
        (2, "days", 5, NOW + timedelta(days=1)),
        (2, "days", 5, NOW - timedelta(days=3)),
        (45, "seconds", 30, NOW - timedelta(seconds=100)),
        (1, "hours", 0, NOW + timedelta(minutes=7)),
    ],
)
def test_intervals_keep_their_phase_and_end(
    interval: int,
    unit: str,
    repeat: int | None,
    scheduled: datetime,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = make(
        "Repeatable", interval=interval, interval_unit=unit, repeat=repeat, scheduled_time=scheduled
    )
    entry = found()
    starts_at = entry.next_due or entry.values["starts_at"]
    timetable = placement.timetable_of(
        Job(name="a", **entry.values | {"starts_at": starts_at, "enabled": True})
    )
    occurrences = [timetable.first_after(NOW)]
    while occurrences[-1] is not None and len(occurrences) < 21:
        occurrences.append(timetable.next_after(occurrences[-1]))
    expected = list(islice(source_occurrences(row, NOW, monkeypatch), 21))
    assert [each for each in occurrences if each is not None] == expected


def test_later_import_of_remaining_repeats_changes_nothing() -> None:
    make("Repeatable", interval=2, interval_unit="days", repeat=5, scheduled_time=NOW)
    assert found(NOW + timedelta(days=3)).values == found(NOW).values


def test_row_without_remaining_repeats_is_omitted() -> None:
    make(
        "Repeatable",
        interval=1,
        interval_unit="hours",
        repeat=2,
        scheduled_time=NOW - timedelta(hours=3),
    )
    assert found().omitted


def test_interval_without_a_scheduled_time_has_no_phase() -> None:
    make("Repeatable", interval=5, interval_unit="minutes")
    assert (found().values["schedule"], found().next_due) == ("@every 5m", None)


@hypothesis_settings(max_examples=depth.examples(60), deadline=None)
@given(
    cron=st.tuples(
        numbers(0, 59), numbers(0, 23), numbers(1, 31), numbers(1, 12), numbers(0, 7)
    ).map(" ".join)
)
def test_occurrences_match_django_tasks_scheduler(cron: str) -> None:
    from scheduler.models import Task

    row = Task(name="a", task_type="CronTaskType", cron_string=cron)
    with pytest.MonkeyPatch.context() as monkeypatch:
        try:
            schedule = parse_schedule(from_croniter(cron), "UTC")
            expected = list(islice(source_occurrences(row, NOW, monkeypatch), 20))
        except (EntryRefused, InvalidSchedule, ValueError):
            assume(False)
    assert list(schedule.occurrences(NOW, datetime(2150, 1, 1, tzinfo=UTC), 20)) == expected


def test_project_without_time_zones_uses_local_time(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = make(cron_string="30 9 * * *")
    settings.USE_TZ, settings.TIME_ZONE = False, "Europe/Berlin"
    values = tasks_scheduler._schedule_fields(row, NOW, lambda _warning: None)
    assert values["timezone"] == "Europe/Berlin"
    local = NOW.astimezone(ZoneInfo("Europe/Berlin"))
    first = next(source_occurrences(row, local.replace(tzinfo=None), monkeypatch))
    schedule = parse_schedule(values["schedule"], values["timezone"])
    assert schedule.next_after(NOW) == first.replace(tzinfo=ZoneInfo("Europe/Berlin"))
