"""Test the import from the real django-q2: jobs are due when django-q2 would run the schedule."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter
from django.db import DataError, connection
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pytest_django import Settings

from django_dcron.contrib.importers import django_q
from django_dcron.contrib.importers.croniter_text import from_croniter
from django_dcron.contrib.importers.source_contents import EntryRefused, SourceEntry
from django_dcron.exceptions import InvalidSchedule
from django_dcron.jobs import placement
from django_dcron.models import Job
from django_dcron.schedules.schedule import parse_schedule
from tests import depth
from tests.contrib.importers import public
from tests.contrib.importers.conftest import Install
from tests.management.calling import call

pytestmark = pytest.mark.django_db

NOW = datetime(2027, 1, 1, 12, tzinfo=UTC)
FAR = datetime(2090, 5, 4, 9, 30, tzinfo=UTC)


@pytest.fixture(scope="module", autouse=True)
def tables(install: Install) -> None:
    install("django_q", Q_CLUSTER={"timeout": 60, "retry": 90, "orm": "default"})


def make(kind: str = "D", name: str | None = "a", **fields: Any) -> Any:
    from django_q.models import Schedule

    given = {"func": "tests.app.tasks.echo", "next_run": FAR}
    return Schedule.objects.create(name=name, schedule_type=kind, **given | fields)


def found(now: datetime = NOW) -> SourceEntry:
    (one,) = django_q.read(now).entries
    return one


def test_row_with_all_options_is_imported() -> None:
    from django_q.tasks import schedule

    schedule(
        "tests.app.tasks.echo",
        1,
        "two",
        city="Ulm",
        name="nightly report",
        schedule_type="D",
        next_run=FAR,
        q_options={"timeout": 90, "save": False},
        hook="tests.app.tasks.ok",
        cluster="slow",
    )
    done = call("import", "django-q2", "--apply")
    assert done.code == 0
    job = Job.objects.get()
    assert (job.name, job.schedule, job.timezone) == ("nightly report", "30 9 * * *", "UTC")
    assert (job.target, job.args, job.kwargs) == (
        "tests.app.tasks.echo",
        [1, "two"],
        {"city": "Ulm"},
    )
    assert (job.timeout, job.enabled) == (timedelta(seconds=90), True)
    for message in ("hook", "cluster 'slow'", "save"):
        assert message in done.out
    assert call("import", "django-q2").out.endswith("1 same.\n")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("O", "@at 2090-05-04T09:30:00Z"),
        ("H", "30 * * * *"),
        ("D", "30 9 * * *"),
        ("W", "30 9 * * 4"),
        ("BW", "@every 336h"),
        ("M", "30 9 4 * *"),
        ("BM", "30 9 4 1,3,5,7,9,11 *"),
        ("Q", "30 9 4 2,5,8,11 *"),
        ("Y", "30 9 4 5 *"),
    ],
)
def test_schedule_types_become_schedules(kind: str, text: str) -> None:
    make(kind)
    assert found().values["schedule"] == text


@pytest.mark.parametrize("kind", ["H", "D", "W", "M", "BM", "Q", "Y"])
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York"])
def test_occurrences_match_django_q2(kind: str, zone: str, settings: Settings) -> None:
    """The range includes clock changes, but no occurrence is close to one."""
    from django_q.conf import Conf

    settings.Q_CLUSTER = {"time_zone": zone}
    before, Conf.TIME_ZONE = Conf.TIME_ZONE, zone
    try:
        row = make(kind, next_run=datetime(2027, 1, 28, 17, 45, 20, tzinfo=UTC))
        expected = [row.next_run]
        for _ in range(30):
            expected.append(row.calculate_next_run(expected[-1]))
    finally:
        Conf.TIME_ZONE = before
    values = found().values
    occurrences = parse_schedule(values["schedule"], values["timezone"]).occurrences(
        row.next_run - timedelta(seconds=1), expected[-1]
    )
    assert list(occurrences) == expected


def test_minutes_become_an_every_schedule() -> None:
    make("I", minutes=90)
    assert found().values["schedule"] == "@every 1h30m"


@pytest.mark.parametrize(
    ("kind", "next_run"),
    [
        ("M", FAR.replace(day=31)),
        ("Q", FAR.replace(day=29)),
        ("Y", datetime(2088, 2, 29, 9, tzinfo=UTC)),
    ],
)
def test_day_missing_in_some_months_is_refused(kind: str, next_run: datetime) -> None:
    make(kind, next_run=next_run)
    assert "doesn't exist in every month" in found().refused


def test_missed_one_time_row_is_refused() -> None:
    make("O", next_run=NOW - timedelta(hours=1))
    assert "has passed" in found().refused


def test_repeats_become_the_end() -> None:
    make("D", repeats=3)
    job = Job(name="a", **found().values)
    timetable = placement.timetable_of(job)
    runs = [timetable.first_after(FAR - timedelta(seconds=1))]
    while runs[-1]:
        runs.append(timetable.next_after(runs[-1]))
    assert runs == [FAR, FAR + timedelta(days=1), FAR + timedelta(days=2), None]


def test_repeats_of_an_interval_become_the_end() -> None:
    make("I", minutes=7, repeats=2)
    values = found().values
    assert (values["starts_at"], values["ends_at"]) == (FAR, FAR + timedelta(minutes=7))


def test_one_repeat_runs_once_and_zero_repeats_are_omitted() -> None:
    row = make("D", repeats=1)
    assert found().values["schedule"] == "@at 2090-05-04T09:30:00Z"
    row.repeats = 0
    row.save()
    assert "no repeats" in found().omitted


def test_refused_row_without_next_run_is_disabled() -> None:
    row = make("D", next_run=None)
    assert (bool(found().refused), found().is_enabled) == (True, False)
    row.next_run, row.intended_date_kwarg = FAR, "at"
    row.save()
    assert (bool(found().refused), found().is_enabled) == (True, True)


def test_row_without_next_run_is_paused() -> None:
    make("I", minutes=5, next_run=None)
    assert (found().values["enabled"], found().values["pause_reason"]) == (
        False,
        "has no next run in django-q2",
    )


def test_intended_date_argument_is_refused() -> None:
    make(intended_date_kwarg="when")
    assert "current_run().scheduled_at" in found().refused


@pytest.mark.parametrize(
    ("fields", "args", "kwargs"),
    [
        ({"args": "1, 'two'"}, [1, "two"], {}),
        ({"args": "'one'"}, ["one"], {}),
        ({"kwargs": "x=1, city='Ulm'"}, [], {"x": 1, "city": "Ulm"}),
        ({"kwargs": "{'x': (1, 2)}"}, [], {"x": [1, 2]}),
    ],
)
def test_arguments_are_parsed_as_in_django_q2(
    fields: dict[str, str], args: Any, kwargs: Any
) -> None:
    make(**fields)
    assert (found().values["args"], found().values["kwargs"]) == (args, kwargs)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"args": "open('x')"}, "args: "),
        ({"args": "b'x'"}, "args[0] has the type bytes"),
        ({"kwargs": "x=open('y')"}, "kwargs: "),
        ({"kwargs": "{1}"}, "not a dict"),
        ({"kwargs": "1, x=2"}, "expected keywords"),
        ({"kwargs": "{[]: 1}"}, "kwargs: "),
        ({"kwargs": "{'q_options': {'timeout': 'x'}}"}, "number of seconds"),
        ({"kwargs": "x) + f("}, "kwargs: "),
        ({"args": f"[{'1,' * 50_000}]"}, "args: The value has 100002 characters"),
        ({"kwargs": f"{{'a': [{'1,' * 50_000}]}}"}, "kwargs: The value has 100009 characters"),
    ],
)
def test_arguments_that_are_not_json_are_refused(fields: dict[str, str], message: str) -> None:
    make(**fields)
    assert message in found().refused


def test_rows_without_a_name_are_named_by_function_and_key() -> None:
    first, second = make(name=None), make(name=None)
    make(name="named")
    assert call("import", "django-q2", "--apply").code == 0
    assert set(Job.objects.values_list("name", flat=True)) == {
        f"tests.app.tasks.echo-{first.pk}",
        f"tests.app.tasks.echo-{second.pk}",
        "named",
    }


# --- Cron text of croniter ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("croniter_text", "converted"),
    [
        ("*/5 * * * *", "*/5 * * * *"),
        ("0 0 */2 * 1", "0 0 1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31 * 1"),
        ("0 0 1 * mon", "0 0 1 * mon"),
        ("0 0 1-31 * mon", "0 0 * * *"),
        ("0 0 ? * 1", "0 0 * * 1"),
        ("0 22-2 * * *", "0 0-2,22,23 * * *"),
        ("0 0 15 * fri-mon", "0 0 15 * 0,1,5,6"),
        ("0 0 L * *", "0 0 L * *"),
        ("0 0 1,L * *", "0 0 1,L * *"),
        ("0 0 * * 5#2,1#1", "0 0 * * 1#1,5#2"),
        ("0 0 * * L5", "0 0 * * 5L"),
        ("0 0 15W * *", "0 0 15W * *"),
        ("0 0 1 * * 30", "30 0 0 1 * *"),
        ("0 0 1 1 * 0 2030", "0 0 0 1 1 * 2030"),
        ("@daily", "0 0 * * *"),
        ("5/15 * * * *", "5/15 * * * *"),
    ],
)
def test_cron_text_is_converted(croniter_text: str, converted: str) -> None:
    assert from_croniter(croniter_text) == converted
    horizon = datetime(2060, 1, 1, tzinfo=UTC)
    expected = list(parse_schedule(converted).occurrences(NOW, horizon, 6))
    assert expected
    assert list(islice(of_croniter(croniter_text), len(expected))) == expected


def test_unsupported_or_invalid_cron_text_is_refused() -> None:
    with pytest.raises(EntryRefused, match="5#2"):
        from_croniter("0 0 1 * 5#2")
    with pytest.raises(EntryRefused, match="croniter"):
        from_croniter("61 * * * *")


def of_croniter(text: str) -> Iterator[datetime]:
    return croniter(text, NOW).all_next(datetime)  # type: ignore[no-any-return]


def numbers(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high).map(str)
    span = st.tuples(number, number).map("-".join)
    step = st.integers(1, high).map(str)
    stepped = st.tuples(number | span | st.just("*"), step).map("/".join)
    return st.lists(number | span | stepped, min_size=1, max_size=2).map(",".join) | st.just("*")


@hypothesis_settings(max_examples=depth.examples(150), deadline=None)
@given(
    fields=st.tuples(
        numbers(0, 59), numbers(0, 23), numbers(1, 31), numbers(1, 12), numbers(0, 7)
    ).map(" ".join)
)
def test_converted_cron_matches_croniter(fields: str) -> None:
    try:
        schedule = parse_schedule(from_croniter(fields))
        expected = list(islice(of_croniter(fields), 8))
    except (EntryRefused, InvalidSchedule, ValueError):
        assume(False)
    assert list(schedule.occurrences(NOW, datetime(2090, 1, 1, tzinfo=UTC), 8)) == expected


def test_cron_row_uses_the_time_zone_of_the_cluster(settings: Settings) -> None:
    settings.Q_CLUSTER = {"time_zone": "Europe/Berlin"}
    make("C", cron="30 3 * * 1-5")
    values = found().values
    assert (values["schedule"], values["timezone"]) == ("30 3 * * 1-5", "Europe/Berlin")
    first = parse_schedule(values["schedule"], values["timezone"]).next_after(NOW)
    assert first == datetime(2027, 1, 4, 3, 30, tzinfo=ZoneInfo("Europe/Berlin"))


MALFORMED: list[dict[str, Any]] = [
    {"kwargs": "'a'"},
    {"kwargs": "{'q_options': {'timeout': 1e308}}"},
    {"kwargs": "{'q_options': {'timeout': -1}}"},
    {"kwargs": "{'q_options': {1: 2, 'a': 3}}"},
    {"kwargs": "{1: {2}}"},
    {"kwargs": "a=b"},
    {"kwargs": "a='\0'"},
    {"args": "(" * 5000},
    {"args": "'x'," * 50_000},
    {"args": "9" * 5000},
    {"args": "{1}"},
    {"kind": "I", "minutes": 32_000, "repeats": 2**31 - 1, "args": "{1}"},
    {"kind": "C", "cron": "x y"},
    {"kind": "C", "cron": ""},
    {"kind": "C", "cron": "0 3 * * *", "repeats": 2**31 - 1},
    {"kind": "?"},
    {"kind": "Y", "repeats": 2**31 - 1},
    {"func": "\ud800".encode(errors="replace").decode()},
]


def test_malformed_entries_do_not_stop_the_import() -> None:
    # SQLite is the only database that stores a NUL character in a text.
    malformed = [
        fields
        for fields in MALFORMED
        if connection.vendor == "sqlite" or "\\x00" not in repr(fields)
    ]
    for number, fields in enumerate(malformed):
        row = make(name=f"bad {number}")
        changes = {
            "schedule_type" if name == "kind" else name: value for name, value in fields.items()
        }
        type(row).objects.filter(pk=row.pk).update(**changes)  # bypasses the model's validation
    make(name="good")

    shown = call("import", "django-q2", "--apply")

    assert shown.code == 1
    assert [job.name for job in Job.objects.all()] == ["good"]
    for number, fields in enumerate(malformed):
        assert f"refused bad {number} " in shown.out, fields


@pytest.mark.parametrize(
    ("repeats", "ends_at"),
    [(3, FAR + timedelta(hours=2)), (50_000, FAR + timedelta(hours=49_999)), (2**31 - 1, None)],
)
def test_end_of_an_interval_is_computed_from_its_repeats(
    repeats: int, ends_at: datetime | None
) -> None:
    make("I", minutes=60, repeats=repeats)
    assert found().values["ends_at"] == ends_at


@pytest.mark.parametrize("error", [OverflowError("too large"), DataError("no such character")])
def test_entry_refused_by_the_database_does_not_affect_others(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    decide = placement.decide_placement

    def decide_all_but_one(job: Job, *args: Any, **options: Any) -> placement.Placement:
        if job.name == "bad":
            raise error
        return decide(job, *args, **options)

    monkeypatch.setattr(placement, "decide_placement", decide_all_but_one)
    for name in ("bad", "good"):
        make(name=name)
    shown = call("import", "django-q2", "--apply")
    assert shown.code == 1
    assert "refused bad " in shown.out
    assert [job.name for job in Job.objects.all()] == ["good"]


@public.each_of("django-q2")
def test_public_schedules_match_croniter(given: str) -> None:
    make("C", cron=given)
    values = found().values
    schedule = parse_schedule(values["schedule"], values["timezone"])
    occurrences = list(schedule.occurrences(NOW, FAR, public.COUNT))
    assert occurrences == list(islice(of_croniter(given), public.COUNT))
