"""Compare imported recurrence rules with dateutil, which RedBeat uses."""

import json
import random
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import pytest
from dateutil.rrule import FR, MO, SU
from redbeat.decoder import RedBeatJSONDecoder, RedBeatJSONEncoder
from redbeat.schedules import rrule

from django_dcron.contrib.importers.redbeat_rules import MAX_COUNT, rule_fields
from django_dcron.contrib.importers.source_contents import EntryOmitted, EntryRefused
from django_dcron.exceptions import InvalidSchedule
from django_dcron.schedules.schedule import parse_schedule
from django_dcron.schedules.timetable import END, Timetable
from tests import depth
from tests.celery_app import app

NOW = datetime(2027, 1, 1, 12, tzinfo=UTC)
START = datetime(2027, 2, 3, 10, 20, tzinfo=UTC)
COMPARED = 40


def stored(*arguments: Any, **parts: Any) -> Any:
    """Return the rule as beat reads it from Redis."""
    rule = rrule(*arguments, **parts, app=app)
    return json.loads(json.dumps(rule, cls=RedBeatJSONEncoder), cls=RedBeatJSONDecoder)


def fields_of(rule: Any) -> dict[str, Any]:
    return rule_fields(rule, NOW, lambda text: None)


def expected(rule: Any) -> list[datetime]:
    return [at for at in islice(rule.rrule, COMPARED) if at < END]


def occurrences(fields: dict[str, Any]) -> list[datetime]:
    schedule = parse_schedule(fields["schedule"], fields["timezone"])
    timetable = Timetable(schedule, fields["starts_at"], fields["ends_at"])
    found = []
    at = timetable.first_after(START - timedelta(days=1))
    while at is not None and len(found) < COMPARED:
        found.append(at)
        at = timetable.next_after(at)
    return found


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"interval": 3},
        {"interval": 2, "byhour": 9},
        {"byhour": [9, 15], "byminute": [0, 30], "bysecond": 5},
        {"byweekday": [MO, FR], "byminute": 0},
        {"byweekday": SU, "wkst": SU, "interval": 2},
        {"bymonth": [2, 7], "count": 5},
        {"count": 1},
        {"until": START + timedelta(days=400)},
    ],
)
@pytest.mark.parametrize("frequency", ["DAILY", "WEEKLY", "MONTHLY", "YEARLY"])
def test_rule_has_the_occurrences_of_the_source(frequency: str, parts: dict[str, Any]) -> None:
    rule = stored(frequency, START, **parts)
    assert occurrences(fields_of(rule)) == expected(rule)


@pytest.mark.parametrize("frequency", ["HOURLY", "MINUTELY", "SECONDLY"])
@pytest.mark.parametrize("parts", [{}, {"interval": 7}, {"interval": 7, "count": 5}])
def test_frequent_rule_becomes_an_interval(frequency: str, parts: dict[str, Any]) -> None:
    rule = stored(frequency, START, **parts)
    assert fields_of(rule)["schedule"].startswith("@every")
    assert occurrences(fields_of(rule)) == expected(rule)


def test_random_rules_have_the_occurrences_of_the_source() -> None:
    generator = random.Random(7)
    accepted, examples = 0, depth.examples(600)
    for _ in range(examples):
        parts: dict[str, Any] = {
            "interval": generator.choice([1, 1, 2, 5]),
            "bymonth": generator.choice([None, None, [1, 4, 12]]),
            "bymonthday": generator.choice([None, None, 31, [1, -1], [15, 29]]),
            "byweekday": generator.choice([None, None, MO, [1, 3], [FR, SU]]),
            "bysetpos": generator.choice([None, None, None, -1, [1, 3]]),
            "byhour": generator.choice([None, None, 0, [3, 22]]),
            "byminute": generator.choice([None, None, 45]),
            "wkst": generator.choice([None, SU]),
            "count": generator.choice([None, None, 7]),
        }
        try:
            rule = stored(
                generator.choice(["DAILY", "WEEKLY", "MONTHLY", "YEARLY"]), START, **parts
            )
            fields = fields_of(rule)
        except (InvalidSchedule, ValueError):  # dateutil refuses some rules with BYSETPOS
            continue
        accepted += 1
        assert occurrences(fields) == expected(rule), parts
    assert accepted > 0.4 * examples


def test_rule_with_an_offset_does_not_follow_clock_changes() -> None:
    """RedBeat stores the offset of the start, and not its time zone."""
    warnings: list[str] = []
    start = datetime.fromisoformat("2027-02-03T09:00:00+01:00")
    rule = stored("MONTHLY", start, byhour=9)
    fields = rule_fields(rule, NOW, warnings.append)
    assert fields["timezone"] == "Etc/GMT-1"
    assert occurrences(fields) == expected(rule)
    assert "+0100" in warnings[0]
    with pytest.raises(EntryRefused, match=r"\+0530"):
        fields_of(stored("DAILY", datetime.fromisoformat("2027-02-03T09:00:00+05:30")))


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("HOURLY", START), {"byweekday": MO}),
        (("YEARLY", START), {"byweekno": 3}),
        (("YEARLY", START), {"byeaster": 0}),
        (("DAILY", START), {"bymonth": "12"}),
        (("DAILY", START), {"byweekday": []}),
        (("DAILY", START), {"count": MAX_COUNT + 1}),
        (("DAILY", START, 0), {}),
        (("MINUTELY", START, 0), {}),
    ],
)
def test_rule_without_an_equivalent_is_refused(
    arguments: tuple[Any, ...], parts: dict[str, Any]
) -> None:
    with pytest.raises((EntryRefused, InvalidSchedule)):
        fields_of(stored(*arguments, **parts))


@pytest.mark.parametrize(
    "parts", [{"count": 0}, {"count": 1}, {"until": NOW - timedelta(seconds=1)}]
)
def test_rule_that_has_ended_is_omitted(parts: dict[str, Any]) -> None:
    with pytest.raises(EntryOmitted):
        fields_of(stored("DAILY", NOW - timedelta(days=9), **parts))


def test_end_beyond_the_supported_range_is_no_end() -> None:
    assert fields_of(stored("YEARLY", START, count=5000))["ends_at"] is None
    for count in (10**9, 10**15):
        assert fields_of(stored("HOURLY", START, count=count))["ends_at"] is None
