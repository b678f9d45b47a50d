"""`LW` and `nW` in every month of every kind of year."""

from calendar import monthrange
from datetime import date, timedelta

import pytest

from django_dcron.schedules.special_days import LastWeekday, NearestWeekday

MONTHS = [(year, month) for year in range(2000, 2028) for month in range(1, 13)]
"""Leap years and other years, starting on each weekday."""


def days(year: int, month: int) -> list[date]:
    return [date(year, month, 1) + timedelta(days=n) for n in range(monthrange(year, month)[1])]


def weekdays(year: int, month: int) -> list[date]:
    return [day for day in days(year, month) if day.weekday() < 5]


def test_last_weekday_matches_once_in_every_month() -> None:
    matched = set()
    for year, month in MONTHS:
        found = [day for day in days(year, month) if LastWeekday().matches(day)]
        assert found == weekdays(year, month)[-1:]
        matched.add(found[0].day)
    assert matched == set(LastWeekday().window())


@pytest.mark.parametrize("number", [1, 2, 3, 15, 27, 28, 29, 30, 31])
def test_nearest_weekday_stays_within_the_month(number: int) -> None:
    special = NearestWeekday(number)
    for year, month in MONTHS:
        found = [day for day in days(year, month) if special.matches(day)]
        if number > monthrange(year, month)[1]:
            assert found == []
            continue
        assert found == [min(weekdays(year, month), key=lambda day: abs(day.day - number))]
        assert found[0].day in special.window()
