"""Test the import of django-cron's classes: jobs are due when the real package runs them.

The models of django-cron can't be loaded by a Django that django-dcron supports. The log of these
tests is a model with the same fields, which the real code reads and writes.
"""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import django_cron as real
import pytest
from django.apps import apps
from django.db import models
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pytest_django import Settings

from django_dcron.contrib.importers import django_cron
from django_dcron.contrib.importers.source_contents import (
    EntryOmitted,
    EntryRefused,
    SourceEntry,
    SourceProblem,
)
from django_dcron.models import Cursor, Job, Run
from django_dcron.schedules.schedule import parse_schedule
from tests import depth
from tests.contrib.importers import public
from tests.contrib.importers.conftest import Install
from tests.management.calling import call

pytestmark = pytest.mark.django_db

NOW = datetime(2027, 1, 1, 12, tzinfo=UTC)
HERE = "tests.contrib.importers.cron_classes"
MINUTE = timedelta(minutes=1)
MAX_TICKS = 500


def stand_in(name: str) -> ModuleType:
    """Replace a module that needs an old Django or a missing package."""
    module = sys.modules[name] = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    return module


@pytest.fixture(scope="module", autouse=True)
def log(install: Install) -> Iterator[Any]:
    names = [f"django_cron.{name}" for name in ("models", "admin", "cron")]
    module, *_others = map(stand_in, names)

    class CronJobLog(models.Model):  # noqa: DJ008
        code = models.CharField(max_length=64, db_index=True)
        start_time = models.DateTimeField(db_index=True)
        end_time = models.DateTimeField(db_index=True)
        is_success = models.BooleanField(default=False)
        message = models.TextField(default="", blank=True)
        ran_at_time = models.TimeField(null=True, blank=True, db_index=True, editable=False)

        __module__ = "django_cron.models"

        class Meta:
            app_label = "django_cron"

    module.CronJobLog = CronJobLog  # type: ignore[attr-defined]
    install("django_cron")
    yield CronJobLog
    # A worker may set up this fixture again, after tests of other modules.
    del apps.all_models["django_cron"]["cronjoblog"]
    for name in names:
        del sys.modules[name]


@pytest.fixture
def classes(settings: Settings) -> Any:
    def choose(*names: str) -> dict[str, SourceEntry]:
        settings.CRON_CLASSES = [name if "." in name else f"{HERE}.{name}" for name in names]
        return {each.name: each for each in django_cron.read(NOW).entries}

    return choose


def test_classes_with_all_options_are_converted(classes: Any, settings: Settings) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    nightly = classes("Nightly")["shop.nightly"]
    assert nightly.values == {
        "target": f"{HERE}.Nightly",
        "args": [],
        "kwargs": {},
        "overlap_policy": "skip",
        "enabled": True,
        "pause_reason": "",
        "max_attempts": 9,  # until midnight
        "retry_backoff": timedelta(hours=1),
        "retry_backoff_factor": 1.0,
        "retry_backoff_max": timedelta(hours=1),
        "retry_jitter": 0.0,
        "retry_on": [],
        "never_retry_on": [],
        "schedule": "30 3,15 * * *",
        "timezone": "Europe/Berlin",
        "starts_at": None,
    }
    assert len(nightly.warnings) == 1
    unregistered = classes("Unregistered")["shop.unregistered"]
    assert unregistered.values["overlap_policy"] == "allow"
    assert unregistered.values["max_attempts"] == 100
    for message in ("@shared_task(name=", "get_prev_success_cron", "without a limit"):
        assert any(message in warning for warning in unregistered.warnings)


def test_classes_of_django_cron_become_jobs(classes: Any) -> None:
    classes("Nightly", "Unregistered")
    done = call("import", "django-cron", "--apply")
    assert done.code == 1
    job = Job.objects.get()
    assert (job.name, job.target, job.import_key) == (
        "shop.nightly",
        f"{HERE}.Nightly",
        "shop.nightly",
    )
    assert "1 same" in call("import", "django-cron").out


def test_handover_continues_after_the_last_logged_run(classes: Any, log: Any) -> None:
    """The job runs what was due since the last run of django-cron."""
    classes("Nightly")
    assert call("import", "django-cron", "--apply", "--disabled").code == 0
    assert not Job.objects.get().enabled
    at = datetime.now(UTC) - timedelta(days=2)
    Cursor.objects.update(placed_at=at - timedelta(hours=1))
    log.objects.create(
        code="shop.nightly", start_time=at, end_time=at, is_success=True, ran_at_time="3:30"
    )
    assert call("handover", "django-cron", "--apply").code == 0
    assert Job.objects.get().enabled
    due = [run.missed_from or run.scheduled_at for run in Run.objects.all()]
    assert at < min(due) < at + timedelta(days=1)


def test_class_with_several_schedules_becomes_several_jobs(classes: Any) -> None:
    found = classes("Mixed")
    assert {name: each.values["schedule"] for name, each in found.items()} == {
        "shop.mixed": "@every 1h30m",
        "shop.mixed at 06:00": "0 6,18 * * *",
        "shop.mixed at 07:24": "24 7,12 * * *",
    }
    for each in found.values():
        assert any("runcrons" in warning for warning in each.warnings)
        assert (each.name != "shop.mixed") == any(
            "limit with" in warning for warning in each.warnings
        )


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("Missing", "refused", "can't be imported"),
        ("WithoutCode", "refused", "attributes code"),
        ("WithoutFunction", "refused", "method do()"),
        ("OneDay", "refused", "isn't a list of days"),
        ("Friday13th", "refused", "must both match"),
        ("Odd", "refused", "run_every_mins 90 can't"),
        ("Zero", "refused", "call of runcrons"),
        ("NoTime", "refused", "'25:00'"),
        ("OfAFork", "refused", "run_between_times"),
        ("Never", "omitted", "neither"),
        ("NoDay", "omitted", "no day"),
        ("django_cron.cron.FailedRunsNotificationCronJob", "omitted", "alerts"),
    ],
)
def test_unsupported_classes_are_refused_or_omitted(
    name: str, kind: str, message: str, classes: Any
) -> None:
    (found,) = classes(name).values()
    assert message in getattr(found, kind)


def test_logged_runs_are_read(classes: Any, log: Any) -> None:
    start = NOW - timedelta(hours=9)

    def add(code: str, minutes: int, of: str | None, *, success: bool = True) -> datetime:
        at = start + timedelta(minutes=minutes)
        log.objects.create(
            code=code, start_time=at, end_time=at, is_success=success, ran_at_time=of
        )
        return at

    failed = add("shop.nightly", 30, "3:30", success=False)
    retried = add("shop.nightly", 60, "3:30")
    every = [add("shop.mixed", 5, None), add("shop.mixed", 95, None)]
    early = add("shop.mixed", 180, "6:00")
    found = classes("Nightly", "Mixed", "Missing")
    source_runs = django_cron.runs_since(start)
    assert source_runs.complete
    assert source_runs.times == {
        found["shop.nightly"].origin: [failed],
        found["shop.mixed"].origin: every,
        found["shop.mixed at 06:00"].origin: [early],
        found["shop.mixed at 07:24"].origin: [],
    }
    assert found["shop.nightly"].last_run == retried
    assert found["shop.mixed at 07:24"].last_run is None
    assert found["shop.mixed"].next_due == NOW  # overdue
    assert django_cron.runs_since(NOW).times[found["shop.mixed"].origin] == []


def test_classes_are_read_without_the_app(classes: Any, settings: Settings) -> None:
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "django_cron"]
    assert classes("Nightly")["shop.nightly"].last_run is None
    with pytest.raises(SourceProblem):
        django_cron.runs_since(NOW)
    settings.CRON_CLASSES = []
    assert call("import", "django-cron").code == 2


# --- The occurrences ------------------------------------------------------------------------------


class Clock:
    """A clock that advances a little each time it is read, like a real one."""

    def __init__(self, zone: str) -> None:
        self.zone = ZoneInfo(zone)
        self.at = NOW

    def __call__(self) -> datetime:
        self.at += timedelta(milliseconds=1)
        return self.at.astimezone(self.zone)

    def today(self) -> datetime:
        return self().replace(tzinfo=None)


def source_runs(
    schedule: real.Schedule,
    ticks: list[datetime],
    zone: str,
    monkeypatch: pytest.MonkeyPatch,
) -> list[datetime]:
    """Return the ticks at which the real package runs a class. Each tick calls ``runcrons``."""
    clock, runs = Clock(zone), []
    monkeypatch.setattr(real, "get_current_time", clock)
    monkeypatch.setattr(real, "datetime", SimpleNamespace(today=clock.today))
    for tick in ticks:
        clock.at = tick
        manager = real.CronJobManager(real.CronJobBase, silent=True)
        manager.cron_job = SimpleNamespace(code="simulated", schedule=schedule)
        with manager:
            while manager.should_run_now():
                manager.make_log("", success=True)
                runs.append(tick)
                manager.__enter__()
    return runs


def compare(
    schedule: real.Schedule,
    log: Any,
    monkeypatch: pytest.MonkeyPatch,
    zone: str = "UTC",
    count: int = 20,
) -> list[datetime]:
    """Compare the next occurrences of all jobs of a class with the runs of django-cron.

    ``runcrons`` is called each hour (less often if the period is long), and in the minutes before,
    at and after each occurrence of the jobs.
    """
    attributes = {"code": "simulated", "schedule": schedule, "do": lambda _self: None}
    part = type("Simulated", (real.CronJobBase,), attributes)
    monkeypatch.setattr(django_cron, "import_string", lambda _path: part)
    monkeypatch.setattr(django_cron.settings, "TIME_ZONE", zone)
    log.objects.all().delete()
    interval = schedule.run_every_mins and not (
        schedule.run_on_days or schedule.run_monthly_on_days
    )
    tomorrow = NOW.astimezone(ZoneInfo(zone)).replace(hour=0) + timedelta(days=1)
    begin = NOW + MINUTE if interval else tomorrow.astimezone(UTC)
    before = NOW if interval else NOW - timedelta(days=400)
    for of in (None, *schedule.run_at_times):
        log.objects.create(
            code="simulated", start_time=before, end_time=before, is_success=True, ran_at_time=of
        )
    occurrences: list[datetime] = []
    for each in django_cron._parts("shop.Simulated"):
        values = (
            django_cron._at_times(each)
            if each.times
            else django_cron._every(each, NOW, lambda _warning: None)
        )
        parsed = parse_schedule(values["schedule"], values["timezone"])
        if parsed.interval:
            occurrences += [NOW + parsed.interval * number for number in range(1, count + 1)]
        else:
            horizon = NOW + timedelta(days=4000)
            occurrences += parsed.occurrences(begin - timedelta(seconds=1), horizon, count)
    occurrences = sorted(occurrences)[:count]
    hours = int((occurrences[-1] - begin) / timedelta(hours=1)) + 1
    step = hours // MAX_TICKS + 1
    ticks = {begin + timedelta(hours=number) for number in range(0, hours, step)}
    ticks |= {at + MINUTE * number for at in occurrences for number in (-1, 0, 1)}
    ticks = {tick for tick in ticks if begin <= tick <= occurrences[-1]}
    assert source_runs(schedule, sorted(ticks), zone, monkeypatch) == occurrences
    return occurrences


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York"])
@pytest.mark.parametrize(
    "options",
    [
        {"run_at_times": ["0:00"]},
        {"run_at_times": ["6:00", "18:30"]},
        {"run_at_times": ["23:59"], "run_on_days": [0, 6]},
        {"run_at_times": ["12:00"], "run_monthly_on_days": [1, 10, 31]},
        {"run_every_mins": 7},
        {"run_every_mins": 15, "run_on_days": [4]},
        {"run_every_mins": 480, "run_on_days": [0, 1, 2]},
        {"run_every_mins": 1440, "run_monthly_on_days": [1, 2, 15]},
    ],
)
def test_occurrences_match_django_cron(
    options: Any, zone: str, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare(real.Schedule(**options), log, monkeypatch, zone)


@pytest.mark.parametrize(
    ("midnight", "expected"),
    [
        (datetime(2027, 3, 27, 23, tzinfo=UTC), datetime(2027, 3, 28, 1, tzinfo=UTC)),
        (datetime(2027, 10, 30, 22, tzinfo=UTC), datetime(2027, 10, 31, 0, 30, tzinfo=UTC)),
    ],
)
def test_times_at_clock_changes_match_django_cron(
    midnight: datetime, expected: datetime, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Berlin, 02:30 doesn't exist on the first day and occurs twice on the second day."""
    zone, schedule = "Europe/Berlin", real.Schedule(run_at_times=["2:30"])
    ticks = [midnight + MINUTE * number for number in range(8 * 60)]
    occurrences = parse_schedule("30 2 * * *", zone).occurrences(midnight, ticks[-1])
    assert source_runs(schedule, ticks, zone, monkeypatch) == list(occurrences) == [expected]


TIMES = st.tuples(st.integers(0, 23), st.integers(0, 59)).map(lambda at: f"{at[0]}:{at[1]:02}")


@hypothesis_settings(max_examples=depth.examples(15), deadline=None)
@given(
    times=st.lists(TIMES, min_size=1, max_size=4, unique=True),
    weekdays=st.none() | st.sets(st.integers(0, 6), min_size=1),
    days=st.none() | st.sets(st.integers(1, 31), min_size=1, max_size=20),
)
def test_random_times_match_django_cron(
    times: list[str], weekdays: set[int] | None, days: set[int] | None, log: Any
) -> None:
    schedule = real.Schedule(run_at_times=times, run_on_days=weekdays, run_monthly_on_days=days)
    with pytest.MonkeyPatch.context() as monkeypatch:
        try:
            compare(schedule, log, monkeypatch, count=8)
        except (EntryOmitted, EntryRefused):
            assume(False)


@public.each_of("django-cron")
def test_public_schedules_match_django_cron(
    given: dict[str, Any], log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(compare(real.Schedule(**given), log, monkeypatch, count=public.COUNT)) == 20
