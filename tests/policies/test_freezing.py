"""Test which runs a freeze holds back."""

from datetime import UTC, datetime, timedelta

import pytest

from django_dcron.policies.freezing import AUTOMATIC, FreezeExtent, holding_freeze, is_frozen
from django_dcron.policies.lifecycle import Trigger

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def frozen(
    *freezes: FreezeExtent, namespace: str = "shop", trigger: Trigger = Trigger.SCHEDULE
) -> bool:
    return is_frozen(freezes, namespace=namespace, trigger=trigger, now=NOON)


@pytest.mark.parametrize("trigger", Trigger)
def test_freeze_holds_back_automatic_runs_only(trigger: Trigger) -> None:
    automatic = trigger in {Trigger.SCHEDULE, Trigger.BACKFILL, Trigger.CHAIN}
    assert frozen(FreezeExtent("", NOON, None), trigger=trigger) is automatic
    assert (trigger in AUTOMATIC) is automatic


@pytest.mark.parametrize(
    ("of", "namespace", "expected"),
    [
        ("", "shop", True),
        ("shop", "shop", True),
        ("shop", "Shop", False),
        ("shop", "shop2", False),
        ("shop", "billing", False),
    ],
)
def test_freeze_covers_its_namespace_or_all_namespaces(
    of: str, namespace: str, expected: bool
) -> None:
    assert frozen(FreezeExtent(of, NOON, None), namespace=namespace) is expected


@pytest.mark.parametrize(
    ("until", "expected"),
    [(None, True), (NOON + MINUTE, True), (NOON, False), (NOON - MINUTE, False)],
)
def test_freeze_ends_at_its_end_time(until: datetime | None, expected: bool) -> None:
    assert frozen(FreezeExtent("", NOON - 2 * MINUTE, until)) is expected


def test_the_freeze_that_lasts_longest_holds_a_run() -> None:
    short, long = (FreezeExtent("", NOON, NOON + number * MINUTE) for number in (1, 2))
    open_end = FreezeExtent("shop", NOON, None)

    def held(*freezes: FreezeExtent, at: datetime = NOON) -> FreezeExtent | None:
        return holding_freeze(freezes, namespace="shop", at=at)

    assert held() is None
    assert held(short, long) == long
    assert held(long, open_end, short) == open_end
    assert held(short, at=NOON + MINUTE) is None
    assert held(FreezeExtent("other", NOON, None)) is None


def test_one_of_several_freezes_is_enough() -> None:
    over, other = FreezeExtent("", NOON - MINUTE, NOON), FreezeExtent("billing", NOON, None)
    assert not frozen()
    assert not frozen(over, other)
    assert frozen(over, other, FreezeExtent("shop", NOON, None))


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        (-2, -1, False),
        (-2, 0, False),
        (-2, 1, True),
        (-2, None, True),
        (0, 1, True),
        (0.05, None, True),
        (0.1, None, False),
        (2, None, False),
    ],
)
def test_freeze_delays_runs_that_are_due_from_shortly_before_it_begins(
    since: float, until: int | None, expected: bool
) -> None:
    """Times are in minutes. The run is due at 0."""
    end = None if until is None else NOON + until * MINUTE
    assert FreezeExtent("", NOON + since * MINUTE, end).delayed(NOON) is expected
