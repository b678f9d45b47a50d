"""The links of chains: which ends match which conditions, and whether every circle is found."""

from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_dcron.exceptions import InvalidSchedule
from django_dcron.policies.chains import On, circle, earlier_first, key_of, label_of, met_by
from django_dcron.policies.lifecycle import State
from django_dcron.schedules.describe import describe
from django_dcron.schedules.schedule import parse_schedule

GRAPHS = st.dictionaries(st.integers(0, 7), st.sets(st.integers(0, 7), max_size=4), max_size=8)
MET = {
    (State.SUCCEEDED, True): {On.SUCCEEDED, On.ENDED},
    (State.FAILED, True): {On.FAILED, On.ENDED},
    (State.FAILED, False): {On.FAILED, On.ENDED},
    (State.CANCELLED, True): {On.ENDED},
}
"""The outcomes that aren't listed trigger no following job."""


@pytest.mark.parametrize("started", [True, False])
@pytest.mark.parametrize("state", list(State))
def test_which_end_is_which(state: State, started: bool) -> None:
    if (state, started) != (State.SUCCEEDED, False):
        assert met_by(state, started=started) == MET.get((state, started), set())


def _reached(before: dict[int, set[int]], job: int) -> set[int]:
    """All jobs before this one, by the definition, without a path."""
    found = set(before.get(job, ()))
    while more := {far for near in found for far in before.get(near, ())} - found:
        found |= more
    return found


@given(GRAPHS)
def test_a_circle_is_found_if_and_only_if_there_is_one(before: dict[int, set[int]]) -> None:
    for job in range(8):
        way = circle(before, job)
        assert bool(way) == (job in _reached(before, job))
        if way:
            assert way[0] == way[-1] == job
            assert all(earlier in before[later] for earlier, later in pairwise(way))
            assert len(set(way)) == len(way) - 1, "no detours"


@given(GRAPHS)
def test_whoever_comes_after_others_is_behind_them(before: dict[int, set[int]]) -> None:
    ordered = earlier_first(before)
    assert sorted(ordered) == sorted(before)
    place = {job: number for number, job in enumerate(ordered)}
    for job, others in before.items():
        for other in others & before.keys():
            if not circle(before, job) and not circle(before, other):
                assert place[other] < place[job]


def test_those_that_come_after_nobody_keep_their_order() -> None:
    assert earlier_first({3: set(), 1: set(), 2: set()}) == [3, 1, 2]


def test_a_long_chain_is_walked() -> None:
    before = {number: {number - 1} for number in range(1, 20_000)}
    assert circle(before, 19_999) == []
    assert len(circle(before | {0: {19_999}}, 19_999)) == 20_001
    assert earlier_first(dict(reversed(before.items()))) == list(before)


@pytest.mark.parametrize("label", ["nightly", "shop/nightly", "a b.c@d:e-f"])
def test_labels(label: str) -> None:
    assert label_of(*key_of(label)) == label


def test_never_has_no_occurrence_at_all() -> None:
    never = parse_schedule(" @Never ", "Europe/Berlin")
    assert never.is_never
    assert never.next_after(datetime(2026, 1, 1, tzinfo=UTC)) is None
    assert never.previous_before(datetime(2026, 1, 1, tzinfo=UTC)) is None
    assert describe(never) == "Only on demand"
    assert not parse_schedule("@daily").is_never
    with pytest.raises(InvalidSchedule, match="@never"):
        parse_schedule("@never ever")
