"""Test the names of public holidays, which the package ``holidays`` has in some languages."""

from datetime import date

import pytest

from django_dcron.schedules import public_holidays
from django_dcron.schedules.public_holidays import holiday_name, holidays_in


@pytest.mark.parametrize(
    ("country", "part", "day", "language", "name"),
    [
        ("DE", "", date(2026, 12, 25), "de", "Erster Weihnachtstag"),
        ("DE", "", date(2026, 12, 25), "de-at", "Erster Weihnachtstag"),
        ("DE", "", date(2026, 12, 25), "en-gb", "Christmas Day"),
        ("CN", "", date(2026, 10, 1), "zh-hans", "国庆节"),
        # Without a name in the language, it is English.
        ("DE", "", date(2026, 12, 25), "zh-hans", "Christmas Day"),
        ("DE", "", date(2026, 12, 25), "", "Christmas Day"),
        # A holiday of some parts of the country.
        ("DE", "by", date(2026, 1, 6), "de", "Heilige Drei Könige"),
        ("DE", "", date(2026, 1, 6), "de", ""),
        ("DE", "", date(2026, 12, 24), "de", ""),
        ("XX", "", date(2026, 12, 25), "de", ""),
    ],
)
def test_name_is_in_the_language_or_in_english(
    country: str, part: str, day: date, language: str, name: str
) -> None:
    assert holiday_name(country, part, day, language) == name


@pytest.mark.parametrize("country", ["DE", "US", "CN", "BR", "GB"])
def test_every_holiday_has_a_name(country: str) -> None:
    of_year = holidays_in(country, "")
    for year in range(2020, 2030):
        for day in of_year(year):
            assert holiday_name(country, "", day, "en"), day


def test_without_the_package_there_is_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ImportError

    public_holidays._names_of_year.cache_clear()
    monkeypatch.setattr(public_holidays, "_package", missing)
    assert holiday_name("DE", "", date(2026, 12, 25), "de") == ""
