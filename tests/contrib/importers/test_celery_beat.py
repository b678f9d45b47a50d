"""Test the import from the real django-celery-beat: jobs are due when beat would send the task."""

import ast
import json
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import schedules
from django.db import connection
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pytest_django import Settings

from django_dcron.contrib.importers import celery_beat, celery_config, celery_entry, received_runs
from django_dcron.contrib.importers.comparison import compare_entries
from django_dcron.contrib.importers.cron_text import DAYS_NOT_EXPRESSIBLE
from django_dcron.contrib.importers.entry_plans import EntryPlan, ImportOutcome
from django_dcron.contrib.importers.source_contents import EntryRefused, SourceEntry
from django_dcron.contrib.importers.writing import apply_entry_plans
from django_dcron.db.now import database_now
from django_dcron.jobs import placement, saving
from django_dcron.management.dcron import importing
from django_dcron.models import Job
from django_dcron.schedules.schedule import parse_schedule
from tests import depth
from tests.celery_app import app
from tests.contrib.importers.beat_rows import clocked
from tests.contrib.importers.conftest import Install
from tests.factories import make_job, make_run
from tests.management.calling import call

pytestmark = [pytest.mark.django_db, pytest.mark.celery_beat]

NOW = datetime(2027, 1, 1, 12, tzinfo=UTC)
FAR = datetime(2090, 5, 1, 9, 30, tzinfo=UTC)


@pytest.fixture(scope="module", autouse=True)
def tables(install: Install) -> None:
    install("django_celery_beat")


def interval(every: int = 5, period: str = "minutes") -> dict[str, Any]:
    from django_celery_beat.models import IntervalSchedule

    return {"interval": IntervalSchedule.objects.create(every=every, period=period)}


def crontab(zone: str = "UTC", **fields: str) -> dict[str, Any]:
    from django_celery_beat.models import CrontabSchedule

    return {"crontab": CrontabSchedule.objects.create(timezone=zone, **fields)}


def row(name: str = "a", **fields: Any) -> Any:
    from django_celery_beat.models import PeriodicTask

    return PeriodicTask.objects.create(name=name, **{"task": "tests.app.tasks.echo"} | fields)


def found(name: str = "a", now: datetime = NOW) -> SourceEntry:
    return next(each for each in celery_beat.read(now).entries if each.name == name)


@pytest.mark.parametrize(
    "command", [("import",), ("import", "--apply"), ("handover",), ("handover", "--apply")]
)
def test_rows_that_are_not_imported_are_listed_above_the_totals(command: tuple[str, ...]) -> None:
    every_minute = crontab("UTC")
    row("a", **every_minute, task="tests.app.tasks.unknown")
    row("b", **every_minute, headers=json.dumps({"tenant": 1}))
    row("c", **every_minute, task="celery.backend_cleanup")
    row("d", **every_minute)
    make_job(name="d", schedule="@daily", target="tests.app.tasks.echo")
    row("e", **every_minute)
    lines = call(command[0], "django-celery-beat", *command[1:]).out.splitlines()
    (totals,) = (number for number, line in enumerate(lines) if line.endswith("1 refused."))
    assert [line[:9] for line in lines[totals - 4 : totals]] == [
        "omitted c",
        "conflict ",  # with the reason
        "conflict ",  # with the schedules
        "refused a",
    ]
    assert sum(line.startswith(("omitted", "conflict", "refused")) for line in lines) == 4


def test_row_with_all_options_is_imported() -> None:
    row(
        "nightly report",
        **crontab("Europe/Berlin", minute="30", hour="3", day_of_week="mon-fri"),
        args=json.dumps([1, "two"]),
        kwargs=json.dumps({"city": "Ulm"}),
        queue="slow",
        priority=3,
        expire_seconds=90,
        start_time=FAR,
        description="For the sales team.",
    )
    shown = call("import", "django-celery-beat").out.splitlines()[0]
    for part in ('args=[1, "two"]', 'kwargs={"city": "Ulm"}', "queue=slow", "start_deadline=1m30s"):
        assert part in shown
    assert "retry" not in shown, "only what differs from the defaults"
    assert call("import", "django-celery-beat", "--apply").code == 0
    job = Job.objects.get(name="nightly report")
    assert (job.schedule, job.timezone) == ("30 3 * * mon-fri", "Europe/Berlin")
    assert (job.target, job.args, job.kwargs) == (
        "tests.app.tasks.echo",
        [1, "two"],
        {"city": "Ulm"},
    )
    assert (job.queue, job.priority, job.start_deadline) == ("slow", 3, timedelta(seconds=90))
    assert (job.starts_at, job.ends_at, job.enabled) == (FAR, None, True)
    assert job.description == "For the sales team."
    assert job.cursor.next_at == datetime(2090, 5, 2, 1, 30, tzinfo=UTC)


def test_second_import_changes_nothing() -> None:
    row("a", **crontab(minute="*/5"))
    row("b", **interval(), enabled=False)
    row("c", **clocked(FAR))
    assert call("import", "django-celery-beat", "--apply").code == 0
    versions = list(Job.objects.values_list("name", "version"))
    again = call("import", "django-celery-beat", "--apply")
    assert (again.code, again.out) == (0, "3 same.\n")
    assert list(Job.objects.values_list("name", "version")) == versions


@pytest.mark.parametrize(
    ("every", "period", "text"),
    [
        (5, "minutes", "@every 5m"),
        (2, "days", "@every 48h"),
        (90, "seconds", "@every 1m30s"),
        (3, "hours", "@every 3h"),
        (2_000_000, "microseconds", "@every 2s"),
    ],
)
def test_intervals_become_every_schedules(every: int, period: str, text: str) -> None:
    row(**interval(every, period))
    assert found().values["schedule"] == text


def test_interval_with_fractions_of_a_second_is_refused() -> None:
    row(**interval(1_500_000, "microseconds"))
    assert "interval 1.5 s" in found().refused


def test_solar_schedule_is_refused() -> None:
    from django_celery_beat.models import SolarSchedule

    solar = SolarSchedule.objects.create(event="sunset", latitude="52.5", longitude="13.4")
    row(solar=solar)
    assert "sunset at 52.5" in found().refused
    assert "solar" in found().refused


def test_clocked_row_becomes_an_at_schedule() -> None:
    row(**clocked(FAR))
    values = found().values
    assert (values["schedule"], values["timezone"]) == ("@at 2090-05-01T09:30:00Z", "UTC")


def test_clocked_time_is_rounded_up_to_a_whole_second() -> None:
    row(**clocked(FAR + timedelta(milliseconds=1)))
    assert found().values["schedule"] == "@at 2090-05-01T09:30:01Z"
    assert "whole second" in found().warnings[0]


def test_missed_clocked_row_is_refused_and_finished_row_is_omitted() -> None:
    row("missed", **clocked(NOW - timedelta(hours=1)))
    row("done", **clocked(NOW - timedelta(hours=1)), enabled=False)
    assert "has passed" in found("missed").refused
    assert found("done").omitted


def test_times_are_in_the_zone_of_the_site(settings: Settings) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    odd = timedelta(microseconds=8350)
    row("once", **clocked(FAR + odd))
    row("later", **crontab(), start_time=FAR)
    shown = call("import", "django-celery-beat").out
    times = re.findall(r"20\d\d-\d\d-\d\dT[^\s,]+", shown)
    assert set(times) == {
        "2090-05-01T11:30:00+02:00",
        "2090-05-01T11:30:00.008350+02:00",
        "2090-05-01T11:30:01+02:00",
    }
    row("missed", **clocked(NOW - timedelta(hours=1) + odd))
    row("expired", **crontab(), expires=NOW - timedelta(hours=1) + odd)
    assert "2027-01-01T12:00:00+01:00, has passed" in found("missed").refused
    assert found("expired").omitted == "expired at 2027-01-01T12:00:00+01:00"


def test_one_off_crontab_runs_only_at_its_next_occurrence() -> None:
    from django_celery_beat.models import PeriodicTask

    row(**crontab("Europe/Berlin", minute="0", hour="9"), one_off=True)
    PeriodicTask.objects.update(date_changed=NOW)
    assert found().values["schedule"] == "@at 2027-01-02T08:00:00Z"
    assert found(now=NOW + timedelta(hours=19)).values["schedule"] == "@at 2027-01-02T08:00:00Z"
    passed = found(now=NOW + timedelta(hours=20))
    assert (passed.has_passed, "2027-01-02T08:00:00Z, has passed" in passed.refused) == (True, True)


def test_one_off_crontab_respects_its_start() -> None:
    row(**crontab(minute="0", hour="9"), one_off=True, start_time=FAR)
    assert found().values["schedule"] == "@at 2090-05-02T09:00:00Z"
    assert found().values["starts_at"] is None


def test_one_off_interval_is_measured_from_its_last_change() -> None:
    made = row(**interval(3, "days"), one_off=True)
    at = made.date_changed + timedelta(days=3)
    text = found(now=made.date_changed).values["schedule"]
    assert parse_schedule(text).at is not None
    assert timedelta() <= parse_schedule(text).at - at < timedelta(seconds=1)  # type: ignore[operator]


def test_expires_becomes_the_end() -> None:
    row(**crontab(minute="30", hour="9"), expires=FAR)
    job = Job(name="a", **found().values)
    last = FAR - timedelta(days=1)
    timetable = placement.timetable_of(job)
    assert timetable.first_after(last - timedelta(seconds=1)) == last
    assert timetable.first_after(last) is None  # beat disables the row at FAR


def test_occurrence_at_the_start_runs_here_but_not_in_beat() -> None:
    made = row(**crontab(), start_time=FAR)
    assert placement.timetable_of(Job(name="a", **found().values)).first_after(NOW) == FAR
    assert made.due_start_time(UTC) == FAR + timedelta(minutes=1)


def test_row_without_an_occurrence_before_it_expires_is_omitted() -> None:
    soon = {"expires": NOW + timedelta(minutes=30)}
    before = {"last_run_at": NOW - timedelta(days=1)}
    row("daily", **crontab(minute="0", hour="9"), **soon, last_run_at=NOW - timedelta(hours=3))
    row("overdue", **crontab(minute="0", hour="9"), **soon, **before)
    row("weekly", **interval(7, "days"), **soon, **before)
    row("hourly", **interval(1, "hours"), **soon, **before)
    row("once", **clocked(NOW + timedelta(hours=1)), **soon)
    row("later", **crontab(), **soon, start_time=NOW + timedelta(hours=1))
    row("later interval", **interval(), **soon, start_time=NOW + timedelta(hours=1))
    short = {"expires": NOW + timedelta(minutes=2)}
    last = {"last_run_at": NOW - timedelta(minutes=4)}
    row("short", **interval(5, "minutes"), **short, **last)
    row(
        "short with start",
        **interval(5, "minutes"),
        **short,
        **last,
        start_time=NOW - timedelta(days=7),
    )
    row("short, ran", **interval(7, "minutes"), **short, **last)
    omitted = {entry.name for entry in celery_beat.read(NOW).entries if entry.omitted}
    assert omitted == {"daily", "weekly", "once", "later", "later interval", "short, ran"}
    assert "ends at 2027-01-01T12:30:00Z" in found("daily").omitted


def test_expiry_beyond_the_supported_range_is_no_end() -> None:
    row(**crontab(), expires=datetime(9999, 12, 31, tzinfo=UTC))
    assert (found().refused, found().values["ends_at"]) == ("", None)


def test_expired_row_is_not_imported() -> None:
    row(**crontab(minute="30"), expires=NOW)
    assert "expired" in found().omitted


def test_routing_is_refused_without_a_queue_and_reported_with_one() -> None:
    row("routed", **interval(), exchange="x", routing_key="y")
    row("both", **interval(), routing_key="y", queue="q")
    assert "exchange 'x', routing_key 'y'" in found("routed").refused
    assert found("both").values["queue"] == "q"
    assert "routing_key 'y'" in found("both").warnings[0]


def test_headers_and_high_priorities_are_reported() -> None:
    row(**interval(), headers=json.dumps({"tenant": 7}), priority=200)
    assert "tenant" in found().warnings[0]
    assert found().values["priority"] == 9
    assert "200" in found().warnings[1]


@pytest.mark.parametrize(
    ("field", "text", "message"),
    [
        ("args", "[1", "is not JSON"),
        ("args", '{"city": "Ulm"}', "not a JSON list"),
        ("kwargs", "[1]", "not a JSON object"),
        ("args", "[NaN]", "not a JSON value"),
        ("args", "[1e999]", "not a JSON value"),
        ("args", r'["\u0000"]', "can't be stored"),
        ("kwargs", '{"a": ' + "[" * 40 + "]" * 40 + "}", "can't be stored"),
        (
            "kwargs",
            '{"at": {"__type__": "datetime", "__value__": "2027-01-01"}}',
            "no datetime values",
        ),
        ("headers", "{", "is not JSON"),
    ],
)
def test_invalid_arguments_are_refused(field: str, text: str, message: str) -> None:
    row(**interval(), **{field: text})
    assert field in found().refused
    assert message in found().refused


@pytest.mark.parametrize(("args", "kwargs"), [("{}", "[]"), ("null", "null"), ("", "")])
def test_empty_arguments_are_none_as_in_beat(args: str, kwargs: str) -> None:
    row(**interval(), args=args, kwargs=kwargs)
    assert (found().values["args"], found().values["kwargs"]) == ([], {})


def test_invalid_crontab_is_refused() -> None:
    row("value", **crontab(minute="61"))
    row("syntax", **crontab(hour=","))
    assert "61" in found("value").refused
    assert "empty part" in found("syntax").refused


def test_crontab_uses_the_app_time_zone_if_beat_is_not_tz_aware(settings: Settings) -> None:
    settings.DJANGO_CELERY_BEAT_TZ_AWARE = False
    row(**crontab("Europe/Berlin", minute="0", hour="9"))
    assert found().values["timezone"] == "UTC"


def test_built_in_celery_tasks_are_not_imported() -> None:
    row("celery.backend_cleanup", **crontab(hour="4"), task="celery.backend_cleanup")
    assert "built-in" in found("celery.backend_cleanup").omitted


def test_row_of_an_unknown_task_is_refused_and_others_are_written() -> None:
    row("gone", **interval(), task="tests.app.tasks.gone")
    row("there", **interval())
    done = call("import", "django-celery-beat", "--apply")
    assert done.code == 1
    assert (
        "refused gone (periodic task 'gone') target: Unknown target 'tests.app.tasks.gone'"
        in done.out
    )
    assert done.err.startswith("1 of 2 ")
    assert list(Job.objects.values_list("name", flat=True)) == ["there"]


def test_rows_written_by_the_database_scheduler_are_read() -> None:
    """Import rows as ``CELERY_BEAT_SCHEDULE`` and code that adds entries create them."""
    from django_celery_beat.schedulers import ModelEntry

    ModelEntry.from_entry(
        "from settings",
        task="tests.app.tasks.echo",
        schedule=schedules.crontab(minute="0,30", hour="9"),
        args=(1,),
        options={"queue": "slow", "expire_seconds": 60},
    )
    values = found("from settings").values
    assert values["schedule"] == "0,30 9 * * *"
    assert (values["args"], values["queue"]) == ([1], "slow")


def test_long_interval_keeps_its_phase() -> None:
    from django_celery_beat.models import PeriodicTask

    row("a", **interval(7, "days"))
    row("b", **interval(7, "days"), start_time=FAR)
    row("c", **interval(5, "minutes"))
    row("new", **interval(7, "days"))
    row("passed", **interval(7, "days"), start_time=NOW - timedelta(days=1))
    ran = PeriodicTask.objects.filter(name__in="abc")
    ran.update(last_run_at=NOW - timedelta(days=6))
    PeriodicTask.objects.filter(name="new").update(date_changed=NOW - timedelta(days=2))
    assert found("a").next_due == NOW + timedelta(days=1)
    assert (found("b").next_due, found("b").values["starts_at"]) == (None, FAR)
    assert (found("c").next_due, found("c").values["starts_at"]) == (None, None)
    assert found("new").next_due == NOW + timedelta(days=5)
    assert found("passed").next_due == NOW, "beat would run it at once"


def test_retry_options_of_the_task_become_fields_of_the_job() -> None:
    row("a", **interval(), task="tests.app.tasks.retry_by_itself")
    assert call("import", "django-celery-beat", "--apply").code == 0
    job = Job.objects.get()
    assert (job.max_attempts, job.retry_on) == (4, ["ConnectionError"])
    job.max_attempts = 2
    saving.save(job)
    again = call("import", "django-celery-beat", "--json").json["jobs"][0]
    assert (again["outcome"], again["kept"]) == ("kept", {"max_attempts": {"from": 2, "to": 4}})


def test_task_that_reads_the_name_of_its_row_gets_a_warning() -> None:
    name = "tests.importers.named"

    @app.task(name=name, bind=True, lazy=False, shared=False)
    def named(self: Any) -> Any:
        return self.request.periodic_task_name

    try:
        row(**interval(), task=name)
        [warning] = found().warnings
    finally:
        app.tasks.pop(name, None)
    assert "periodic_task_name" in warning


def test_row_is_identified_by_its_primary_key() -> None:
    from django_celery_beat.models import PeriodicTask

    made = row("a", **crontab(minute="5"))
    assert call("import", "django-celery-beat", "--apply").code == 0
    PeriodicTask.objects.filter(pk=made.pk).update(name="b")
    renamed = call("import", "django-celery-beat", "--apply", "--json").json
    assert renamed["jobs"][0]["kept"] == {"name": {"from": "a", "to": "b"}}
    made.delete()
    gone = call("import", "django-celery-beat", "--json").json
    assert gone["gone"] == [{"namespace": "default", "name": "a", "enabled": True}]


def test_last_run_is_read() -> None:
    from django_celery_beat.models import PeriodicTask

    row("a", **interval())
    row("b", **interval())
    PeriodicTask.objects.filter(name="a").update(last_run_at=NOW)
    source_runs = celery_beat.runs_since(NOW)
    assert (source_runs.times, source_runs.complete) == ({found("a").origin: [NOW]}, False)
    assert celery_beat.runs_since(NOW + timedelta(seconds=1)).times == {}


@pytest.mark.parametrize(
    ("stored", "received", "latest"),
    [
        (0, 301, 301),
        (0, 120, 0),  # probably the message of the stored run, which waited in its queue
        (30, 0, 30),
    ],
)
def test_report_knows_at_once_what_workers_received(
    stored: int, received: int, latest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beat stores the last run up to three minutes later. An entry has only its latest run."""
    from django_celery_beat.models import PeriodicTask

    row("alone", task="tests.app.tasks.ok", **interval())
    for name in ("shared", "shared-too"):
        row(name, **interval())
    for name, enabled in (("fails", True), ("disabled", False)):
        row(name, task="tests.app.tasks.fail", enabled=enabled, **interval())
    at = NOW + timedelta(seconds=stored)
    PeriodicTask.objects.filter(name__in=["alone", "shared"]).update(last_run_at=at)
    ages = {
        f"tests.app.tasks.{name}": -timedelta(seconds=received) for name in ("ok", "echo", "fail")
    }
    monkeypatch.setattr(celery_config, "sent_by_beat", lambda: ages)
    monkeypatch.setattr(received_runs, "database_now", lambda using: NOW)
    entries = celery_beat.read(NOW).entries
    found_runs = received_runs.runs_to_compare("django-celery-beat", entries, NOW)
    assert {origin: [*times] for origin, times in found_runs.times.items()} == {
        found("alone").origin: [NOW + timedelta(seconds=latest)],
        found("shared").origin: [at],
    }
    assert (found_runs.shared_tasks, found_runs.missing_means_not_run) == ({}, True)


def test_report_says_that_beat_stores_only_the_latest_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from django_celery_beat.models import PeriodicTask

    monkeypatch.setattr(celery_config, "sent_by_beat", dict)
    row(**crontab())
    assert call("import", "django-celery-beat", "--apply", "--shadow").code == 0
    due = database_now("default").replace(second=0, microsecond=0) - timedelta(minutes=5)
    Job.objects.update(created_at=due - timedelta(hours=1))
    PeriodicTask.objects.update(last_run_at=due)
    make_run(Job.objects.get(), "succeeded", scheduled_at=due)
    once = call("import", "django-celery-beat", "--report")
    assert (once.code, "1 of 1 shadow run." in once.out) == (0, True)
    assert "only the latest run" not in once.out
    make_run(Job.objects.get(), "succeeded", scheduled_at=due - timedelta(minutes=1))
    assert "only the latest run" in call("import", "django-celery-beat", "--report").out


def test_report_with_too_little_says_when_beat_stores_its_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(celery_config, "sent_by_beat", dict)
    row(**crontab())
    call("import", "django-celery-beat", "--apply", "--shadow")
    due = database_now("default").replace(second=0, microsecond=0) - timedelta(minutes=2)
    Job.objects.update(created_at=due - timedelta(hours=1))
    make_run(Job.objects.get(), "succeeded", scheduled_at=due)
    early = call("import", "django-celery-beat", "--report")
    assert (early.code, "every 3 minutes" in early.err) == (2, True), early


# --- Occurrences compared with Celery -------------------------------------------------------------


def numbers(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high).map(str)
    span = st.tuples(number, number).map("-".join)
    step = st.integers(1, high).map(str)
    item = st.one_of(
        number, span, st.tuples(span, step).map("/".join), step.map("*/{}".format), st.just("*")
    )
    return st.lists(item, min_size=1, max_size=3).map(",".join) | st.just("*")


WEEKDAYS = numbers(0, 6) | st.sampled_from(
    ["mon-fri", "fri-mon", "sunday", "tue,thu", "saturday,sun"]
)
MONTHS = numbers(1, 12) | st.sampled_from(["jan", "nov-feb", "march,october"])


def source_occurrences(crontab: Any, after: datetime) -> Iterator[datetime]:
    """Yield the occurrences of Celery's crontab, each computed from the previous one."""
    moment = after
    crontab.nowfun = lambda: moment
    while True:
        moment = moment + crontab.remaining_estimate(moment)
        yield moment.astimezone(UTC)


@hypothesis_settings(max_examples=depth.examples(150), deadline=None)
@given(
    minute=numbers(0, 59),
    hour=numbers(0, 23),
    day_of_month=numbers(1, 31),
    month_of_year=MONTHS,
    day_of_week=WEEKDAYS,
)
def test_converted_crontab_matches_celery(**fields: str) -> None:
    from django_celery_beat.tzcrontab import TzAwareCrontab

    try:
        crontab = TzAwareCrontab(**fields, tz=UTC)
        text = celery_entry.crontab_text(crontab)
        schedule = parse_schedule(text, "UTC")
    except (ValueError, schedules.ParseException, EntryRefused):
        assume(False)
    after = datetime(2027, 1, 13, 10, 7, tzinfo=UTC)
    occurrences = list(schedule.occurrences(after, datetime(2060, 1, 1, tzinfo=UTC), 12))
    assert occurrences == list(islice(source_occurrences(crontab, after), len(occurrences)))


@hypothesis_settings(max_examples=depth.examples(60), deadline=None)
@given(minute=numbers(0, 59), hour=numbers(0, 23), day_of_week=WEEKDAYS)
def test_converted_crontab_matches_celery_in_a_time_zone(**fields: str) -> None:
    """The range excludes the clock changes of March and October."""
    from django_celery_beat.tzcrontab import TzAwareCrontab

    zone = ZoneInfo("Europe/Berlin")
    try:
        crontab = TzAwareCrontab(**fields, tz=zone)
    except (ValueError, schedules.ParseException):
        assume(False)
    schedule = parse_schedule(celery_entry.crontab_text(crontab), zone.key)
    after = datetime(2027, 4, 1, 0, 30, tzinfo=zone)
    occurrences = list(schedule.occurrences(after, datetime(2027, 10, 1, tzinfo=UTC), 40))
    assert occurrences == list(islice(source_occurrences(crontab, after), len(occurrences)))


@pytest.mark.parametrize(
    ("days", "weekdays", "text"),
    [
        ("*", "mon", "0 0 * * mon"),
        ("1-7", "mon", "0 0 * * 1#1"),
        ("8-14,22-28", "2,4", "0 0 * * 2#2,4#2,2#4,4#4"),
        ("1,15", "fri", "0 0 */31,15 * fri"),
        ("13", "fri,sun", "0 0 13 * */7,5"),
        ("*/2", "mon", "0 0 */2 * mon"),
        ("15", "*/2", "0 0 15 * */2"),
        ("1-31", "0-6", "0 0 * * *"),
        ("5", "fri-mon,2-4", "0 0 5 * *"),
    ],
)
def test_crontab_with_both_day_fields_is_converted(days: str, weekdays: str, text: str) -> None:
    crontab = schedules.crontab(minute="0", hour="0", day_of_month=days, day_of_week=weekdays)
    assert celery_entry.crontab_text(crontab) == text


def test_crontab_of_friday_the_13th_is_refused() -> None:
    with pytest.raises(EntryRefused, match=re.escape(DAYS_NOT_EXPRESSIBLE)):
        celery_entry.crontab_text(schedules.crontab(day_of_month="13", day_of_week="fri"))


def test_many_rows_are_compared_in_few_queries(django_assert_max_num_queries: Any) -> None:
    from django_celery_beat.models import PeriodicTask

    every = interval()
    PeriodicTask.objects.bulk_create(
        PeriodicTask(name=f"row {n}", task="tests.app.tasks.ok", **every) for n in range(700)
    )
    with django_assert_max_num_queries(4):
        plans = compare_entries(celery_beat.read(NOW).entries)
    assert {plan.outcome for plan in plans} == {ImportOutcome.CREATE}
    assert len(plans) == 700


def test_missing_queues_are_shown_as_a_setting(settings: Settings) -> None:
    settings.DCRON_QUEUES = ["celery", "report-*"]
    for name, queue in (("a", "slow"), ("b", "slow"), ("c", "report-1"), ("d", "celery")):
        row(name, **interval(), queue=queue)
    row("reserved", **interval(), queue="unacked")
    shown = call("import", "django-celery-beat")
    assert "DCRON_QUEUES = ['celery', 'report-*', 'slow']" in shown.out
    assert "-Q celery,slow" in shown.out, "a worker can't serve a pattern"
    first, second, *_ = shown.out.splitlines()
    assert first.startswith("! 2 entries need the settings")
    assert second.endswith(": slow")
    assert call("import", "django-celery-beat", "--json").json["queues"] == ["slow"]
    settings.DCRON_QUEUES = ["celery", "report-*", "slow"]
    assert "DCRON_QUEUES" not in call("import", "django-celery-beat").out


def test_one_round_is_enough_for_all_missing_queues(settings: Settings) -> None:
    settings.DCRON_QUEUES = None
    invalid = {"task": "command:unknown"}
    rows: list[tuple[str, dict[str, str]]] = [("slow", {}), ("mail", {}), ("fast", invalid)]
    for queue, fields in rows:
        row(queue, **interval(), queue=queue, **fields)
    (setting,) = [
        line for line in call("import", "django-celery-beat").out.splitlines() if "= [" in line
    ]
    settings.DCRON_QUEUES = ast.literal_eval(setting.removeprefix("DCRON_QUEUES = "))
    assert {"celery", "slow", "mail", "fast"} <= {*settings.DCRON_QUEUES}
    assert "DCRON_QUEUES" not in call("import", "django-celery-beat", "--apply").out
    assert Job.objects.count() == 2


def test_entry_whose_queue_was_corrected_here_needs_no_setting(settings: Settings) -> None:
    row("a", **interval(), queue="slow")
    settings.DCRON_QUEUES = ["celery", "slow"]
    call("import", "django-celery-beat", "--apply")
    settings.DCRON_QUEUES = ["celery"]
    job = Job.objects.get()
    job.queue = "celery"
    saving.save(job)
    assert "DCRON_QUEUES" not in call("import", "django-celery-beat").out


def test_same_warning_of_many_jobs_is_shown_once() -> None:
    for number in range(10):
        row(f"row {number}", **interval(), headers='{"tenant": 1}')
    shown = call("import", "django-celery-beat").out
    (line,) = [line for line in shown.splitlines() if "headers" in line]
    assert line.startswith("! row 0, row 1, row 2 and 7 more: headers ")


def test_warnings_of_a_few_jobs_are_shown_beside_each_of_them() -> None:
    headers = '{"tenant": 1}'
    row("feed acme", **interval(), headers=headers, priority=10)
    row("feed gone", **interval(), headers=headers, task="tests.app.tasks.gone")
    row("feed globex", **interval(), headers=headers, priority=10)
    row("other", **interval())

    shown = call("import", "django-celery-beat").out

    lines = [line for line in shown.splitlines() if re.match("create |refused |! feed", line)]
    assert [re.sub(r"(: \w+|@every|\(per).*", r"\1", line) for line in lines] == [
        "create feed acme @every",
        "! feed acme: headers",
        "! feed acme: priority",
        "create feed globex @every",
        "! feed globex: headers",
        "! feed globex: priority",
        "create other @every",
        "refused feed gone (per",
        "! feed gone: headers",
    ]


@pytest.mark.parametrize("options", [(), ("--apply",), ("--apply", "--atomic")])
def test_refused_rows_that_are_disabled_do_not_change_the_exit_code(
    options: tuple[str, ...],
) -> None:
    row("good", **interval())
    row("fast", **interval(500, "microseconds"), enabled=False)
    row("gone", **interval(), enabled=False, task="tests.app.tasks.gone")
    shown = call("import", "django-celery-beat", *options)
    assert shown.code == 0
    assert "refused fast (periodic task 'fast', disabled there) " in shown.out
    assert ", 2 refused (2 disabled there).\n" in shown.out
    assert Job.objects.count() == bool(options)
    jobs = call("import", "django-celery-beat", "--json").json["jobs"]
    enabled = {job["name"]: job["enabled_in_source"] for job in jobs}
    assert enabled == {"good": True, "fast": False, "gone": False}
    assert not problems("import", "django-celery-beat", "--json")

    row("unknown", **interval(), task="tests.app.tasks.unknown")
    shown = call("import", "django-celery-beat", *options)
    assert (shown.code, "1 of 4 entries" in shown.err) == (1, True)
    assert "3 refused (2 disabled there)." in shown.out
    assert problems("import", "django-celery-beat", "--json", *options) == ["unknown"]


def problems(*arguments: str) -> list[str]:
    """Return the names of the entries that change the exit code."""
    return [job["name"] for job in call(*arguments).json["jobs"] if job["is_problem"]]


def test_refused_row_whose_job_is_enabled_here_changes_the_exit_code() -> None:
    """The import doesn't pause the job, although the row is disabled."""
    changed = row("a", **interval())
    assert call("import", "django-celery-beat", "--apply").code == 0
    changed.interval = interval(500, "microseconds")["interval"]
    changed.enabled = False
    changed.save()
    shown = call("import", "django-celery-beat")
    assert shown.code == 1
    assert "disabled there, but its job is enabled here" in shown.out
    assert "1 refused." in shown.out
    assert problems("import", "django-celery-beat", "--json") == ["a"]
    assert call("pause", "a").code == 0
    shown = call("import", "django-celery-beat")
    assert (shown.code, "1 refused (1 disabled there)." in shown.out) == (0, True)


@pytest.mark.parametrize("options", [(), ("--atomic",)])
def test_disabled_row_that_is_refused_when_written_changes_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    row("good", **interval())
    row("off", **interval(), enabled=False)

    def apply_after_a_creation(plans: Iterable[EntryPlan]) -> Iterator[EntryPlan]:
        compared = list(plans)
        make_job(name="off")
        return apply_entry_plans(compared)

    monkeypatch.setattr(importing, "apply_entry_plans", apply_after_a_creation)
    shown = call("import", "django-celery-beat", "--apply", *options)
    assert (shown.code, "1 of 2 entries" in shown.err) == (1, True)
    assert "disabled there" not in shown.out
    assert Job.objects.filter(name="good").exists() == (not options)
    Job.objects.all().delete()
    assert problems("import", "django-celery-beat", "--apply", "--json", *options) == ["off"]


def test_malformed_entries_do_not_stop_the_import() -> None:
    """An unknown time zone raises an error in Django's query for all rows."""
    from django_celery_beat.models import CrontabSchedule

    row("good", **interval())
    row("huge", **interval(2**31 - 1, "days"))
    row("zone", **crontab("UTC", minute="7"))
    CrontabSchedule.objects.filter(minute="7").update(minute="x")
    row("nowhere", **crontab("Europe/Berlin", minute="8"))
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE django_celery_beat_crontabschedule SET timezone = 'Europe/Nowhere' WHERE "
            "minute = '8'"
        )

    shown = call("import", "django-celery-beat", "--apply")

    assert shown.code == 1
    assert [job.name for job in Job.objects.all()] == ["good"]
    for name in ("huge", "zone", "nowhere"):
        assert f"refused {name} " in shown.out
