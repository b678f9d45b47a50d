"""Compare docs/how-to/calendars.md with the code."""

import ast
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from django_dcron import targets
from django_dcron.jobs.cursors import MOVED_AT_ONCE
from django_dcron.models import Calendar, Job
from django_dcron.models.calendar import read_dates
from django_dcron.schedules.calendar import ExclusionPolicy
from django_dcron.schedules.days import HORIZON_YEARS
from django_dcron.schedules.exclusion import apply_calendar
from django_dcron.schedules.schedule import parse_schedule
from django_dcron.targets.declared_fields import JobFields
from tests.contrib.test_ics import file_of
from tests.docs.test_documents import ROOT

WEEK = timedelta(weeks=1)
PAGE = (ROOT / "docs" / "how-to" / "calendars.md").read_text()


def test_documented_calendar_entries_parse() -> None:
    entries = re.findall(
        r"^\| `([^`]+)` \| (?!is dropped|moves|the occurrence)", PAGE, re.MULTILINE
    )
    assert len(entries) == 12
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
def test_examples_create_the_documented_calendar(tmp_path: Path) -> None:
    creation, declaration, import_of_events, windows = re.findall(
        r"```python\n(.*?)```", PAGE, re.DOTALL
    )
    exec(creation, {})  # noqa: S102 (the project's own page)
    assert Calendar.objects.get(name="bank days").dates.splitlines() == [
        "SAT-SUN",
        "holidays DE-BY",
        "12-24, 12-31",
    ]
    ast.parse(declaration)
    names: dict[str, Any] = {}
    exec(import_of_events, names)  # noqa: S102
    path = tmp_path / "windows.ics"
    path.write_bytes(file_of("DTSTART;VALUE=DATE:20261224"))
    names["import_windows"](path)
    assert Calendar.objects.get(name="maintenance").dates == "2026-12-24"
    times = {"maintenance": "SAT-SUN 02:00-04:00", "business hours": "only MON-FRI 09:00-17:00"}
    found = []
    with targets.isolated_registry():
        exec(windows, {"__name__": "shop"})  # noqa: S102
        for each in targets.declarations():
            dates = read_dates(times[each.fields["calendar"]])
            policy = ExclusionPolicy(each.fields.get("calendar_policy", "skip"))
            schedule = apply_calendar(parse_schedule(each.fields["schedule"]), dates, policy)
            after = datetime(2026, 12, 5, 1, 50, tzinfo=UTC)  # a Saturday
            found.append([f"{at:%a %H:%M}" for at in schedule.occurrences(after, after + WEEK, 2)])
    assert found == [["Sat 04:00", "Sat 04:15"], ["Mon 09:00", "Mon 10:00"]]
