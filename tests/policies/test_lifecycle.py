"""The table of states: no run gets stuck, and no final run continues."""

from enum import StrEnum

import pytest

from django_dcron.policies.chains import ChainCondition
from django_dcron.policies.lifecycle import (
    FINAL,
    STARTABLE,
    TRANSITIONS,
    UNFINISHED,
    Outcome,
    State,
    Trigger,
    states_before,
)
from django_dcron.policies.misfire import MisfirePolicy
from django_dcron.policies.overlap import OverlapPolicy
from django_dcron.schedules.calendar import ExclusionPolicy


def test_every_state_is_in_the_transition_table() -> None:
    assert set(TRANSITIONS) == set(State)
    assert set(State) == FINAL | UNFINISHED
    assert not FINAL & UNFINISHED


@pytest.mark.parametrize("state", sorted(FINAL))
def test_final_states_have_no_transitions(state: State) -> None:
    assert TRANSITIONS[state] == frozenset()


@pytest.mark.parametrize("state", sorted(UNFINISHED))
def test_every_unfinished_state_reaches_every_final_state(state: State) -> None:
    reached, found = {state}, {state}
    while found:
        found = {target for source in found for target in TRANSITIONS[source]} - reached
        reached |= found
    assert reached >= FINAL


@pytest.mark.parametrize("state", sorted(UNFINISHED))
def test_every_unfinished_state_can_be_cancelled(state: State) -> None:
    assert State.CANCELLED in TRANSITIONS[state]


def test_no_state_has_a_transition_to_itself() -> None:
    assert not [state for state, targets in TRANSITIONS.items() if state in targets]


def test_only_running_runs_succeed_and_only_startable_runs_start() -> None:
    assert states_before(State.SUCCEEDED) == {State.RUNNING}
    assert states_before(State.RUNNING) == STARTABLE


def test_running_runs_are_never_missed_skipped_or_waiting() -> None:
    assert not TRANSITIONS[State.RUNNING] & {State.MISSED, State.SKIPPED, State.WAITING}


@pytest.mark.parametrize("target", State)
def test_sources_are_the_inverse_of_the_transition_table(target: State) -> None:
    assert states_before(target) == {source for source in State if target in TRANSITIONS[source]}


def test_states_and_outcomes_fit_their_columns() -> None:
    assert max(len(word) for word in (*State, *Outcome)) <= 10


@pytest.mark.parametrize(
    ("stored", "values"),
    [
        (State, "pending queued running waiting succeeded failed skipped missed cancelled"),
        (Outcome, "succeeded failed timed_out lost cancelled"),
        (Trigger, "schedule manual rerun backfill chain"),
        (MisfirePolicy, "skip run_latest run_all"),
        (OverlapPolicy, "allow skip queue_one queue_all cancel_running"),
        (ExclusionPolicy, "skip next_day window_end"),
        (ChainCondition, "succeeded failed ended"),
    ],
)
def test_stored_values_do_not_change_between_releases(stored: type[StrEnum], values: str) -> None:
    """Other nodes and releases read these values, and programs compare them with strings."""
    assert [each.value for each in stored] == values.split()
    assert [each.name.lower() for each in stored] == values.split()
