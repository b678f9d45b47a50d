"""Test the import from the real django-apscheduler: it reads the store without running pickles."""

import builtins
import os
import pickle
import re
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from apscheduler.schedulers.blocking import BlockingScheduler
from apscheduler.triggers.calendarinterval import CalendarIntervalTrigger
from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger
from celery import current_app
from django.apps import apps
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pytest_django import Settings

from django_dcron import targets
from django_dcron.contrib.importers import apscheduler
from django_dcron.contrib.importers.schedule_fields import one_off_schedule
from django_dcron.contrib.importers.source_contents import EntryRefused, SourceEntry
from django_dcron.exceptions import InvalidSchedule
from django_dcron.jobs import placement
from django_dcron.models import Job
from django_dcron.schedules.schedule import parse_schedule
from django_dcron.schedules.timetable import Timetable
from django_dcron.targets import functions
from django_dcron.targets.base import TargetKind
from django_dcron.utils.untrusted import Reader
from tests import depth
from tests.contrib.importers import plain, public
from tests.contrib.importers.conftest import Install
from tests.contrib.importers.test_clock_changes import DIRECTORY
from tests.management.calling import call

PAGE = (DIRECTORY / "migrate-sources.md").read_text()
pytestmark = pytest.mark.django_db

NOW = datetime(2027, 1, 1, 12, tzinfo=UTC)
FAR = datetime(2090, 5, 4, 9, 30, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")
MODIFIED = ("next_run_time", "misfire_grace_time", "coalesce", "max_instances")
"""Options that a scheduler sets when it starts."""


@pytest.fixture(scope="module", autouse=True)
def tables(install: Install) -> None:
    install("django_apscheduler")


def store(trigger: Any, **options: Any) -> None:
    """Store a job as a scheduler does when it starts."""
    from django_apscheduler.jobstores import DjangoJobStore

    scheduler = BlockingScheduler(timezone="UTC")
    job = scheduler.add_job(
        "tests.contrib.importers.plain:report", trigger, **{"id": "a"} | options
    )
    job._modify(
        **{"next_run_time": FAR, "misfire_grace_time": 1, "coalesce": True, "max_instances": 1}
        | {name: options[name] for name in MODIFIED if name in options}
    )
    DjangoJobStore().add_job(job)


def read_entry() -> SourceEntry:
    (entry,) = apscheduler.read(NOW).entries
    return entry


def test_job_with_all_options_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    # ``@cron`` registers a function like this.
    monkeypatch.setitem(functions.registered, "tests.contrib.importers.plain.report", plain.report)
    trigger = CronTrigger.from_crontab("30 3 * * mon-fri", timezone="Europe/Berlin")
    trigger.jitter = 20
    store(trigger, args=(1, "two"), kwargs={"city": "Ulm"}, id="nightly report")
    assert call("import", "django-apscheduler", "--apply").code == 0
    job = Job.objects.get()
    assert (job.name, job.schedule, job.timezone) == (
        "nightly report",
        "30 3 * * 1-5",
        "Europe/Berlin",
    )
    assert (job.target, job.args, job.kwargs) == (
        "tests.contrib.importers.plain.report",
        [1, "two"],
        {"city": "Ulm"},
    )
    assert (job.jitter, job.overlap_policy, job.enabled) == (timedelta(seconds=20), "skip", True)
    assert call("import", "django-apscheduler").out == "1 same.\n"
    monkeypatch.delitem(functions.registered, "tests.contrib.importers.plain.report")
    again = call("import", "django-apscheduler").out
    assert "Unknown target 'tests.contrib.importers.plain.report'" in again
    assert again.endswith("1 same.\n")
    (entry,) = call("import", "django-apscheduler", "--json").json["jobs"]
    assert len(entry["warnings"]) > len(read_entry().warnings)


def test_documented_registration_keeps_the_function_for_apscheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django_apscheduler.jobstores import DjangoJobStore

    (block,) = re.findall(r"```python\n(# sales/cron\.py\n.*?)```", PAGE, re.DOTALL)
    (tmp_path / "sales").mkdir()
    (tmp_path / "sales" / "__init__.py").touch()
    (tmp_path / "sales" / "jobs.py").write_text("def import_orders():\n    return 'imported'\n")
    (tmp_path / "sales" / "cron.py").write_text(block)
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        import_module("sales.cron")
        jobs = import_module("sales.jobs")
        target = targets.get("sales.jobs.import_orders")
        assert target.kind == TargetKind.TASK
        scheduler = BlockingScheduler(timezone="UTC")
        job = scheduler.add_job(jobs.import_orders, CronTrigger(hour=3), id="a")
        job._modify(next_run_time=FAR, misfire_grace_time=1, coalesce=True, max_instances=1)
        DjangoJobStore().add_job(job)  # pickles the reference to the function
        assert read_entry().values["target"] == target.key
        assert call("import", "django-apscheduler", "--apply").code == 0
    finally:
        for name in ("sales", "sales.jobs", "sales.cron"):
            sys.modules.pop(name, None)
        current_app.tasks.pop("sales.jobs.import_orders", None)


def test_import_shows_the_lines_that_register_functions() -> None:
    from django_apscheduler.models import DjangoJob

    module = "tests.contrib.importers.plain"
    functions_there = ("Reports.daily", "report", "x)\nexit(")
    for number, name in enumerate(functions_there):
        state = {"func": f"{module}:{name}", "trigger": CronTrigger(hour=3), "next_run_time": FAR}
        DjangoJob.objects.create(id=f"{number}", job_state=pickle.dumps(state), next_run_time=FAR)
    shown = call("import", "django-apscheduler").out
    assert link_target(apscheduler.REGISTER_SECTION) in shown
    assert "3 functions" in shown
    lines = [
        "from celery import shared_task",
        f"import {module}",
        *(f'shared_task(name="{module}.{name}")({module}.{name})' for name in functions_there[:2]),
    ]
    assert "\n".join(lines) in shown
    assert call("import", "django-apscheduler", "--json").json["registrations"] == lines


def test_error_for_another_store_says_which_one_is_supported() -> None:
    refused = call("import", "apscheduler")
    assert (refused.code, "django-apscheduler" in refused.err) == (2, True)
    assert link_target(apscheduler.STORE_SECTION) in refused.err
    assert apscheduler.OTHER_STORES not in call("import", "crontab.missing").err


def test_error_for_a_missing_app_says_which_store_is_supported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(apps, "is_installed", lambda app: app != "django_apscheduler")
    refused = call("import", "django-apscheduler")
    assert (refused.code, apscheduler.OTHER_STORES in refused.err) == (2, True)


def link_target(section: str) -> str:
    """Return the section's address, which exists in the page."""
    title = section.partition("#")[2]
    slugs = [
        re.sub(r"[^\w -]", "", line.lstrip("# ")).lower().replace(" ", "-")
        for line in PAGE.splitlines()
        if line.startswith("#")
    ]
    assert title in slugs
    return f"docs/{section}"


def test_interval_keeps_its_start_end_and_phase() -> None:
    start = datetime(2026, 12, 1, 7, 10, 5, tzinfo=BERLIN)
    trigger = IntervalTrigger(minutes=7, start_date=start, end_date=FAR, timezone=BERLIN)
    store(trigger)
    values = read_entry().values
    assert (values["schedule"], values["starts_at"], values["ends_at"]) == ("@every 7m", start, FAR)
    timetable = Timetable(
        parse_schedule(values["schedule"]), values["starts_at"], values["ends_at"]
    )
    assert timetable.first_after(NOW) == trigger.get_next_fire_time(None, NOW)


def test_date_trigger_becomes_an_at_schedule() -> None:
    store(DateTrigger(FAR))
    assert read_entry().values["schedule"] == "@at 2090-05-04T09:30:00Z"


@pytest.mark.parametrize(
    ("at", "text"),
    [
        ("2090-10-29T00:59:59.5+00:00", "@at 2090-10-29T02:00:00+01:00"),
        ("2090-10-29T01:30:00.5+00:00", "@at 2090-10-29T02:30:01+01:00"),
        ("2090-10-29T01:30:00+00:00", "@at 2090-10-29T02:30:00+01:00"),
    ],
)
def test_one_off_in_the_hour_that_repeats_keeps_its_time(
    settings: Settings, at: str, text: str
) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    wanted = datetime.fromisoformat(at)
    fields = one_off_schedule(wanted, NOW, lambda warning: None)
    assert fields["schedule"] == text
    first = Timetable(parse_schedule(text, "Europe/Berlin"), None, None).first_after(NOW)
    assert first is not None
    assert timedelta() <= first - wanted < timedelta(seconds=1)


def test_past_date_trigger_is_refused() -> None:
    store(DateTrigger(NOW))
    assert "has passed" in read_entry().refused


@pytest.mark.parametrize(("next_run_time", "is_enabled"), [(None, False), (FAR, True)])
def test_refused_job_may_be_paused(next_run_time: datetime | None, is_enabled: bool) -> None:
    store(IntervalTrigger(seconds=0.5), next_run_time=next_run_time)
    assert (bool(read_entry().refused), read_entry().is_enabled) == (True, is_enabled)


def test_cleanup_of_the_own_table_is_omitted() -> None:
    from django_apscheduler.models import DjangoJob

    state = {"func": f"shop.jobs:{apscheduler.CLEANUP}", "trigger": None}
    DjangoJob.objects.create(id="a", job_state=pickle.dumps(state), next_run_time=FAR)
    assert "old executions" in read_entry().omitted
    assert not apscheduler.read(NOW).notes, "nothing needs to be registered"


def test_paused_job_with_several_instances_is_imported() -> None:
    store(IntervalTrigger(hours=1), next_run_time=None, max_instances=3, executor="threads")
    values = read_entry().values
    assert (values["enabled"], values["overlap_policy"]) == (False, "allow")
    assert "max_instances=3" in " ".join(read_entry().warnings)
    assert "executor 'threads'" in read_entry().warnings[0]


@pytest.mark.parametrize(
    ("day_of_week", "warned"),
    [
        ("1-5", "1-5 is Tuesday, Wednesday, Thursday, Friday, Saturday;"),
        ("mon,4,6", "4,6 is Friday, Sunday;"),
        ("*/2", "*/2 is Monday, Wednesday, Friday, Sunday;"),
        ("mon-fri", ""),
        ("0-6", ""),
        ("*", ""),
    ],
)
def test_numbers_of_weekdays_have_a_warning(day_of_week: str, warned: str) -> None:
    trigger = CronTrigger.from_crontab(f"0 9 * * {day_of_week}", timezone="UTC")
    store(trigger)
    (*_, warning) = ("", *read_entry().warnings)
    assert (warned in warning, bool(warning)) == (True, bool(warned))


def weekend(**more: Any) -> CronTrigger:
    return CronTrigger(**{"day_of_week": "sat", "hour": 11, "timezone": BERLIN} | more)


def working_days(**more: Any) -> CronTrigger:
    return CronTrigger(**{"day_of_week": "mon-fri", "hour": 9, "timezone": BERLIN} | more)


@pytest.mark.parametrize(
    ("bounds", "rest"),
    [
        ({}, {"second": 30}),
        ({"start_date": NOW + timedelta(days=3), "end_date": FAR}, {"year": "2027-2030"}),
    ],
)
def test_cron_triggers_combined_with_or_become_lines(
    bounds: dict[str, Any], rest: dict[str, Any]
) -> None:
    trigger = OrTrigger(
        [working_days(**bounds), weekend(**bounds, **rest), working_days(**bounds)], jitter=20
    )
    store(trigger)
    values = read_entry().values
    assert len(values["schedule"].splitlines()) == 2
    assert (values["timezone"], values["jitter"]) == ("Europe/Berlin", timedelta(seconds=20))
    trigger.jitter = None
    timetable = placement.timetable_of(Job(name="a", **values))
    occurrences = [timetable.first_after(NOW)]
    while len(occurrences) < 20:
        occurrences.append(timetable.next_after(occurrences[-1]))  # type: ignore[arg-type]
    assert occurrences == list(islice(source_occurrences(trigger), 20))


def test_lines_have_warnings_about_weekday_numbers() -> None:
    store(OrTrigger([working_days(), weekend(day_of_week="6")]))
    assert "6 is Sunday" in " ".join(read_entry().warnings)


@pytest.mark.parametrize(
    "other",
    [
        {"timezone": UTC},
        {"start_date": NOW},
        {"end_date": FAR},
        {"jitter": 5},
    ],
)
def test_cron_triggers_that_differ_are_not_combined(other: dict[str, Any]) -> None:
    store(OrTrigger([working_days(), weekend(**other)]))
    assert "each of its triggers" in read_entry().refused


@pytest.mark.parametrize(
    ("options", "deadline", "warned"),
    [
        ({}, None, False),
        ({"misfire_grace_time": 300}, timedelta(minutes=5), False),
        ({"misfire_grace_time": 300, "coalesce": False}, timedelta(minutes=5), True),
        ({"misfire_grace_time": 36_500 * 86_400}, timedelta(days=36_500), False),
        ({"misfire_grace_time": 36_500 * 86_400 + 1}, None, False),
        ({"misfire_grace_time": 10**15}, None, False),
        ({"misfire_grace_time": None}, None, False),
        ({"misfire_grace_time": None, "coalesce": False}, None, True),
        ({"coalesce": False}, None, False),
    ],
)
def test_misfire_grace_time_becomes_the_start_deadline(
    options: dict[str, Any], deadline: timedelta | None, warned: bool
) -> None:
    store(IntervalTrigger(hours=1), **options)
    entry = read_entry()
    assert entry.values["start_deadline"] == deadline
    warnings = " ".join(entry.warnings)
    assert ("coalesce" in warnings) is warned
    assert ("within the start deadline" in warnings) is (warned and deadline is not None)


@pytest.mark.parametrize(
    ("name", "description"), [("Nightly report", "Nightly report"), ("a", ""), ("report", "")]
)
def test_name_becomes_the_description(name: str, description: str) -> None:
    store(IntervalTrigger(hours=1), name=name)
    assert read_entry().values["description"] == description


def test_description_follows_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from django_apscheduler.models import DjangoJob

    monkeypatch.setitem(functions.registered, "tests.contrib.importers.plain.report", plain.report)
    for name in ("report", "Nightly", "report"):
        DjangoJob.objects.all().delete()
        store(CronTrigger(hour=3, timezone=UTC), name=name)
        assert call("import", "django-apscheduler", "--apply").code == 0
        assert Job.objects.get().description == ("" if name == "report" else name)


@pytest.mark.parametrize(
    ("trigger", "message"),
    [
        (
            lambda: OrTrigger([IntervalTrigger(hours=1), IntervalTrigger(hours=2)]),
            "each of its triggers",
        ),
        (lambda: CalendarIntervalTrigger(months=1), "CalendarIntervalTrigger"),
        (lambda: CronTrigger(week="1-20"), "weeks of the year"),
        (lambda: CronTrigger(week="*/2"), "weeks of the year; for every second week, use @rrule"),
        (lambda: IntervalTrigger(seconds=0.5), "interval 0.5 s"),
        (lambda: CronTrigger(day=13, day_of_week="fri"), "must both match"),
    ],
)
def test_triggers_without_an_equivalent_are_refused(
    trigger: Callable[[], Any], message: str
) -> None:
    store(trigger())
    assert message in read_entry().refused


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"hour": 3, "minute": 30}, "30 3 * * *"),
        ({"second": "*/10"}, "*/10 * * * * *"),
        ({"day": "last", "hour": 4}, "0 4 L * *"),
        ({"day": "1,last", "hour": 4}, "0 4 1,L * *"),
        ({"day": "2nd fri", "hour": 4}, "0 4 * * 5#2"),
        ({"day": "1st mon,last sun", "hour": 4}, "0 4 * * 1#1,0L"),
        ({"day": "15,2nd fri", "hour": 4}, "0 4 15 * 5#2"),
        ({"day_of_week": "0,6", "hour": 4}, "0 4 * * 0,1"),
        ({"month": "jan-mar", "day": 1, "hour": 0}, "0 0 1 1-3 *"),
        ({"week": "*/1"}, "0 0 * * *"),
        ({"week": "1-53", "hour": 4}, "0 4 * * *"),
        ({"year": "2030", "month": 2, "day": 3}, "0 0 0 3 2 * 2030"),
    ],
)
def test_cron_trigger_is_converted(fields: dict[str, Any], text: str) -> None:
    trigger = CronTrigger(**fields, timezone=UTC)
    store(trigger)
    assert read_entry().values["schedule"] == text
    assert list(parse_schedule(text).occurrences(NOW, FAR, 5)) == list(
        islice(source_occurrences(trigger), 5)
    )


def source_occurrences(trigger: Any) -> Iterator[datetime]:
    previous, now = None, NOW + timedelta(microseconds=1)
    while (fire := trigger.get_next_fire_time(previous, now)) is not None:
        yield fire.astimezone(UTC)
        previous = now = fire


def numbers(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high).map(str)
    span = st.tuples(st.integers(low, high), st.integers(low, high)).map(
        lambda two: f"{min(two)}-{max(two)}"
    )
    stepped = st.tuples(number | span | st.just("*"), st.integers(1, high).map(str)).map("/".join)
    return st.lists(number | span | stepped, min_size=1, max_size=2).map(",".join) | st.just("*")


@hypothesis_settings(max_examples=depth.examples(100), deadline=None)
@given(
    second=st.just("0") | numbers(0, 59),
    minute=numbers(0, 59),
    hour=numbers(0, 23),
    day=numbers(1, 31),
    month=numbers(1, 12),
    day_of_week=numbers(0, 6),
)
def test_converted_cron_trigger_matches_apscheduler(**fields: str) -> None:
    try:
        trigger = CronTrigger(**fields, timezone=UTC)
        schedule = parse_schedule(apscheduler._cron(trigger))
    except (ValueError, EntryRefused, InvalidSchedule):
        assume(False)
    occurrences = list(schedule.occurrences(NOW, datetime(2060, 1, 1, tzinfo=UTC), 6))
    assert occurrences == list(islice(source_occurrences(trigger), len(occurrences)))


def test_executions_are_read() -> None:
    from django_apscheduler.models import DjangoJobExecution

    store(DateTrigger(FAR))
    for hours in range(3):
        DjangoJobExecution.objects.create(
            job_id="a", run_time=NOW + timedelta(hours=hours), status=DjangoJobExecution.SUCCESS
        )
    source_runs = apscheduler.runs_since(NOW + timedelta(hours=1))
    assert sorted(source_runs.times[read_entry().origin]) == [
        NOW + timedelta(hours=hours) for hours in (1, 2)
    ]
    assert source_runs.complete


# --- Pickles --------------------------------------------------------------------------------------


class Evil:
    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call[0], self.call[1:]


@pytest.mark.parametrize(
    ("evil_call", "message"),
    [
        ((os.system, "touch evil"), "system"),
        ((builtins.eval, "1"), "eval"),
        ((builtins.getattr, os, "system"), "os.system"),
        ((builtins.getattr, datetime, "now"), "could run code"),
        ((builtins.__import__, "os"), "__import__"),
    ],
)
def test_pickle_that_would_run_code_is_refused(evil_call: tuple[Any, ...], message: str) -> None:
    from django_apscheduler.models import DjangoJob

    if evil_call[0] is builtins.getattr and evil_call[1] is os:
        pickled = b"cos\nsystem\n."
    else:
        pickled = pickle.dumps({"func": "x:y", "trigger": Evil(*evil_call)})
    DjangoJob.objects.create(id="evil", job_state=pickled, next_run_time=FAR)
    assert message in read_entry().refused
    assert not os.path.exists("evil")


class OwnTrigger(IntervalTrigger):
    """A trigger of a project."""


@pytest.mark.parametrize(
    ("trigger", "args", "name"),
    [
        (IntervalTrigger(hours=1), (SourceEntry("a", "b"),), "source_contents.SourceEntry"),
        (OwnTrigger(hours=1), (), "test_apscheduler.OwnTrigger"),
    ],
)
def test_custom_classes_are_refused(trigger: Any, args: tuple[Any, ...], name: str) -> None:
    store(trigger, args=args)
    refused = read_entry().refused
    assert f"{name}, which is not allowed" in refused
    assert "Arguments can only be JSON values, and triggers only those of APScheduler" in refused


def test_date_argument_is_refused_with_the_remedy() -> None:
    store(IntervalTrigger(hours=1), kwargs={"city": [date(2027, 1, 1)]})
    refused = read_entry().refused
    assert "kwargs['city'][0] has the type date" in refused
    assert "isoformat()" in refused


def test_broken_pickle_is_refused_with_the_remedy() -> None:
    from django_apscheduler.models import DjangoJob

    DjangoJob.objects.create(id="odd", job_state=b"nonsense", next_run_time=FAR)
    assert read_entry().refused == (
        "the job's state can't be read: UnpicklingError: invalid load key, 'n'. If the row is "
        "damaged, add the job again in APScheduler"
    )


@pytest.mark.parametrize("state", [b"", b"nonsense", pickle.dumps(7), pickle.dumps({})])
def test_invalid_job_state_is_refused(state: bytes) -> None:
    from django_apscheduler.models import DjangoJob

    DjangoJob.objects.create(id="odd", job_state=state, next_run_time=FAR)
    assert "state" in read_entry().refused


def test_pickle_cannot_set_class_attributes() -> None:
    """The opcode BUILD on a class would set attributes of the class."""
    state = b"N}X\x08\x00\x00\x00run_dateX\x03\x00\x00\x00bads\x86"
    with Reader() as reader, pytest.raises(EntryRefused):
        apscheduler.state_of(
            b"\x80\x02capscheduler.triggers.date\nDateTrigger\n" + state + b"b.", reader
        )


# --- Invalid entries ------------------------------------------------------------------------------


def changed(trigger: Any, **attributes: Any) -> Any:
    for name, value in attributes.items():
        setattr(trigger, name, value)
    return trigger


def cron_with(field: str, **attributes: Any) -> CronTrigger:
    trigger = CronTrigger(**{field: "1-5/2"}, timezone=UTC)
    (expression,) = next(each for each in trigger.fields if each.name == field).expressions
    changed(expression, **attributes)
    return trigger


def every(**more: Any) -> IntervalTrigger:
    return changed(IntervalTrigger(hours=1, timezone=UTC), **more)


MALFORMED: list[Any] = [
    None,
    {"func": "x:y", "trigger": None},
    {"func": "x:y", "trigger": [1]},
    {"func": "x:y", "trigger": changed(DateTrigger(FAR), run_date="tomorrow")},
    {"func": "x:y", "trigger": changed(DateTrigger(FAR), run_date=datetime(2090, 1, 1))},  # noqa: DTZ001 (naive)
    {"func": "x:y", "trigger": every(interval=5)},
    {"func": "x:y", "trigger": every(interval=None)},
    {"func": "x:y", "trigger": every(start_date="soon")},
    {"func": "x:y", "trigger": every(end_date=7)},
    {"func": "x:y", "trigger": every(jitter="x")},
    {"func": "x:y", "trigger": every(jitter=1e308)},
    {"func": "x:y", "trigger": every(jitter=-5)},
    {"func": "x:y", "trigger": changed(CronTrigger(timezone=UTC), fields=7)},
    {"func": "x:y", "trigger": changed(CronTrigger(timezone=UTC), fields=[None])},
    {"func": "x:y", "trigger": changed(CronTrigger(timezone=UTC), timezone="nowhere")},
    {"func": "x:y", "trigger": cron_with("hour", first=-(10**12))},
    {"func": "x:y", "trigger": cron_with("hour", step=-1)},
    {"func": "x:y", "trigger": cron_with("hour", step="1")},
    {"func": "x:y", "trigger": cron_with("hour", last="z")},
    {"func": "x:y", "trigger": cron_with("day", first=None)},
    {"func": ["x"], "trigger": every()},
    {"func": "x:y", "trigger": every(), "args": 7},
    {"func": "x:y", "trigger": every(), "kwargs": [1]},
    {"func": "x:y", "trigger": every(), "kwargs": {1: float("nan")}},
    {"func": "x:y", "trigger": every(), "args": ("\0", "\ud800")},
    {"func": "x:y", "trigger": every(), "max_instances": "many"},
    {"func": "x:y", "trigger": every(), "executor": {}},
    {"func": "x:y", "trigger": every(), "misfire_grace_time": "long"},
    {1: 2},
]


def test_malformed_entries_do_not_stop_the_import(monkeypatch: pytest.MonkeyPatch) -> None:
    from django_apscheduler.models import DjangoJob

    monkeypatch.setitem(functions.registered, "tests.contrib.importers.plain.report", plain.report)
    for number, state in enumerate(MALFORMED):
        DjangoJob.objects.create(
            id=f"bad {number}", job_state=pickle.dumps(state), next_run_time=FAR
        )
    store(every(), id="good")

    shown = call("import", "django-apscheduler", "--apply")

    assert shown.code == 1
    assert [job.name for job in Job.objects.all()] == ["good"]
    for number, state in enumerate(MALFORMED):
        assert f"refused bad {number} " in shown.out, state


@public.each_of("django-apscheduler")
def test_public_schedules_match_apscheduler(given: dict[str, Any]) -> None:
    trigger = CronTrigger(**given, timezone=UTC)
    store(trigger)
    values = read_entry().values
    occurrences = parse_schedule(values["schedule"], values["timezone"])
    assert list(occurrences.occurrences(NOW, FAR, public.COUNT)) == list(
        islice(source_occurrences(trigger), public.COUNT)
    )


@public.each_of("django-apscheduler intervals")
def test_public_intervals_match_apscheduler(given: dict[str, int]) -> None:
    trigger = IntervalTrigger(**given, start_date=NOW, timezone=UTC)
    store(trigger)
    timetable = placement.timetable_of(Job(name="a", **read_entry().values))
    expected = list(islice(source_occurrences(trigger), public.COUNT))
    occurrences = [timetable.first_after(NOW)]
    while len(occurrences) < public.COUNT:
        occurrences.append(timetable.next_after(occurrences[-1]))  # type: ignore[arg-type]
    assert occurrences == expected
