"""Test the preview of a job definition: description, occurrences, intervals and warnings."""

from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pytest_django import DjangoAssertNumQueries

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.diagnosis.lookahead import CROWDED_FROM, CautionCode, Lookahead, look_ahead
from django_dcron.exceptions import InvalidSchedule
from django_dcron.models import Calendar, Cursor, Job
from tests.factories import make_job

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)


def ahead(schedule: str, **fields: Any) -> Lookahead:
    return look_ahead(Job(**({"name": "new", "schedule": schedule} | fields)))


def shown(lookahead: Lookahead, code: CautionCode) -> list[str]:
    return [caution.message for caution in lookahead.cautions if caution.code is code]


def test_lookahead_lists_description_occurrences_and_gaps() -> None:
    found = ahead("*/15 * * * *", timezone="Asia/Tokyo")

    assert found.words == "Every 15 minutes (Asia/Tokyo)"
    assert found.zone == "Asia/Tokyo"
    assert len(found.occurrences) == 10
    assert [occurrence.gap for occurrence in found.occurrences] == [None, *[15 * MINUTE] * 9]
    assert all(occurrence.at == occurrence.local for occurrence in found.occurrences)
    assert found.occurrences[0].local.utcoffset() == timedelta(hours=9)
    assert found.shortest_gap == 15 * MINUTE
    assert found.cautions == ()


def test_zone_in_schedule_text_overrides_zone_of_job() -> None:
    found = ahead("CRON_TZ=Asia/Tokyo 30 3 * * *", timezone="Europe/Berlin")

    assert found.zone == "Asia/Tokyo"
    assert {occurrence.local.hour for occurrence in found.occurrences} == {3}


def test_gaps_are_elapsed_time() -> None:
    """A year in Berlin has one day of 23 hours and one of 25."""
    found = look_ahead(Job(name="new", schedule="0 12 * * *", timezone="Europe/Berlin"), count=366)
    gaps = [occurrence.gap for occurrence in found.occurrences if occurrence.gap]

    assert {gap // timedelta(hours=1) for gap in gaps} == {23, 24, 25}


def test_interval_of_stored_job_starts_at_cursor() -> None:
    job = make_job(schedule="@every 7m")
    found = look_ahead(job)

    assert found.occurrences[0].at == Cursor.objects.get(job=job).next_at
    assert not found.counts_from_saving


def test_interval_of_new_job_starts_at_save_or_starts_at() -> None:
    start = database_now("default") + timedelta(days=1)

    assert ahead("@every 7m").counts_from_saving
    assert not ahead("@every 7m", starts_at=start).counts_from_saving
    assert not ahead("*/7 * * * *").counts_from_saving


def test_changed_interval_of_job_without_occurrence_starts_at_save() -> None:
    job = make_job(schedule="@every 7m")
    job.schedule = "@every 8m"
    assert look_ahead(job).counts_from_saving
    job.enabled = False  # it is counted from the resume
    assert not look_ahead(job).counts_from_saving

    Cursor.objects.filter(job=job).update(previous_at=database_now("default"))
    job.enabled = True
    assert not look_ahead(job).counts_from_saving


def test_invalid_schedule_is_refused() -> None:
    with pytest.raises(InvalidSchedule):
        ahead("61 * * * *")


# --- cautions -----------------------------------------------------------------------------------


def test_schedule_in_the_past_warns_never_fires() -> None:
    found = ahead("@at 2020-01-01T00:00")

    assert [caution.code for caution in found.cautions] == [CautionCode.NEVER_FIRES]
    assert found.occurrences == ()


def test_near_end_warns_with_remaining_occurrences() -> None:
    start = database_now("default") + timedelta(days=1)
    soon = ahead("@every 1h", starts_at=start, ends_at=start + timedelta(hours=3, minutes=30))
    last = ahead("@every 1h", starts_at=start, ends_at=start + timedelta(minutes=30))

    assert [" 4 occurrences " in message for message in shown(soon, CautionCode.ENDS_SOON)] == [
        True
    ]
    assert [" 1 occurrence " in message for message in shown(last, CautionCode.ENDS_SOON)] == [True]
    assert not shown(ahead("@every 1h"), CautionCode.ENDS_SOON)
    assert not shown(ahead("@at 2050-01-01T00:00"), CautionCode.ENDS_SOON)
    sparse = ahead("@every 10000d")  # its next occurrence is after 2199
    assert len(sparse.occurrences) < 10
    assert not shown(sparse, CautionCode.ENDS_SOON)
    holidays = Calendar(name="holidays", dates="01-01")
    moved = ahead("@at 2050-01-01T00:00", calendar=holidays, calendar_policy="next_day")
    assert [f"{each.at:%m-%d}" for each in moved.occurrences] == ["01-02"]
    assert not shown(moved, CautionCode.ENDS_SOON)


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        ("* * * * * *", " 1 second "),
        ("*/5 * * * * *", " 5 seconds "),
        ("@every 9s", " 9 seconds "),
        ("0,3 0 * * * *", " 3 seconds "),
        ("*/10 * * * * *", ""),
        ("* * * * *", ""),
    ],
)
def test_frequent_schedule_warns_with_interval(schedule: str, text: str) -> None:
    messages = shown(ahead(schedule), CautionCode.FREQUENT)

    assert len(messages) == bool(text)
    assert all(text in message for message in messages)


def test_six_fields_warning_is_shown_for_cron_text_only() -> None:
    assert "six fields" in shown(ahead("* * * * * *"), CautionCode.FREQUENT)[0]
    assert "six fields" not in shown(ahead("@every 1s"), CautionCode.FREQUENT)[0]


def test_clock_change_warns_of_moved_and_repeated_time() -> None:
    messages = shown(ahead("30 2 * * *", timezone="Europe/Berlin"), CautionCode.CLOCK_CHANGE)

    forward = next(message for message in messages if "forward" in message)
    back = next(message for message in messages if "back" in message)
    assert len(messages) == 2
    assert "from 02:00 to 03:00" in forward
    assert "run once, at 03:00" in forward
    assert "from 03:00 to 02:00" in back
    assert "only the first time" in back
    assert shown(ahead("30 4 * * *", timezone="Europe/Berlin"), CautionCode.CLOCK_CHANGE) == []
    assert shown(ahead("30 2 * * *"), CautionCode.CLOCK_CHANGE) == []


def test_clock_change_warning_names_day_of_change() -> None:
    job = Job(name="new", schedule="30 2 * * *", timezone="Europe/Berlin")
    found = look_ahead(job, count=400)
    moved = next(occurrence.local for occurrence in found.occurrences if occurrence.local.hour == 3)

    forward = next(
        message for message in shown(found, CautionCode.CLOCK_CHANGE) if "forward" in message
    )
    assert f" {moved:%Y-%m-%d}" in forward
    assert "Europe/Berlin" in forward


def test_clock_change_after_end_causes_no_warning() -> None:
    now = database_now("default")
    soon = {"starts_at": now, "ends_at": now + timedelta(days=380)}

    assert (
        len(
            shown(ahead("*/30 2 * * *", timezone="Europe/Berlin", **soon), CautionCode.CLOCK_CHANGE)
        )
        == 2
    )
    changed = _next_change(now)
    soon["ends_at"] = changed - timedelta(seconds=1)
    assert (
        shown(ahead("*/30 2 * * *", timezone="Europe/Berlin", **soon), CautionCode.CLOCK_CHANGE)
        == []
    )


def _next_change(now: datetime) -> datetime:
    zone = ZoneInfo("Europe/Berlin")
    hour = now.replace(minute=0, second=0, microsecond=0)
    while (hour + timedelta(hours=1)).astimezone(zone).utcoffset() == hour.astimezone(
        zone
    ).utcoffset():
        hour += timedelta(hours=1)
    return hour + timedelta(hours=1)


def test_h_without_job_name_warns() -> None:
    assert shown(ahead("H 3 * * *", name=""), CautionCode.UNNAMED)
    assert not shown(ahead("H 3 * * *"), CautionCode.UNNAMED)
    assert not shown(ahead("0 3 * * *", name=""), CautionCode.UNNAMED)


# --- the same minute as many others -------------------------------------------------------------


@pytest.fixture
def crowded_jobs() -> list[Job]:
    """Create the smallest number of jobs at 04:00 UTC that causes a warning."""
    return [make_job(schedule="0 4 * * *") for _ in range(CROWDED_FROM)]


def test_crowded_minute_warns_and_suggests_h(crowded_jobs: list[Job]) -> None:
    at = ahead("0 4 * * *").occurrences[0].at
    [message] = shown(ahead("0 4 * * *"), CautionCode.CROWDED_MINUTE)

    assert f"{CROWDED_FROM} other jobs" in message
    assert f"{at:%Y-%m-%d} 04:00" in message
    assert "“H 4 * * *”" in message


def test_crowded_minute_is_shown_in_zone_of_schedule(crowded_jobs: list[Job]) -> None:
    [message] = shown(ahead("0 13 * * *", timezone="Asia/Tokyo"), CautionCode.CROWDED_MINUTE)

    assert "13:00" in message


def test_job_does_not_count_itself_as_crowd(crowded_jobs: list[Job]) -> None:
    assert not shown(look_ahead(crowded_jobs[0]), CautionCode.CROWDED_MINUTE)


@pytest.mark.parametrize(
    ("schedule", "proposal"),
    [
        ("0 4 * * *", "“H 4 * * *”"),
        ("30 0 4 * * *", "“30 H 4 * * *”"),
        ("CRON_TZ=UTC 0 4 * * *", "“CRON_TZ=UTC H 4 * * *”"),
        ("*/30 4 * * *", "“H/30 4 * * *”"),
        ("0,30 4 * * *", "“H/30 4 * * *”"),
        ("*/40 4 * * *", "jitter"),  # H/40 may have only one occurrence
        ("0 4 * * ?", "“H 4 * * ?”"),
        ("0-1 4 * * *", "jitter"),
    ],
)
def test_crowded_minute_suggests_same_schedule_with_h(
    crowded_jobs: list[Job], schedule: str, proposal: str
) -> None:
    midnight = database_now("default").replace(hour=0, minute=0, second=0, microsecond=0)
    found = look_ahead(Job(name="new", schedule=schedule), after=midnight)

    assert f"{found.occurrences[0].at:%H:%M}" == "04:00"
    assert proposal in shown(found, CautionCode.CROWDED_MINUTE)[0]


def test_job_that_avoids_crowded_minute_gets_no_warning(crowded_jobs: list[Job]) -> None:
    assert not shown(ahead("0 4 * * *", jitter=MINUTE), CautionCode.CROWDED_MINUTE)
    assert not shown(ahead("* 4 * * *"), CautionCode.CROWDED_MINUTE)
    assert not shown(ahead("1 4 * * *"), CautionCode.CROWDED_MINUTE)


def test_paused_and_quarantined_jobs_do_not_count_as_crowd(crowded_jobs: list[Job]) -> None:
    control.pause(crowded_jobs[0])
    assert not shown(ahead("0 4 * * *"), CautionCode.CROWDED_MINUTE)
    control.resume(crowded_jobs[0])
    Cursor.objects.filter(job=crowded_jobs[1]).update(problem="vanished zone")
    assert not shown(ahead("0 4 * * *"), CautionCode.CROWDED_MINUTE)


@pytest.mark.parametrize("schedule", ["0 * * * *", "@every 1h", "0 */2 * * *"])
def test_crowded_minute_is_found_at_any_hour(schedule: str) -> None:
    """It doesn't matter whether those jobs also start earlier."""
    start = database_now("default").replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    start += timedelta(hours=start.hour % 2)
    for _ in range(CROWDED_FROM):
        make_job(schedule=schedule, starts_at=start)

    for hours in range(0, 24, 4):
        at = start + timedelta(hours=hours)
        [message] = shown(ahead(f"0 {at.hour} * * *"), CautionCode.CROWDED_MINUTE)
        assert f"{CROWDED_FROM} other jobs start" in message
        assert not shown(ahead(f"30 {at.hour} * * *"), CautionCode.CROWDED_MINUTE)


@pytest.mark.parametrize(
    "fields",
    [
        {"schedule": "* * * * *"},
        {"schedule": "@every 20s"},
        {"schedule": "0 4 * * *", "jitter": MINUTE},
        {"schedule": "H(0-0) 4 * * *"},
    ],
)
def test_every_minute_and_spread_jobs_do_not_count_as_crowd(fields: dict[str, Any]) -> None:
    for _ in range(CROWDED_FROM):
        make_job(**fields)

    assert not shown(ahead("0 4 * * *"), CautionCode.CROWDED_MINUTE)


@pytest.mark.parametrize(
    ("schedule", "dates", "count"),
    [
        ("0 9 WD#3 * ?", "02:00-04:00", 1),
        ("0 9 WD#3 * ?\n0 9 1 * *", "SUN 02:00-04:00", 1),
        ("0 9 3 * ?", "02:00-04:00", 0),
        ("0 9 WD#3 * ?", "SAT-SUN, 02:00-04:00", 0),
        ("0 9 WD#3 * ?", "only MON-FRI 08:00-18:00", 0),
        ("0 9 WD#3 * ?", "12-25", 0),
    ],
)
def test_calendar_without_whole_dates_makes_every_date_a_working_day(
    schedule: str, dates: str, count: int
) -> None:
    calendar = Calendar.objects.create(name="days", dates=dates)
    found = ahead(schedule, calendar=calendar)
    assert len(shown(found, CautionCode.EVERY_DATE_COUNTS)) == count


def test_lookahead_needs_few_queries(
    crowded_jobs: list[Job], django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    make_job(schedule="0 4 * * *", timezone="Atlantic/Reykjavik")
    with django_assert_max_num_queries(3):
        assert (
            f"{CROWDED_FROM} other jobs"
            in shown(look_ahead(crowded_jobs[0]), CautionCode.CROWDED_MINUTE)[0]
        )
