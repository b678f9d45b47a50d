"""The occurrences that a cursor passes."""

from datetime import UTC, datetime

from tests.simulation.cursor_moves import Definition, is_occurrence, omitted, passed

LINES = Definition("0 * * * *\n30 1 * * *", "UTC", "02:00-03:30", "window_end", None, None)
INTERVAL = Definition("@every 40m", "UTC", None, "skip", None, None)
UNKNOWN = Definition("every now and then", "UTC", None, "skip", None, None)
START = "2026-03-01 01:00:00"


def test_claim_passes_the_occurrences_of_all_lines_and_the_end_of_the_excluded_time() -> None:
    found = list(passed(LINES, START, "2026-03-01 04:00:00"))
    assert found == [START, "2026-03-01 01:30:00", "2026-03-01 03:30:00"]


def test_interval_counts_from_the_occurrence_before() -> None:
    assert list(passed(INTERVAL, START, "2026-03-01 02:20:00")) == [START, "2026-03-01 01:40:00"]
    assert is_occurrence(INTERVAL, "2026-03-01 02:20:00", START)
    assert not is_occurrence(INTERVAL, "2026-03-01 02:21:00", START)


def test_claim_of_the_last_occurrence_is_checked_for_a_day() -> None:
    assert len(list(passed(LINES, START, None))) == 24 + 1


def test_new_definition_omits_no_occurrence() -> None:
    placed_at = "2026-03-01 02:10:00.5"
    first = datetime(2026, 3, 1, 3, 30, tzinfo=UTC)
    assert omitted(LINES, placed_at, "2026-03-01 03:30:00") is None
    assert omitted(LINES, placed_at, "2026-03-01 04:00:00") == first
    assert omitted(LINES, placed_at, None) == first


def test_occurrence_at_the_instant_of_the_definition_is_not_expected() -> None:
    assert omitted(LINES, START, "2026-03-01 01:30:00") is None


def test_unknown_schedule_is_not_checked() -> None:
    assert list(passed(UNKNOWN, START, "2026-03-01 04:00:00")) == [START]
    assert omitted(UNKNOWN, START, None) is None
    assert is_occurrence(UNKNOWN, "2026-03-01 02:21:00", START)
