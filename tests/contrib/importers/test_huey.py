"""Test the import from the real Huey: jobs are due in the minutes that Huey's check accepts."""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from huey import MemoryHuey, crontab
from huey.serializer import Serializer
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pytest_django import Settings

from django_dcron.contrib.importers import huey as importer
from django_dcron.contrib.importers.schedule_fields import iso_in_site_zone
from django_dcron.contrib.importers.source_contents import EntryRefused, SourceEntry, SourceProblem
from django_dcron.exceptions import InvalidSchedule
from django_dcron.models import Job
from django_dcron.policies.retry import Failure, FailureClass
from django_dcron.schedules.schedule import parse_schedule
from tests import depth
from tests.app.tasks import echo
from tests.contrib.importers import huey_tasks, public
from tests.management.calling import call

pytestmark = pytest.mark.django_db

NOW = datetime(2027, 1, 1, 12, tzinfo=UTC)
HERE = "tests.contrib.importers.huey_tasks"
APP = f"{HERE}.huey"


def entries(app: str = APP) -> dict[str, SourceEntry]:
    return {each.key.rsplit(".", 1)[-1]: each for each in importer.read(NOW, app).entries}


def found(name: str) -> SourceEntry:
    return entries()[name]


@pytest.fixture
def huey() -> Iterator[MemoryHuey]:
    yield huey_tasks.huey
    huey_tasks.huey.storage.flush_all()


def test_task_with_all_options_is_converted() -> None:
    task = found("nightly")
    assert task.name == f"{HERE}.nightly"
    assert task.values == {
        "target": f"{HERE}.report",
        "args": [],
        "kwargs": {},
        "schedule": "*/20 8-17 * * 1-5",
        "timezone": "UTC",
        "starts_at": None,
        "ends_at": None,
        "start_deadline": timedelta(seconds=90),
        "timeout": timedelta(seconds=60),
        "max_attempts": 5,
        "retry_backoff": timedelta(seconds=10),
        "retry_backoff_factor": 3.0,
        "retry_backoff_max": timedelta(seconds=270),
        "retry_jitter": 0.0,
        "retry_on": [],
        "never_retry_on": [],
        "enabled": True,
        "pause_reason": "",
    }
    for message in ("priority 50", "team", "retries"):
        assert any(message in warning for warning in task.warnings)


def test_tasks_of_an_instance_become_jobs() -> None:
    done = call("import", "huey", "--app", APP, "--apply")
    assert done.code == 1
    assert set(Job.objects.values_list("name", "target", "schedule", "import_source")) == {
        (f"{HERE}.nightly", f"{HERE}.report", "*/20 8-17 * * 1-5", f"huey {APP}"),
        (f"{HERE}.may_have_its_task", f"{HERE}.may_have_its_task", "0 * * * *", f"huey {APP}"),
    }
    assert "2 same" in call("import", "huey", "--app", APP).out


def test_retry_waits_match_huey() -> None:
    """Huey multiplies the delay after each retry."""
    values = found("nightly").values
    policy = Job(name="a", **values).retry
    failure = Failure(FailureClass.TRANSIENT, frozenset({"ValueError"}))
    waits = [policy.retry_after(failure, attempt) for attempt in range(1, 6)]
    assert waits == [*(timedelta(seconds=number) for number in (10, 30, 90, 270)), None]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("friday_13th", "day of month and weekday"),
        ("own_rule", "function of the project"),
        ("needs_its_task", "current_run()"),
    ],
)
def test_unsupported_tasks_are_refused(name: str, message: str) -> None:
    assert message in found(name).refused


def test_optional_task_argument_is_a_warning() -> None:
    task = found("may_have_its_task")
    assert any("'task' isn't passed" in warning for warning in task.warnings)
    assert any("CancelExecution, RetryTask" in warning for warning in task.warnings)
    assert task.values["retry_backoff_factor"] == 1.0


def test_function_must_be_registered_as_a_target() -> None:
    assert found("plain").values["target"] == f"{HERE}.plain"
    shown = call("import", "huey", "--app", APP)
    assert f"Unknown target '{HERE}.plain'" in shown.out


def test_instance_without_utc_uses_the_time_zone_of_the_project(settings: Settings) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    assert entries(f"{HERE}.local")["at_night"].values["timezone"] == "Europe/Berlin"
    assert found("nightly").values["timezone"] == "UTC"


def test_revoked_tasks_are_paused(huey: MemoryHuey) -> None:
    until = NOW + timedelta(days=1)
    huey_tasks.report.revoke()
    huey_tasks.may_have_its_task.revoke(revoke_until=until)
    tasks = entries()
    assert tasks["nightly"].values["enabled"] is False
    assert "revoked" in tasks["nightly"].values["pause_reason"]
    assert iso_in_site_zone(until) in tasks["may_have_its_task"].values["pause_reason"]
    huey_tasks.report.revoke(revoke_once=True)
    huey_tasks.may_have_its_task.revoke(revoke_until=NOW - timedelta(days=1))
    tasks = entries()
    assert any("next run is revoked" in warning for warning in tasks["nightly"].warnings)
    assert [tasks[name].values["enabled"] for name in ("nightly", "may_have_its_task")] == [
        True
    ] * 2
    assert huey.is_revoked(huey_tasks.report, peek=True)  # as before


def test_refused_task_may_be_revoked(huey: MemoryHuey) -> None:
    assert (bool(found("own_rule").refused), found("own_rule").is_enabled) == (True, True)
    huey_tasks.own_rule.revoke(revoke_once=True)
    assert found("own_rule").is_enabled
    huey_tasks.own_rule.revoke(revoke_until=NOW + timedelta(days=1))
    assert not found("own_rule").is_enabled
    huey_tasks.own_rule.revoke()
    assert not found("own_rule").is_enabled


def test_revoked_next_run_is_reported_by_each_import(huey: MemoryHuey) -> None:
    huey_tasks.report.revoke(revoke_once=True)
    for _ in range(2):
        assert "next run is revoked" in call("import", "huey", "--app", APP, "--apply").out


def test_unreadable_revocations_are_noted(
    huey: MemoryHuey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huey, "serializer", Serializer(compression=True))
    huey_tasks.report.revoke()
    (note,) = importer.read(NOW, APP).notes
    assert "Pause these jobs" in note
    monkeypatch.undo()

    def fail(*_args: Any) -> None:
        raise ConnectionError("refused")

    monkeypatch.setattr(huey.storage, "peek_data", fail)
    (note,) = importer.read(NOW, APP).notes
    assert "refused" in note


def test_hooks_are_listed(huey: MemoryHuey) -> None:
    @huey.pre_execute()
    def count(task: Any) -> None:
        pass

    @huey.signal()
    def page(signal: str, task: Any) -> None:
        pass

    try:
        (note,) = importer.read(NOW, APP).notes
    finally:
        huey.unregister_pre_execute(count)
        huey.disconnect_signal(page)
    assert "count, page" in note


def test_expiry_becomes_the_end_or_the_start_deadline() -> None:
    instance = MemoryHuey("expiry")
    end = NOW + timedelta(days=9)
    task = instance.periodic_task(crontab(), expires=end)(sum)
    assert importer._expiry(task.task_class.default_expires, NOW)["ends_at"] == end
    assert importer._expiry(timedelta(minutes=2), NOW)["start_deadline"] == timedelta(minutes=2)


def test_unreadable_source_or_wrong_option_is_a_usage_error(settings: Settings) -> None:
    for answer in (
        call("import", "huey"),
        call("import", "huey", "--app", "no.such.module"),
        call("import", "huey", "--app", f"{HERE}.crontab"),
        call("import", "redbeat", "--app", APP),
        call("import", "crontab", "--app", APP),
        call("handover", "huey", "--back"),
        call("handover", "redbeat", "--app", APP, "--back"),
    ):
        assert answer.code == 2
    assert "Sources:" not in call("import", "huey").err, "the source is known"
    assert "Sources: " in call("import", "hueyy").err
    with pytest.raises(SourceProblem):
        importer.runs_since(NOW)


def test_tasks_of_the_django_app_are_read(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "huey.contrib.djhuey"]
    settings.HUEY = huey_tasks.local
    monkeypatch.delitem(sys.modules, "huey.contrib.djhuey", raising=False)
    reading = importer.read(NOW)
    assert (reading.source, [each.key for each in reading.entries]) == (
        "huey",
        [f"{HERE}.at_night"],
    )
    from huey.contrib.djhuey import db_periodic_task

    task = db_periodic_task(crontab(minute="5"), name="wrapped")(echo)
    try:
        wrapped = {each.key: each for each in importer.read(NOW).entries}["tests.app.tasks.wrapped"]
    finally:
        task.unregister()
    assert wrapped.values["target"] == "tests.app.tasks.echo"


# --- The occurrences ------------------------------------------------------------------------------


def source_occurrences(fields: dict[str, Any], count: int, horizon: datetime) -> list[datetime]:
    """Return the minutes that Huey's own check accepts.

    Huey checks each minute of the clock, which is slow. This function asks Huey for the days and
    for the times of a day, and verifies that Huey accepts each of these times on each of the days.
    """
    days = crontab(
        **{name: fields[name] for name in ("month", "day", "day_of_week") if name in fields}
    )
    times = crontab(**{name: fields[name] for name in ("hour", "minute") if name in fields})
    check = crontab(**fields)
    day = NOW.replace(hour=0)
    minutes = [timedelta(minutes=number) for number in range(24 * 60)]
    minutes = [each for each in minutes if times(day + each)]
    accepted: list[datetime] = []
    while len(accepted) < count and day < horizon:
        if days(day):
            assert all(check(day + each) for each in minutes)
            accepted += [day + each for each in minutes if day + each > NOW]
        day += timedelta(days=1)
    return accepted[:count]


def job_occurrences(fields: dict[str, Any], count: int, horizon: datetime) -> list[datetime]:
    instance = MemoryHuey("schedules", immediate=False)
    instance.periodic_task(crontab(**fields))(lambda: None)
    (task,) = instance._registry._periodic_tasks
    schedule = parse_schedule(importer._schedule(task), "UTC")
    return list(schedule.occurrences(NOW, horizon, count))


def field(low: int, high: int, *, stepped: bool = True) -> st.SearchStrategy[str]:
    number = st.integers(low, high).map(str)
    span = st.tuples(number, number).map("-".join)
    every = st.integers(1, high).map(lambda step: f"*/{step}") if stepped else st.just("*")
    part = number | span | st.tuples(span, st.integers(1, high).map(str)).map("/".join) | every
    return st.lists(part, min_size=1, max_size=2).map(",".join) | st.just("*")


@hypothesis_settings(max_examples=depth.examples(100), deadline=None)
@given(
    fields=st.fixed_dictionaries(
        {
            "minute": field(0, 59),
            "hour": field(0, 23),
            "day": field(1, 31),
            "month": field(1, 12),
            "day_of_week": field(0, 7, stepped=False),
        }
    )
)
def test_occurrences_match_huey(fields: dict[str, str]) -> None:
    horizon = NOW + timedelta(days=3000)
    try:
        found = job_occurrences(fields, 20, horizon)
    except (EntryRefused, InvalidSchedule):
        assume(False)
    assert found == source_occurrences(fields, 20, horizon)


@public.each_of("huey")
def test_public_schedules_match_huey(given: dict[str, Any]) -> None:
    horizon = NOW + timedelta(days=10_000)
    expected = source_occurrences(given, public.COUNT, horizon)
    assert len(expected) == public.COUNT
    assert job_occurrences(given, public.COUNT, horizon) == expected
