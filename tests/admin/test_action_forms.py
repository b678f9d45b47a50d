"""Test how the form for a pause parses its end."""

from datetime import UTC, datetime, timedelta

import pytest
from django.core.exceptions import ValidationError
from django.utils import timezone

from django_dcron.admin import action_forms
from django_dcron.admin.action_forms import PauseForm, UntilField

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)
"""14:00 in Berlin."""


@pytest.fixture(autouse=True)
def noon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(action_forms, "database_now", lambda using: NOON)


@pytest.mark.parametrize(
    ("text", "until"),
    [
        (" 2h ", NOON + timedelta(hours=2)),
        ("90s", NOON + timedelta(seconds=90)),
        ("1d 12h", NOON + timedelta(hours=36)),
        ("18:00", datetime(2026, 7, 1, 16, tzinfo=UTC)),
        ("9:30", datetime(2026, 7, 2, 7, 30, tzinfo=UTC)),
        ("14:00", datetime(2026, 7, 2, 12, tzinfo=UTC)),
        ("18:00Z", datetime(2026, 7, 1, 18, tzinfo=UTC)),
        ("18:00+03:00", datetime(2026, 7, 1, 15, tzinfo=UTC)),
        ("9:30Z", datetime(2026, 7, 2, 9, 30, tzinfo=UTC)),
        ("12:00+00:00", datetime(2026, 7, 2, 12, tzinfo=UTC)),
        ("01:00+14:00", datetime(2026, 7, 2, 11, tzinfo=UTC)),
        ("2026-07-02", datetime(2026, 7, 1, 22, tzinfo=UTC)),
        ("2026-12-01 09:00", datetime(2026, 12, 1, 8, tzinfo=UTC)),
        ("2026-12-01T09:00:30", datetime(2026, 12, 1, 8, 0, 30, tzinfo=UTC)),
        ("2026-12-01T09:00Z", datetime(2026, 12, 1, 9, tzinfo=UTC)),
        ("", None),
    ],
)
def test_until_field_accepts_duration_time_or_date(text: str, until: datetime | None) -> None:
    with timezone.override("Europe/Berlin"):
        assert UntilField(required=False).clean(text) == until


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ("2027-10-31T00:15Z", "2027-10-31T00:30Z"),
        ("2027-10-31T00:45Z", "2027-10-31T01:30Z"),  # the clocks show 2:30 again
        ("2027-10-31T01:30Z", "2027-11-01T01:30Z"),
        ("2027-03-28T01:45Z", "2027-03-29T00:30Z"),
    ],
)
def test_until_is_the_next_time_at_a_clock_change(
    now: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    instant = datetime.fromisoformat(now)
    monkeypatch.setattr(action_forms, "database_now", lambda using: instant)
    with timezone.override("Europe/Berlin"):
        until = UntilField().clean("2:30")
    assert until.astimezone(UTC) == datetime.fromisoformat(expected)


def test_until_may_not_be_a_time_that_the_clocks_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    before = datetime(2027, 3, 28, 0, 45, tzinfo=UTC)
    monkeypatch.setattr(action_forms, "database_now", lambda using: before)
    with timezone.override("Europe/Berlin"), pytest.raises(ValidationError) as refused:
        UntilField().clean("2:30")
    assert refused.value.error_list[0].code == "ambiguous_timezone"


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("soon", "invalid", "soon"),
        ("2", "invalid", "“2”"),
        ("25:00", "invalid", "25:00"),
        ("2026-13-01", "invalid", "2026-13-01"),
        ("-2h", "invalid", "-2h"),
        ("0s", "passed", "2026-07-01 14:00:00 CEST"),
        ("2026-07-01 13:59", "passed", "2026-07-01 13:59:00 CEST"),
        ("2026-10-25 02:30", "ambiguous_timezone", "Europe/Berlin"),
        ("99999d", "max_value", "36500d"),
        ("9999999999d", "invalid", "9999999999d"),
        (":", "invalid", "“:”"),
        ("18:00 CET", "invalid", "18:00 CET"),
        ("2199-12-31 23:59", "max_value", "36500d"),
        ("9999-12-31 23:59", "out_of_range", "1970"),
        ("0001-01-01T00:00:00+05:00", "out_of_range", "1970"),
        ("9999-12-31T23:59:59-05:00", "out_of_range", "1970"),
    ],
)
def test_until_field_rejects_invalid_or_past_value(text: str, code: str, message: str) -> None:
    with timezone.override("Europe/Berlin"), pytest.raises(ValidationError) as refused:
        UntilField().clean(text)
    assert refused.value.error_list[0].code == code
    assert message in refused.value.messages[0]


def test_help_text_names_current_time_zone() -> None:
    with timezone.override("Asia/Tokyo"):
        assert "Asia/Tokyo" in str(PauseForm()["until"].help_text)
