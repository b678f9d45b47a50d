"""Test how the admin formats relative times and dotted paths."""

import re
from datetime import timedelta

import pytest

from django_dcron.admin.display import breakable, time_ago_text


@pytest.mark.parametrize(
    ("age", "shown"),
    [
        (timedelta(seconds=1), ("1", "s")),
        (timedelta(seconds=59.9), ("59", "s")),
        (timedelta(minutes=1), ("1", "min")),
        (timedelta(minutes=59, seconds=59), ("59", "min")),
        (timedelta(hours=1), ("1", "h")),
        (timedelta(hours=23, minutes=59), ("23", "h")),
        (timedelta(days=1), ("1", "day")),
        (timedelta(days=40), ("40", "days")),
    ],
)
def test_age_is_shown_in_its_largest_unit(age: timedelta, shown: tuple[str, str]) -> None:
    assert re.findall(r"^(\d+) (\w+)\b", time_ago_text(age)) == [shown]


@pytest.mark.parametrize("age", [timedelta(), timedelta(seconds=0.9), timedelta(seconds=-5)])
def test_age_below_one_second_is_shown_without_a_number(age: timedelta) -> None:
    assert not re.search(r"\d", time_ago_text(age))


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("shop.tasks.import_all", "shop.<wbr>tasks.<wbr>import_<wbr>all"),
        ("command:clear_sessions", "command:<wbr>clear_<wbr>sessions"),
        ("shop.__private__", "shop.__<wbr>private__"),
        ("a.<b>&_c", "a.<wbr>&lt;b&gt;&amp;_<wbr>c"),
        ("", ""),
    ],
)
def test_path_may_break_after_its_separators_and_is_escaped(path: str, shown: str) -> None:
    assert breakable(path) == shown
