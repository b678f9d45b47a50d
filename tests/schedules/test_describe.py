"""Descriptions of schedules mention every part of a schedule."""

from itertools import product

import pytest

from django_dcron.schedules.describe import describe
from django_dcron.schedules.schedule import parse_schedule


@pytest.mark.parametrize(
    ("day", "month", "year"), list(product(("*", "17"), ("*", "JUN"), ("*", "2031"))), ids=str
)
def test_description_mentions_every_part(day: str, month: str, year: str) -> None:
    message = describe(parse_schedule(f"0 41 9 {day} {month} ? {year}"))
    parts = {"9": True, "41": True, "17": day != "*", "June": month != "*", "2031": year != "*"}
    assert {part: part in message for part in parts} == parts


@pytest.mark.parametrize("text", ["5/{} * * * *", "0 8/{} * * *", "5/{} * * * * *"])
def test_step_with_leading_zero_has_the_same_description(text: str) -> None:
    for step in ("1", "2"):
        padded, plain = (parse_schedule(text.format(zeros + step)) for zeros in ("0", ""))
        assert describe(padded) == describe(plain)


@pytest.mark.parametrize(
    ("weekday", "name"),
    list(enumerate(("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"))),
)
def test_description_names_the_weekday(weekday: int, name: str) -> None:
    assert name in describe(parse_schedule(f"41 9 * * {weekday}"))
