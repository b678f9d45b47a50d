"""The decision about a delivered run, in every situation.

The expected actions come from the design, not from the code.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest

from django_dcron.policies.lifecycle import FINAL, State
from django_dcron.policies.overlap import OverlapPolicy, is_queueing
from django_dcron.policies.start_decision import (
    UNKNOWN,
    Drop,
    End,
    EndHolder,
    Hold,
    LoadFact,
    OtherRun,
    Postpone,
    Reason,
    ReplaceNextInLine,
    Resume,
    Start,
    StartAction,
    StartFacts,
    StartInLimit,
    StopHolder,
    Wait,
    WaitInBackfill,
    YieldSlot,
    decide_start,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
NOW = timedelta(0)
SOON = timedelta(microseconds=1)
EXCLUSIVE = [policy for policy in OverlapPolicy if policy is not OverlapPolicy.ALLOW]
QUEUEING = [policy for policy in OverlapPolicy if is_queueing(policy, runs_backlog=True)]
AGES = {"older": NOON - MINUTE, "newer": NOON + MINUTE}

READY = StartFacts(
    state=State.QUEUED,
    is_current_attempt=True,
    cancel_requested=False,
    is_frozen=False,
    due_in=NOW,
    too_late=False,
    overlap=OverlapPolicy.SKIP,
    scheduled_at=NOON,
    due_at=NOON,
    is_backfilled=False,
    in_queue=False,
    slot_taken=False,
    holder=None,
    next_in_line=None,
    older_is_due=False,
)
"""A run that may start at once. All facts are known."""


def facts(**changed: Any) -> StartFacts:
    return replace(READY, **changed)


# --- before the slot ------------------------------------------------------------------------------


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("overlap", OverlapPolicy)
def test_conditions_before_the_slot_are_checked_in_order(
    state: State, overlap: OverlapPolicy
) -> None:
    """An outdated delivery is dropped first. Cancellation and times are checked after that."""
    for current, cancel, deleted, frozen, due_in, late, limited in product(
        (True, False),
        (True, False),
        (True, False),
        (True, False),
        (-SOON, NOW, SOON),
        (True, False),
        (True, False),
    ):
        start = StartInLimit if limited else Start
        action = decide_start(
            facts(
                state=state,
                overlap=overlap,
                is_current_attempt=current,
                cancel_requested=cancel,
                job_deleted=deleted,
                is_frozen=frozen,
                due_in=due_in,
                too_late=late,
                is_limited=limited,
            )
        )
        applicable: list[tuple[bool, StartAction]] = [
            (not current, Drop()),
            (state in FINAL or state is State.WAITING, Drop()),
            (state is State.RUNNING, Resume()),
            (cancel, End(State.CANCELLED, Reason.CANCEL_REQUESTED)),
            (deleted, End(State.CANCELLED, Reason.JOB_DELETED)),
            (frozen, Hold()),
            (due_in == SOON, Postpone(SOON)),
            (late, End(State.MISSED, Reason.TOO_LATE)),
            (True, start(takes_slot=overlap is not OverlapPolicy.ALLOW)),
        ]
        assert action == next(expected for applies, expected in applicable if applies)


# --- the slot -------------------------------------------------------------------------------------

LETTERS = {
    "S": End(State.SKIPPED, Reason.HOLDER_UNFINISHED),
    "L": End(State.SKIPPED, Reason.LINE_TAKEN),
    "N": End(State.SKIPPED, Reason.NEWER_IN_LINE),
    "Q": Wait(next_in_line=False),
    "W": Wait(next_in_line=True),
    "R": ReplaceNextInLine(),
    "X": StopHolder(),
    "E": EndHolder(),
}
TABLE = """
                       older holder         newer holder
                       live     backfilled  live     backfilled
policy          line   runs idle runs idle  runs idle runs idle

skip            none   S    S    W    W     S    S    W    W
skip            older  S    S    L    L     S    S    L    L
skip            newer  S    S    L    L     S    S    L    L
queue_one       none   W    W    W    W     W    W    W    W
queue_one       older  L    L    L    L     L    L    L    L
queue_one       newer  L    L    L    L     L    L    L    L
queue_all       none   Q    Q    Q    Q     Q    Q    Q    Q
queue_all       older  Q    Q    Q    Q     Q    Q    Q    Q
queue_all       newer  Q    Q    Q    Q     Q    Q    Q    Q
cancel_running  none   X    E    R    R     S    S    S    S
cancel_running  older  X    E    R    R     S    S    S    S
cancel_running  newer  N    N    N    N     S    S    S    S
"""
"""What a live run does if another run has the slot. ``line``: the run that is next in line."""
HOLDERS = list(product(("older", "newer"), (False, True), (True, False)))
"""Age, whether it is backfilled, whether it is running. In the order of the columns."""


def cells() -> Iterator[tuple[StartFacts, StartAction]]:
    """Yield each situation in which another run has the slot, and the action of a live run."""
    rows = TABLE.split("\n\n")[1].strip().splitlines()
    for policy, line, *letters in map(str.split, rows):
        for (age, is_backfilled, runs), letter in zip(HOLDERS, letters, strict=True):
            for waiting_is_backfilled in (False, True):
                waiting = OtherRun(False, AGES.get(line, NOON), is_backfilled=waiting_is_backfilled)
                situation = facts(
                    overlap=OverlapPolicy(policy),
                    slot_taken=True,
                    holder=OtherRun(runs, AGES[age], is_backfilled=is_backfilled),
                    next_in_line=None if line == "none" else waiting,
                )
                yield situation, LETTERS[letter]


CELLS = list(cells())


def test_table_covers_every_situation() -> None:
    situations = {(cell.overlap, cell.holder, cell.next_in_line) for cell, _ in CELLS}
    holders = 2 * 2 * 2
    lines = 1 + 2 * 2
    assert len(situations) == len(EXCLUSIVE) * holders * lines


@pytest.mark.parametrize("policy", EXCLUSIVE)
def test_live_run_follows_its_overlap_policy_if_the_slot_is_taken(policy: OverlapPolicy) -> None:
    for situation, expected in CELLS:
        if situation.overlap is policy:
            assert decide_start(situation) == expected, situation


def test_no_run_is_skipped_because_of_a_holder_whose_worker_may_be_gone() -> None:
    """It waits in line, as with ``queue_one``. The other policies aren't affected."""
    for situation, expected in CELLS:
        assert isinstance(situation.holder, OtherRun)
        silent = replace(situation, holder=replace(situation.holder, is_silent=True))
        if situation.overlap is OverlapPolicy.SKIP and situation.holder.is_running:
            queued = replace(situation, overlap=OverlapPolicy.QUEUE_ONE)
            assert decide_start(silent) == decide_start(queued), situation
        else:
            assert decide_start(silent) == expected, situation


def test_backfilled_run_waits_in_the_backfill_if_the_slot_is_taken() -> None:
    for situation, _ in CELLS:
        assert decide_start(replace(situation, is_backfilled=True)) == WaitInBackfill()


@pytest.mark.parametrize("is_backfilled", [True, False])
def test_run_with_allow_policy_starts_without_the_slot(is_backfilled: bool) -> None:
    for situation, _ in CELLS:
        overlapping = replace(situation, overlap=OverlapPolicy.ALLOW, is_backfilled=is_backfilled)
        assert decide_start(overlapping) == Start(takes_slot=False)


@pytest.mark.parametrize("is_backfilled", [True, False])
@pytest.mark.parametrize("policy", EXCLUSIVE)
def test_run_takes_a_free_slot_even_if_another_run_waits(
    policy: OverlapPolicy, is_backfilled: bool
) -> None:
    for situation, _ in CELLS:
        free = replace(
            situation, overlap=policy, is_backfilled=is_backfilled, holder=None, slot_taken=True
        )
        assert decide_start(free) == Start(takes_slot=True)


@pytest.mark.parametrize("policy", QUEUEING)
def test_run_in_a_queue_leaves_the_free_slot_to_an_older_run(policy: OverlapPolicy) -> None:
    free = facts(overlap=policy, older_is_due=True, in_queue=True)
    start = Start(takes_slot=True)
    assert decide_start(free) == YieldSlot()
    assert decide_start(replace(free, older_is_due=False)) == start
    assert decide_start(replace(free, in_queue=False)) == start
    assert requested_facts(free) == ([LoadFact.START_DEADLINE, LoadFact.OLDER], YieldSlot())


@pytest.mark.parametrize(
    ("executing_since", "waits"),
    [(None, True), (NOON - MINUTE, False), (NOON, False), (NOON + MINUTE, True)],
)
def test_backlog_of_run_all_waits_for_holders_that_started_after_the_run_was_due(
    executing_since: datetime | None, waits: bool
) -> None:
    for situation, expected in CELLS:
        assert isinstance(situation.holder, OtherRun)
        holder = replace(situation.holder, executing_since=executing_since)
        backlog = replace(situation, holder=holder, in_queue=situation.overlap in QUEUEING)
        queues = waits and backlog.in_queue
        assert decide_start(backlog) == (Wait(next_in_line=False) if queues else expected)
        manual = replace(backlog, in_queue=False)
        assert decide_start(manual) == expected, "a manual run is never late"


# --- requested facts ------------------------------------------------------------------------------


def requested_facts(known: StartFacts) -> tuple[list[LoadFact], StartAction]:
    """Load facts as the decision requests them. Return the requested facts and the action."""
    unknown = dict.fromkeys(("too_late", "holder", "next_in_line", "older_is_due"), UNKNOWN)
    now = replace(known, **unknown)
    requested: list[LoadFact] = []
    while isinstance(action := decide_start(now), LoadFact):
        name = {
            LoadFact.START_DEADLINE: "too_late",
            LoadFact.HOLDER: "holder",
            LoadFact.NEXT_IN_LINE: "next_in_line",
            LoadFact.OLDER: "older_is_due",
        }[action]
        assert getattr(now, name) is UNKNOWN
        now = replace(now, **{name: getattr(known, name)})
        requested.append(action)
    return requested, action


def test_loading_facts_one_by_one_gives_the_same_action() -> None:
    for situation, _ in CELLS:
        for changed in (
            {},
            {"is_backfilled": True},
            {"too_late": True},
            {"cancel_requested": True},
            {"state": State.WAITING},
        ):
            known = replace(situation, **changed)
            requested, action = requested_facts(known)
            assert action == decide_start(known)
            assert requested == list(LoadFact)[: len(requested)], "in the order of the locks"


@pytest.mark.parametrize(
    ("changed", "requested"),
    [
        ({}, [LoadFact.START_DEADLINE]),
        ({"overlap": OverlapPolicy.ALLOW, "slot_taken": True}, [LoadFact.START_DEADLINE]),
        ({"slot_taken": True}, [LoadFact.START_DEADLINE, LoadFact.HOLDER]),
        ({"slot_taken": True, "too_late": True}, [LoadFact.START_DEADLINE]),
        ({"is_current_attempt": False}, []),
        ({"state": State.RUNNING}, []),
        ({"state": State.CANCELLED}, []),
        ({"cancel_requested": True}, []),
        ({"job_deleted": True}, []),
        ({"due_in": SOON}, []),
    ],
    ids=str,
)
def test_only_facts_that_affect_the_action_are_requested(
    changed: dict[str, Any], requested: list[LoadFact]
) -> None:
    known = facts(**changed)
    assert requested_facts(known) == (requested, decide_start(known))


@pytest.mark.parametrize(
    ("policy", "by_live", "by_backfilled"),
    [("skip", 2, 3), ("queue_one", 3, 3), ("queue_all", 2, 2), ("cancel_running", 3, 3)],
)
def test_next_in_line_is_requested_only_if_the_policy_needs_it(
    policy: str, by_live: int, by_backfilled: int
) -> None:
    for is_backfilled, requested in ((False, by_live), (True, by_backfilled)):
        holder = OtherRun(True, AGES["older"], is_backfilled=is_backfilled)
        held = facts(overlap=OverlapPolicy(policy), slot_taken=True, holder=holder)
        assert requested_facts(held)[0] == list(LoadFact)[:requested]
        assert requested_facts(replace(held, is_backfilled=True))[0] == list(LoadFact)[:2]
