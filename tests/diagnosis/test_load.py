"""Test the planned load of stored jobs: its counts and its cache."""

from collections import Counter
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_dcron import control
from django_dcron.diagnosis.job_filters.selection import JobSelection
from django_dcron.diagnosis.load import Load, planned_load
from django_dcron.models import Cursor, Job
from tests.factories import make_job

pytestmark = pytest.mark.django_db

MONDAY = date(2031, 6, 16)  # in the future
BERLIN, KOLKATA = ZoneInfo("Europe/Berlin"), ZoneInfo("Asia/Kolkata")


def load(**chosen: str) -> Load:
    return planned_load(MONDAY, BERLIN, JobSelection(**chosen))


def counts_by_hour(found: Load) -> dict[str, int]:
    return {
        f"{found.start_of(hour):%a %H}": number for hour, number in enumerate(found.hours) if number
    }


def test_occurrences_of_all_zones_are_counted_in_site_hours() -> None:
    make_job(schedule="0,30 3 * * TUE", timezone="Europe/Berlin")
    make_job(schedule="0 3 * * TUE", timezone="UTC")
    make_job(schedule="CRON_TZ=Asia/Tokyo 0 3 * * TUE")
    found = load()
    assert counts_by_hour(found) == {"Mon 20": 1, "Tue 03": 2, "Tue 05": 1}
    assert (found.jobs, len(found.hours)) == (3, 168)


def test_counts_match_listed_occurrences() -> None:
    texts = [
        "* * * * * *",
        "*/7 * * * *",
        "H H * * *",
        "H/20 * * * *",
        "0 0 L * *",
        "@every 90m",
        "30 9 * * MON#3",
        "*/15 * * * *\n5,15,30 0-2 * * *",
    ]
    jobs = [
        make_job(schedule=text, timezone=zone) for text in texts for zone in ("UTC", "Asia/Kolkata")
    ]
    begin = datetime(2031, 6, 16, tzinfo=KOLKATA).astimezone(UTC)
    expected: Counter[int] = Counter()
    second, hours = timedelta(seconds=1), 4
    for job in jobs:
        schedule, after = job.parsed_schedule, begin - second
        if schedule.interval:
            known = job.cursor.next_at
            after = known + (after - known) // schedule.interval * schedule.interval
        for occurrence in schedule.occurrences(after, begin + hours * timedelta(hours=1) - second):
            expected[(occurrence - begin) // timedelta(hours=1)] += 1
    counted = planned_load(MONDAY, KOLKATA).hours[:hours]
    assert list(counted) == [expected[hour] for hour in range(hours)]
    assert all(expected[hour] > 2 * 3600 for hour in range(hours))


def test_unscheduled_jobs_are_not_counted() -> None:
    control.pause(make_job(schedule="0 1 * * *"))
    quarantined = make_job(schedule="0 2 * * *")
    Cursor.objects.filter(pk=quarantined.pk).update(problem="no such zone")
    unreadable = make_job(schedule="0 3 * * *")
    Job.objects.filter(pk=unreadable.pk).update(schedule="whenever")
    day = datetime(2031, 6, 18, tzinfo=BERLIN)
    make_job(
        schedule="0 4 * * *",
        timezone="Europe/Berlin",
        starts_at=day,
        ends_at=day + timedelta(hours=12),
    )
    make_job(schedule="0 5 * * *", starts_at=day + timedelta(days=30))
    assert counts_by_hour(load()) == {"Wed 04": 1}


def test_load_is_limited_to_selection() -> None:
    make_job(name="import orders", schedule="0 1 * * MON", timezone="Europe/Berlin")
    make_job(
        name="Import stock", namespace="shop", schedule="0 2 * * MON", timezone="Europe/Berlin"
    )
    make_job(name="report", namespace="shop", schedule="0 3 * * MON", timezone="Europe/Berlin")
    assert counts_by_hour(load(namespace="shop")) == {"Mon 02": 1, "Mon 03": 1}
    assert counts_by_hour(load(name="IMPORT")) == {"Mon 01": 1, "Mon 02": 1}
    assert counts_by_hour(load(name="import", namespace="shop")) == {"Mon 02": 1}
    assert counts_by_hour(load(namespace="none")) == {}


def test_week_with_clock_change_has_one_hour_less_or_more() -> None:
    make_job(schedule="30 * * * *")
    spring = planned_load(date(2031, 3, 27), BERLIN)
    autumn = planned_load(date(2031, 10, 23), BERLIN)
    assert (len(spring.hours), len(autumn.hours)) == (167, 169)
    assert set(spring.hours + autumn.hours) == {1}
    assert f"{spring.start_of(166):%a %H}" == "Wed 23"


def test_load_is_cached_until_a_job_changes() -> None:
    job = make_job(schedule="0 1 * * MON", timezone="Europe/Berlin")
    other = make_job(schedule="0 2 * * MON", timezone="Europe/Berlin")

    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            load()
        return len(captured)

    assert (queries(), queries(), queries()) == (2, 1, 1)
    job.refresh_from_db()
    job.schedule = "0 5 * * MON"
    control.save(job)
    assert counts_by_hour(load()) == {"Mon 02": 1, "Mon 05": 1}
    control.pause(other)
    assert counts_by_hour(load()) == {"Mon 05": 1}
    control.resume(other)
    control.pause(job)
    assert counts_by_hour(load()) == {"Mon 02": 1}
    make_job(schedule="0 6 * * MON", timezone="Europe/Berlin")
    other.delete()
    assert counts_by_hour(load()) == {"Mon 06": 1}
    assert queries() == 1


def test_crowds_exclude_jitter_and_spread_jobs() -> None:
    for _ in range(12):
        make_job(schedule="0 3 * * *", timezone="Europe/Berlin")
    for _ in range(11):
        make_job(schedule="0 5 * * *", timezone="Europe/Berlin", jitter=timedelta(minutes=5))
        make_job(schedule="0 H * * *")
    (crowd,) = load().crowded_minutes
    assert (crowd.jobs, crowd.minute, crowd.hours[0], len(crowd.hours)) == (12, 0, 3, 7)
    assert load(namespace="none").crowded_minutes == ()
