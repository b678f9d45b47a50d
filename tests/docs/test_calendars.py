"""Compare docs/how-to/calendars.md with the code."""

import ast
import re

import pytest

from django_dcron.jobs.cursors import MOVED_AT_ONCE
from django_dcron.models import Calendar, Job
from django_dcron.models.calendar import read_dates
from django_dcron.schedules.calendar import ExclusionPolicy
from django_dcron.schedules.days import HORIZON_YEARS
from django_dcron.targets.declaration import JobFields
from tests.docs.test_documents import ROOT

PAGE = (ROOT / "docs" / "how-to" / "calendars.md").read_text()


def test_documented_calendar_entries_parse() -> None:
    entries = re.findall(
        r"^\| `([^`]+)` \| (?!is dropped|moves|the occurrence)", PAGE, re.MULTILINE
    )
    assert len(entries) == 8
    for entry in entries:
        assert read_dates(entry).text == entry
    (dates,) = re.findall(r'dates="([^"]+)"', PAGE)
    assert read_dates(dates.replace("\\n", "\n")).holidays


def test_documented_calendar_policies_and_default_match_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)`(.*?) \| (?:is dropped|moves)", PAGE, re.MULTILINE)
    assert [name for name, _ in rows] == list(ExclusionPolicy)
    (default,) = [name for name, message in rows if message == " (the default)"]
    assert Job._meta.get_field("calendar_policy").get_default() == default
    assert {"calendar", "calendar_policy"} <= JobFields.__annotations__.keys()


def test_documented_limits_match_the_code() -> None:
    assert MOVED_AT_ONCE == 500
    assert "up to 500 jobs at once" in PAGE
    assert HORIZON_YEARS == 50
    assert "no occurrence in fifty years" in PAGE


@pytest.mark.django_db
def test_examples_create_the_documented_calendar() -> None:
    creation, declaration = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(creation, {})  # noqa: S102 (the project's own page)
    assert Calendar.objects.get(name="bank days").dates.splitlines() == [
        "SAT-SUN",
        "holidays DE-BY",
        "12-24, 12-31",
    ]
    ast.parse(declaration)
