"""``dcron calendar``: a calendar from an iCalendar file."""

import re
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from django_dcron import control
from django_dcron.management.dcron.exits import NEGATIVE, USAGE_ERROR
from django_dcron.models import AuditEntry, Calendar
from django_dcron.testing import set_clock
from tests.contrib.test_ics import file_of
from tests.management.calling import call
from tests.scheduler.stand_ins import START

pytestmark = pytest.mark.django_db

MOVE = "DTSTART;VALUE=DATE:20261224 SUMMARY:Move"
HOURLY = "DTSTART;VALUE=DATE:20261224 RRULE:FREQ=HOURLY SUMMARY:Often"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.ics"
    path.write_bytes(file_of(MOVE))
    return path


def test_calendar_is_created(path: Path) -> None:
    with set_clock(START):
        result = call("calendar", "closed", "--ics", str(path), "--json")
    assert (result.code, result.json["outcome"], result.json["written"]) == (0, "create", True)
    assert Calendar.objects.get().dates == "2026-12-24 # Move"


def test_second_import_replaces_the_dates_and_keeps_the_description(path: Path) -> None:
    control.save_calendar(Calendar(name="closed", dates="12-25", description="HR"))
    with set_clock(START):
        first = call("calendar", "closed", "--ics", str(path), "--json")
        second = call("calendar", "closed", "--ics", str(path), "--json")
    assert [first.json["outcome"], second.json["outcome"]] == ["change", "keep"]
    calendar = Calendar.objects.get()
    assert (calendar.dates, calendar.description) == ("2026-12-24 # Move", "HR")
    assert calendar.version == 2
    assert {entry.via for entry in AuditEntry.objects.all()} >= {"cli"}


def test_omitted_events_are_named_and_the_others_written(path: Path) -> None:
    path.write_bytes(file_of(MOVE, HOURLY))
    with set_clock(START):
        result = call("calendar", "closed", "--ics", str(path), "--json")
    assert (result.code, result.err) == (NEGATIVE, "1 event was omitted.")
    assert [each["event"] for each in result.json["omitted"]] == ["Often"]
    assert Calendar.objects.get().dates == "2026-12-24 # Move"


def test_error_names_few_of_the_omitted_events(path: Path) -> None:
    path.write_bytes(file_of(*[f"{HOURLY}-{number}" for number in range(300)]))
    with set_clock(START):
        result = call("calendar", "closed", "--ics", str(path))
    assert result.code == USAGE_ERROR
    assert re.findall(r"Often-\d+", result.err) == [f"Often-{number}" for number in range(5)]
    assert result.err.rstrip().endswith("; ….")


def test_omitted_event_without_a_title_is_named_by_its_date(path: Path) -> None:
    path.write_bytes(file_of(MOVE, HOURLY.removesuffix(" SUMMARY:Often"), "DTSTART:someday"))
    with set_clock(START):
        result = call("calendar", "closed", "--ics", str(path))
    assert "omitted: 2026-12-24: " in result.out
    assert "omitted: event without a title: " in result.out


def test_dry_run_writes_nothing(path: Path) -> None:
    with set_clock(START):
        result = call("calendar", "closed", "--ics", str(path), "--dry-run")
    assert result.code == 0
    assert result.out.startswith("2026-12-24 # Move\n")
    assert not Calendar.objects.exists()


def test_file_can_be_the_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(file_of(MOVE))))
    with set_clock(START):
        assert call("calendar", "closed", "--ics", "-").code == 0
    assert Calendar.objects.get().dates == "2026-12-24 # Move"


@pytest.mark.parametrize(
    ("content", "arguments"),
    [
        (b"hello", ("closed",)),
        (file_of(HOURLY), ("closed",)),
        (file_of(MOVE), ("a//b",)),
        (file_of(MOVE), ("closed", "--years", "0")),
        (file_of(MOVE), ("closed", "--years", "²")),
        (file_of(MOVE), ("closed", "--timezone", "Mars")),
        (None, ("closed",)),
    ],
)
def test_invalid_input_writes_nothing(
    path: Path, content: bytes | None, arguments: tuple[str, ...]
) -> None:
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with set_clock(START):
        assert call("calendar", *arguments, "--ics", str(path)).code == USAGE_ERROR
    assert not Calendar.objects.exists()
