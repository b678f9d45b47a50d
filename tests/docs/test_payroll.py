"""Run the examples of docs/how-to/payroll.md, and compare their occurrences with the page."""

import re
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from django_dcron import targets
from django_dcron.models import Calendar
from django_dcron.models.calendar import read_dates
from django_dcron.schedules.calendar import ExclusionPolicy
from django_dcron.schedules.describe import describe
from django_dcron.schedules.exclusion import apply_calendar
from django_dcron.schedules.schedule import Schedule, parse_schedule
from tests.docs.test_documents import ROOT

PAGE = (ROOT / "docs" / "how-to" / "payroll.md").read_text()


def schedule_of(function: str) -> Schedule:
    """Return the schedule of the example with this function."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (block,) = (block for block in blocks if f"def {function}(" in block)
    names: dict[str, Any] = {"__name__": "payroll"}
    with targets.isolated_registry():
        exec(block, names)  # noqa: S102 (the project's own page)
        (declared,) = targets.declarations()
    return parse_schedule(declared.fields["schedule"], declared.fields["timezone"])


def times(schedule: Schedule, after: str, count: int) -> list[str]:
    zone = ZoneInfo(schedule.timezone)
    found, at = [], datetime.fromisoformat(after).replace(tzinfo=zone)
    for _ in range(count):
        following = schedule.next_after(at)
        assert following is not None
        at = following
        found.append(f"{at.astimezone(zone):%a %Y-%m-%d %H:%M}")
    return found


def test_occurrences_of_all_lines_are_combined() -> None:
    assert times(schedule_of("send_payment_reminders"), "2026-12-04T08:00", 4) == [
        "Fri 2026-12-04 09:00",
        "Sat 2026-12-05 11:00",
        "Mon 2026-12-07 09:00",
        "Tue 2026-12-08 09:00",
    ]


def test_recurrence_rule_counts_from_its_start() -> None:
    schedule = schedule_of("run_payroll")
    assert times(schedule, "2026-02-28T00:00", 3) == [
        "Fri 2026-03-13 09:00",
        "Fri 2026-03-27 09:00",
        "Fri 2026-04-10 09:00",
    ]
    assert f"*{describe(schedule).removesuffix(' (America/New_York)')}*" in PAGE


def test_listed_rules_have_the_listed_occurrences() -> None:
    rules = re.findall(r"^\| [^|]+ \| `(@rrule [^`]+)` \|", PAGE, re.MULTILINE)
    assert [times(parse_schedule(rule), "2026-02-01", 2) for rule in rules] == [
        ["Tue 2026-03-31 18:00", "Tue 2026-06-30 18:00"],
        ["Fri 2026-02-27 18:00", "Tue 2026-03-31 18:00"],
        ["Tue 2026-02-10 06:00", "Fri 2026-02-20 06:00"],
        ["Tue 2026-07-14 00:00", "Tue 2027-01-12 00:00"],
    ]


@pytest.mark.django_db
def test_working_days_are_those_of_the_calendar() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (block,) = (block for block in blocks if "save_calendar" in block)
    exec(block, {})  # noqa: S102 (the project's own page)
    dates = read_dates(Calendar.objects.get(name="bank days").dates)
    schedule = apply_calendar(schedule_of("transfer_salaries"), dates, ExclusionPolicy.SKIP)
    assert times(schedule, "2026-12-01T00:00", 4) == [
        "Thu 2026-12-03 18:00",
        "Wed 2026-12-30 18:00",
        "Thu 2027-01-07 18:00",  # January 1 and 6 are holidays
        "Fri 2027-01-29 18:00",
    ]
