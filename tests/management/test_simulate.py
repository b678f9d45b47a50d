"""Test ``dcron simulate``: it counts exactly the occurrences that the schedules list."""

import re
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from django_dcron import control
from django_dcron.diagnosis.job_filters.selection import JobSelection
from django_dcron.diagnosis.simulation import LONGEST, Simulation, simulate
from django_dcron.jobs import placement
from django_dcron.models import Cursor, Job
from django_dcron.models.job_states import EXHAUSTED
from django_dcron.schedules.load import RealHours
from django_dcron.schedules.schedule import parse_schedule
from django_dcron.schedules.timetable import Timetable
from tests.factories import make_job
from tests.management.calling import call

START = datetime(2083, 6, 7, 7, 30, tzinfo=UTC)
"""A Monday."""
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)

SCHEDULES = [
    ("* * * * *", "UTC"),
    ("*/7 8-11 * * *", "Europe/Berlin"),
    ("15,45 10 * * MON", "Asia/Kolkata"),
    ("*/20 30 * * * *", "UTC"),
    ("0 0 L * *", "UTC"),
    ("@every 90m", "UTC"),
    ("@every 7s", "UTC"),
    ("@at 2083-06-07T12:34:56", "UTC"),
    ("@at 2087-06-07T12:34:56", "UTC"),
    ("H H(8-9) * * *", "UTC"),
]


@pytest.mark.parametrize(("text", "zone"), SCHEDULES)
def test_counted_minutes_match_listed_occurrences(text: str, zone: str) -> None:
    schedule = parse_schedule(text, zone, hash_key="default/job")
    known = START + timedelta(hours=3, seconds=11)
    end = START + 9 * HOUR
    for starts, ends in ((START, end), (START + 2 * HOUR + MINUTE, START + 5 * HOUR)):
        timetable = Timetable(schedule, starts, ends - timedelta(seconds=1))
        before = (
            known - (known - START) // schedule.interval * schedule.interval
            if schedule.interval
            else START
        )
        listed = Counter(
            (instant - START) // MINUTE
            for instant in schedule.occurrences(before - (schedule.interval or MINUTE), end)
            if starts <= instant < ends
        )
        counted = dict(RealHours(START, 9).minutes(timetable, known))
        assert counted == listed


def make_jobs() -> list[Job]:
    return [
        make_job(name=f"job-{n}", schedule=text, timezone=zone)
        for n, (text, zone) in enumerate(SCHEDULES)
    ]


def listed(jobs: list[Job], simulation: Simulation) -> Counter[str]:
    found: Counter[str] = Counter()
    for job in jobs:
        timetable = placement.timetable_of(job)
        occurrence = timetable.first_after(
            simulation.since - timedelta(microseconds=1), Cursor.objects.get(pk=job.pk).next_at
        )
        while occurrence is not None and occurrence < simulation.until:
            found[job.hash_key] += 1
            occurrence = timetable.next_after(occurrence)
    return found


@pytest.mark.django_db
def test_simulation_matches_listed_occurrences() -> None:
    jobs = make_jobs()
    found = simulate(START + timedelta(seconds=10), START + 2 * HOUR + timedelta(seconds=1))
    assert (found.since, found.until) == (START, START + 2 * HOUR + MINUTE)
    assert {each.job: each.occurrences for each in found.by_job} == listed(jobs, found)
    assert found.total == sum(each.occurrences for each in found.by_job)
    assert found.jobs == len(jobs)
    assert len(found.occurrences) == len(found.starting) == 121


@pytest.mark.django_db
def test_simulation_counts_clashes_and_fullest_minutes() -> None:
    for name in ("a", "b", "c"):
        make_job(name=name, schedule="0 9 * * *")
    make_job(name="d", schedule="0 8,9 * * *")
    make_job(name="every-minute", schedule="* * * * *")
    make_job(name="every-second", schedule="* * * * * *")
    control.pause(make_job(name="paused", schedule="0 9 * * *"), "stocktaking")
    found = simulate(START, START + 3 * HOUR)
    assert (found.clashes, found.in_every_minute) == (1, 2)
    first, second = found.fullest
    assert (first.at.hour, first.jobs, first.occurrences) == (9, 4, 4 + 1 + 60)
    assert first.names == ("default/a", "default/b", "default/c", "default/d")
    assert (second.at.hour, second.jobs, second.names) == (8, 1, ("default/d",))


@pytest.mark.django_db
def test_crowded_minute_is_reported_with_advice() -> None:
    for number in range(30):
        make_job(name=f"job-{number}", schedule="0 9 * * *")
    (crowd,) = simulate(START, START + 3 * HOUR).crowded_minutes
    assert crowd.jobs == 30
    out = call("simulate", "--from", "2083-06-07T07:30", "--until", "2083-06-07T10:30").out
    assert re.search(r"^! .*\b30 jobs .* minute 0 of 1 hour\b.*\bH\b", out, re.MULTILINE)
    assert "and 20 more" in out


@pytest.mark.django_db
def test_simulation_is_limited_to_seven_days_and_one_query() -> None:
    make_jobs()
    odd = START + timedelta(seconds=7)
    assert len(simulate(odd, odd + LONGEST).occurrences) == 7 * 24 * 60 + 1
    for end in (START, START - DAY, START + LONGEST + MINUTE):
        with pytest.raises(ValueError, match="7 days"):
            simulate(START, end)
    with CaptureQueriesContext(connection) as queries:
        simulate(START, START + HOUR, JobSelection(name="job-1"), fullest=1)
    assert len(queries) == 1


# --- The command --------------------------------------------------------------------------------


@pytest.mark.django_db
def test_tables_show_jobs_hours_and_fullest_minutes() -> None:
    make_job(name="report", namespace="shop", schedule="0 9 * * *", timezone="Europe/Berlin")
    make_job(name="import", schedule="*/30 * * * *")
    code, out, err = call("simulate", "--from", "2083-06-07T06:00", "--until", "2083-06-07T08:00")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[:2] == [
        "2083-06-07 06:00:00 UTC to 2083-06-07 08:00:00 UTC",
        "2 jobs; 5 occurrences of 2 of them; several jobs start together in 1 of 120 minutes",
    ]
    assert "shop/report  0 9 * * *     Europe/Berlin            1" in lines
    rows = [line.split() for line in lines]
    assert ["2083-06-07", "06:00", "2", "1", "1", "#" * 16] in rows
    assert ["2083-06-07", "07:00", "3", "2", "2", "#" * 24] in rows
    assert ["2083-06-07", "07:00", "2", "2", "import,", "shop/report"] in rows


@pytest.mark.django_db
def test_short_range_is_shown_by_minutes_and_empty_selection_as_text() -> None:
    make_job(name="import", schedule="*/2 * * * *")
    out = call("simulate", "--from", "2083-06-07T06:00", "--until", "2083-06-07T06:04").out
    rows = [line.split() for line in out.splitlines()]
    assert ["2083-06-07", "06:02", "1", "1", "1", "#" * 24] in rows
    assert ["2083-06-07", "06:03", "0", "0", "0"] in rows
    assert "0 occurrences of 0 of them" in call("simulate", "--search", "nobody's").out


@pytest.mark.django_db
def test_one_hour_within_minutes_is_shown_by_minutes() -> None:
    make_job(schedule="*/2 * * * *")
    hour = ("--from", "2083-06-07T06:00:30", "--until", "2083-06-07T07:00:30")
    rows = [line.split() for line in call("simulate", *hour).out.splitlines()]
    assert ["2083-06-07", "06:58", "1", "1", "1", "#" * 24] in rows
    assert ["2083-06-07", "07:00", "1", "1", "1", "#" * 24] in rows


@pytest.mark.django_db
def test_paused_jobs_of_the_selection_are_counted_separately() -> None:
    make_job(name="import", schedule="*/2 * * * *", enabled=False)
    make_job(name="other", namespace="shop", schedule="*/2 * * * *", enabled=False)
    finished = make_job(name="finished", namespace="shop", enabled=False)
    Job.objects.filter(pk=finished.pk).update(pause_reason=EXHAUSTED)
    out = call("simulate", "--namespace", "shop").out
    assert "0 jobs; 0 occurrences" in out
    assert "not counting 1 paused job\n" in out


@pytest.mark.django_db
def test_job_that_starts_in_every_minute_is_named_separately() -> None:
    make_job(name="pulse", schedule="* * * * *")
    arguments = ("simulate", "--from", "2083-06-07T06:00", "--until", "2083-06-07T07:00")
    assert (
        "\n1 job starts in every minute, not counted as starting together\n" in call(*arguments).out
    )
    make_job(name="beat", schedule="* * * * *")
    assert "\n2 jobs start in every minute, not counted" in call(*arguments).out


@pytest.mark.django_db
def test_json_contains_occurrences_per_minute() -> None:
    for name in "abc":
        make_job(name=name, schedule="0 9 * * *")
    arguments = [
        "--from",
        "2083-06-07T08:58",
        "--until",
        "2083-06-07T09:02",
        "--top",
        "2",
        "--json",
    ]
    document = call("simulate", *arguments).json
    row = {"schedule": "0 9 * * *", "timezone": "UTC", "occurrences": 1}
    assert document == {
        "version": 1,
        "since": "2083-06-07T08:58:00Z",
        "until": "2083-06-07T09:02:00Z",
        "jobs": 3,
        "occurrences": 3,
        "clashing_minutes": 1,
        "jobs_in_every_minute": 0,
        "by_job": [{"job": "default/a"} | row, {"job": "default/b"} | row],
        "more_jobs": 1,
        "occurrences_per_minute": [0, 0, 3, 0],
        "jobs_per_minute": [0, 0, 3, 0],
        "fullest": [
            {
                "at": "2083-06-07T09:00:00Z",
                "jobs": 3,
                "occurrences": 3,
                "names": ["default/a", "default/b", "default/c"],
            }
        ],
    }


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from", "+1d", "--until", "now"], "must be before --until"),
        (["--until", "+8d"], "7 days"),
        (["--until", "noon"], "--until 'noon'"),
        (["--namespace", "shp"], "'shp' has neither jobs nor nodes. Did you mean 'shop'?"),
    ],
)
def test_simulate_rejects_invalid_options(arguments: list[str], message: str) -> None:
    make_job(namespace="shop")
    code, out, err = call("simulate", *arguments)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.django_db
def test_times_are_read_and_shown_in_site_time_zone(settings: Settings) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    out = call("simulate", "--from", "2083-06-07T06:00", "--until", "2083-06-07T07:00Z").out
    assert out.startswith("2083-06-07 06:00:00 JST to 2083-06-07 16:00:00 JST\n")
