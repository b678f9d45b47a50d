"""The links of chains: which ends match which conditions, and whether every cycle is found."""

from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_dcron.exceptions import InvalidSchedule
from django_dcron.policies.chains import (
    ChainCondition,
    conditions_met_by,
    find_cycle,
    in_dependency_order,
)
from django_dcron.policies.lifecycle import State
from django_dcron.schedules.describe import describe
from django_dcron.schedules.schedule import parse_schedule
from tests.refusals import refusal

GRAPHS = st.dictionaries(st.integers(0, 7), st.sets(st.integers(0, 7), max_size=4), max_size=8)
MET = {
    (State.SUCCEEDED, True): {ChainCondition.SUCCEEDED, ChainCondition.ENDED},
    (State.FAILED, True): {ChainCondition.FAILED, ChainCondition.ENDED},
    (State.FAILED, False): {ChainCondition.FAILED, ChainCondition.ENDED},
    (State.CANCELLED, True): {ChainCondition.ENDED},
}
"""The outcomes that aren't listed trigger no following job."""


@pytest.mark.parametrize("started", [True, False])
@pytest.mark.parametrize("state", list(State))
def test_each_final_state_meets_its_conditions(state: State, started: bool) -> None:
    if (state, started) != (State.SUCCEEDED, False):
        assert conditions_met_by(state, started=started) == MET.get((state, started), set())


def _predecessors(before: dict[int, set[int]], job: int) -> set[int]:
    """Return all jobs before this one, computed as a transitive closure."""
    found = set(before.get(job, ()))
    while more := {far for near in found for far in before.get(near, ())} - found:
        found |= more
    return found


@given(GRAPHS)
def test_cycle_is_found_if_and_only_if_one_exists(before: dict[int, set[int]]) -> None:
    for job in range(8):
        cycle = find_cycle(before, job)
        assert bool(cycle) == (job in _predecessors(before, job))
        if cycle:
            assert cycle[0] == cycle[-1] == job
            assert all(earlier in before[later] for earlier, later in pairwise(cycle))
            assert len(set(cycle)) == len(cycle) - 1, "no detours"


@given(GRAPHS)
def test_jobs_are_saved_after_their_predecessors(before: dict[int, set[int]]) -> None:
    ordered = in_dependency_order(before)
    assert sorted(ordered) == sorted(before)
    position = {job: number for number, job in enumerate(ordered)}
    for job, others in before.items():
        for other in others & before.keys():
            if not find_cycle(before, job) and not find_cycle(before, other):
                assert position[other] < position[job]


def test_jobs_without_predecessors_keep_their_order() -> None:
    assert in_dependency_order({3: set(), 1: set(), 2: set()}) == [3, 1, 2]


def test_chain_of_thousands_of_jobs_is_supported() -> None:
    before = {number: {number - 1} for number in range(1, 20_000)}
    assert find_cycle(before, 19_999) == []
    assert len(find_cycle(before | {0: {19_999}}, 19_999)) == 20_001
    assert in_dependency_order(dict(reversed(before.items()))) == list(before)


def test_never_schedule_has_no_occurrences() -> None:
    never = parse_schedule(" @Never ", "Europe/Berlin")
    assert never.is_never
    assert never.next_after(datetime(2026, 1, 1, tzinfo=UTC)) is None
    assert never.previous_before(datetime(2026, 1, 1, tzinfo=UTC)) is None
    assert describe(never) == "Only on demand"
    assert not parse_schedule("@daily").is_never
    with refusal(InvalidSchedule, "unknown_macro", value="'@never ever'"):
        parse_schedule("@never ever")
