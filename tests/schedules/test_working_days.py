"""Test the n-th working day of a month. Dates that the calendar excludes don't count."""

from datetime import UTC, date, datetime, timedelta
from random import Random

import pytest

from django_dcron.exceptions import InvalidSchedule
from django_dcron.schedules.calendar import ExcludedDates, ExclusionPolicy
from django_dcron.schedules.describe import describe
from django_dcron.schedules.exclusion import apply_calendar
from django_dcron.schedules.schedule import parse_schedule
from tests import depth
from tests.schedules.test_exclusion import calendar
from tests.schedules.test_lines import both_ways

DAY = timedelta(days=1)
START = datetime(2026, 1, 1, tzinfo=UTC)

CALENDARS = (
    "SAT-SUN\nholidays DE",
    "SAT, 12-24..01-06",
    "2026-02-20..2026-05-10\nSUN",
    "MON-WED",
    "FRI\n02-01..02-26",
)


def expected_dates(nth: int, dates: ExcludedDates | None, days: int) -> list[date]:
    """Return the n-th (or, if negative, the n-th last) working day of each month."""
    months: dict[tuple[int, int], list[date]] = {}
    for number in range(-31, days + 31):
        day = START.date() + number * DAY
        is_free = dates.excludes(day) if dates else day.weekday() >= 5
        months.setdefault((day.year, day.month), [])
        if not is_free:
            months[day.year, day.month].append(day)
    index = nth - 1 if nth > 0 else nth
    found = [month[index] for month in months.values() if len(month) >= abs(nth)]
    return [day for day in found if START.date() < day <= START.date() + days * DAY]


@pytest.mark.parametrize("policy", ExclusionPolicy)
def test_days_match_a_day_by_day_count(policy: ExclusionPolicy) -> None:
    random = Random(15)
    for _ in range(depth.examples(300)):
        nth = random.choice([*range(1, 24), *range(-23, 0)])
        text = f"0 0 WD#{nth} * *" if nth > 0 else f"0 0 WD#L-{-1 - nth} * *"
        dates = random.choice([None, *map(calendar, CALENDARS)])
        schedule = parse_schedule(text)
        if dates:
            schedule = apply_calendar(schedule, dates, policy)
        found = both_ways(schedule, START, START + 500 * DAY)
        assert [at.date() for at in found] == expected_dates(nth, dates, 500), (text, dates)


def test_last_and_first_working_days_are_listed_together() -> None:
    dates = calendar("SAT-SUN\n05-01, 12-31")
    schedule = apply_calendar(parse_schedule("0 18 WD#3,WD#L * ?"), dates, ExclusionPolicy.SKIP)
    assert [f"{at:%m-%d}" for at in schedule.occurrences(START + 118 * DAY, START + 155 * DAY)] == [
        "04-30",
        "05-06",
        "05-29",
        "06-03",
    ]


@pytest.mark.parametrize(
    "item", ["WD#0", "WD#24", "WD#", "WD#L-23", "WD", "WD#LL", "WD#1-5", "3WD"]
)
def test_working_day_numbers_out_of_range_are_refused(item: str) -> None:
    with pytest.raises(InvalidSchedule):
        parse_schedule(f"0 0 {item} * *")


@pytest.mark.parametrize(
    ("item", "words"),
    [("WD#3", "working day 3"), ("WD#L", "the last working day"), ("WD#L-2", "2 working days")],
)
def test_description_names_the_working_day(item: str, words: str) -> None:
    assert words in describe(parse_schedule(f"0 9 {item} * *"))
