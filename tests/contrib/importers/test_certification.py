"""Import the schedules of public projects, and count what is exact.

The next ``COUNT`` occurrences of each job are compared with those that the source's own library
computes. docs/contributing/imports.md documents the counts.
"""

import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from functools import cache
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from pytest_django import Settings

from django_dcron.models import Job
from django_dcron.schedules.schedule import parse_schedule
from tests.celery_app import app
from tests.contrib.importers import (
    test_apscheduler,
    test_celery_config,
    test_django_q,
    test_huey,
    test_procrastinate,
    vixie,
)
from tests.contrib.importers.certification import (
    NOW,
    PROJECTS,
    SOURCES,
    Entry,
    Sources,
    apscheduler_trigger,
    celery_schedule,
    entries_of,
)
from tests.contrib.importers.conftest import Install
from tests.contrib.importers.test_public import IMPORTS_PAGE

pytestmark = pytest.mark.django_db

COUNT = 50
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
FAR = NOW.replace(year=2190)
SECTION = IMPORTS_PAGE[
    IMPORTS_PAGE.index("## Whole projects") : IMPORTS_PAGE.index("## Distinct schedules")
]


@pytest.fixture(scope="module", autouse=True)
def tables(install: Install) -> None:
    if sys.version_info < (3, 12):
        install("django_celery_beat")
    install("django_q", Q_CLUSTER={"timeout": 60, "retry": 90, "orm": "default"})
    install("django_apscheduler")


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> Iterator[Sources]:
    before = dict(app.conf.beat_schedule)
    yield Sources(monkeypatch, settings)
    app.conf.beat_schedule = before


# --- The occurrences ------------------------------------------------------------------------------

Occurrences = dict[datetime, list[datetime]]
"""The next occurrences in the source after each of some times."""


@cache
def begin_times(zone: str) -> list[datetime]:
    """Return ``NOW``, and about 25 hours and 90 minutes before each clock change of the year."""
    hours = [NOW + HOUR * number for number in range(365 * 24)]
    offsets = [at.astimezone(ZoneInfo(zone)).utcoffset() for at in hours]
    changes = [
        at for at, (before, after) in zip(hours, pairwise(offsets), strict=False) if before != after
    ]
    return [NOW, *(at - ahead for at in changes for ahead in (DAY, HOUR / 2))]


@cache
def occurrences(schedule: str, zone: str, begin: datetime) -> list[datetime]:
    parsed = parse_schedule(schedule, zone)
    if parsed.interval is not None:
        return [begin + parsed.interval * number for number in range(1, COUNT + 1)]
    return list(parsed.occurrences(begin, FAR, COUNT))


def after(begin: datetime, jobs: list[Job]) -> list[datetime]:
    times = {at for job in jobs for at in occurrences(job.schedule, job.timezone, begin)}
    return sorted(times)[:COUNT]


of_celery_cache: dict[tuple[str, str], Occurrences] = {}


def of_celery(entry: Entry) -> Occurrences:
    key = (json.dumps(entry.schedule, sort_keys=True), entry.zone)
    if key not in of_celery_cache:
        of_celery_cache[key] = {
            begin: list(
                islice(test_celery_config.source_occurrences(celery_schedule(entry), begin), COUNT)
            )
            for begin in begin_times(entry.zone)
        }
    return of_celery_cache[key]


def of_django_cron(entry: Entry) -> Occurrences:
    """Return the times that the options name, as test_django_cron does with the real package."""
    times = [
        timedelta(hours=int(text[:-3]), minutes=int(text[-2:]))
        for text in entry.schedule.get("run_at_times", ())
    ]
    midnight = NOW.replace(hour=0)
    found = {midnight + DAY * number + time for number in range(COUNT + 1) for time in times}
    if every := entry.schedule.get("run_every_mins"):
        found |= {NOW + timedelta(minutes=every) * number for number in range(1, COUNT + 1)}
    return from_now(sorted(at for at in found if at > NOW))


def from_now(found: Iterable[datetime]) -> Occurrences:
    return {NOW: list(islice(found, COUNT))}


SOURCE_OCCURRENCES: dict[str, Callable[[Entry], Occurrences]] = {
    "celery": of_celery,
    "django-celery-beat": of_celery,
    "huey": lambda entry: from_now(test_huey.source_occurrences(entry.schedule, COUNT, FAR)),
    "procrastinate": lambda entry: from_now(test_procrastinate.source_occurrences(entry.schedule)),
    "django-crontab": lambda entry: from_now(
        vixie.minutes(entry.schedule, NOW.astimezone(ZoneInfo(entry.zone)), COUNT)
    ),
    "django-cron": of_django_cron,
    "django-q2": lambda entry: from_now(test_django_q.of_croniter(entry.schedule)),
    "django-apscheduler": lambda entry: from_now(
        test_apscheduler.source_occurrences(apscheduler_trigger(entry))
    ),
}


# --- The counts -----------------------------------------------------------------------------------


def near_clock_change(at: datetime, zone: ZoneInfo) -> bool:
    return (at - DAY).astimezone(zone).utcoffset() != (at + DAY).astimezone(zone).utcoffset()


def verdict(entry: Entry, jobs: list[Job], of_source: Callable[[Entry], Occurrences]) -> str:
    if not jobs:
        return "refused"
    pairs = [(after(begin, jobs), expected) for begin, expected in of_source(entry).items()]
    if all(found == expected for found, expected in pairs):
        return "exact"
    for found, expected in pairs:
        both_until = min(found[-1], expected[-1])
        for at in {*found} ^ {*expected}:
            if at <= both_until and not near_clock_change(at, ZoneInfo(entry.zone)):
                return f"different at {at}: {entry}"
    return "clock change"


def verdicts(entries: list[Entry], of_source: Callable[[Entry], Occurrences]) -> Counter[str]:
    jobs = defaultdict(list)
    for job in Job.objects.all():
        (key,) = {*re.findall(r"project \d+ entry \d+", f"{job.name} {job.import_key} {job.args}")}
        jobs[key].append(job)
    return Counter(verdict(entry, jobs[entry.key], of_source) for entry in entries)


def documented() -> dict[str, list[int]]:
    """Return the numbers of each row of the table."""
    rows = re.findall(r"^\| `([\w-]+)` \|(.*)\|$", SECTION, re.MULTILINE)
    return {source: [int(cell) for cell in cells.split("|")] for source, cells in rows}


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(source, marks=pytest.mark.celery_beat if "beat" in source else ())
        for source in SOURCES
    ],
)
def test_documented_counts_match_the_import(source: str, sources: Sources) -> None:
    counts: Counter[str] = Counter()
    for zone, entries in entries_of(source).items():
        sources.run(source, zone, entries)
        counts += verdicts(entries, SOURCE_OCCURRENCES[source])
        Job.objects.all().delete()
    assert {*counts} <= {"exact", "clock change", "refused"}
    assert documented().get(source) == [
        sum(project["source"] == source for project in PROJECTS),
        counts.total(),
        *(counts[name] for name in ("exact", "clock change", "refused")),
    ]


def test_documented_totals_are_those_of_the_certification() -> None:
    rows = documented()
    assert {*rows} == {*SOURCES}
    projects, given, exact, differing, refused = map(sum, zip(*rows.values(), strict=True))
    assert projects == len(PROJECTS)
    assert given == exact + differing + refused
    prose = " ".join(SECTION.split())
    assert f"{given} schedules from {projects} public projects" in prose
    assert f"the next {COUNT} occurrences" in prose
    assert exact + differing >= 0.99 * given
    assert differing <= 0.01 * given
