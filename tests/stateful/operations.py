"""The possible operations and their frequencies: the strategies that generate a life."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import strategies as st

from tests.scheduler.stand_ins import START
from tests.stateful.rows import LIMITS
from tests.stateful.world import ENDINGS, INVALID, VALID, Operation

LAPSE = st.sampled_from([0.0, 0.0, 0.5, 1.0, 2.0, 2.25, 5.0, 7.0, 20.0])
TRANSACTIONS_BEFORE = st.sampled_from([0, 1, 1, 2, 2, 3, 4, 5, 7])
ONE_OF_FEW = st.integers(0, 5)
EITHER = st.integers(0, 1)
YES_OR_NO = st.booleans()
SCOPE = st.sampled_from([None, "default"])
SCHEDULES = st.sampled_from(
    [
        *(VALID, "*/3 * * * * *", "*/15 * * * * *", "@every 7s", "@at 2026-03-01T12:00:20"),
        "*/7 * * * * *\n*/10 * * * * *\n@at 2026-03-01T12:00:20",
        "@rrule 2026-03-01 FREQ=DAILY;BYHOUR=12;BYMINUTE=0,1,2;BYSECOND=0,4,9,20,31,45",
    ]
)
POLICIES = {
    "misfire_policy": st.sampled_from(["skip", "run_latest", "run_all"]),
    "overlap_policy": st.sampled_from(
        ["allow", "skip", "queue_one", "queue_all", "cancel_running"]
    ),
    "limit_id": st.sampled_from([None, None, *LIMITS]),
    "max_attempts": st.integers(1, 3),
    "start_deadline": st.sampled_from([None, None, timedelta(seconds=8)]),
    "pause_after_failures": st.sampled_from([None, None, 2]),
    "queue": st.sampled_from([*[""] * 18, "poison", "nowhere"]),
    "jitter": st.sampled_from([timedelta(), timedelta(), timedelta(seconds=4)]),
    "ends_at": st.sampled_from([None, None, START + timedelta(seconds=31)]),
}
JOBS = st.fixed_dictionaries(
    {
        "schedule": SCHEDULES,
        "misfire_grace": st.just(timedelta(seconds=6)),
        "catchup_limit": st.just(2),
        "retry_backoff": st.just(timedelta(seconds=3)),
        **POLICIES,
    }
)
CHANGES = st.fixed_dictionaries(
    {}, optional={"schedule": SCHEDULES, "description": st.just("new"), **POLICIES}
)

ARGUMENTS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "tick": {
        "node": EITHER,
        "leads": st.sampled_from([True, True, False]),
        "looks_for_own": YES_OR_NO,
    },
    "only_tick": {"node": EITHER},
    "rescue_runs": {"node": EITHER},
    "publish": {"node": EITHER},
    "mark": {"node": EITHER},
    "drain": {"node": EITHER},
    "restart": {"node": EITHER},
    "set_broker": {"unreachable": YES_OR_NO},
    "lose_message": {"which": ONE_OF_FEW},
    "deliver": {"which": ONE_OF_FEW, "worker": EITHER, "again": YES_OR_NO},
    "beat": {"which": ONE_OF_FEW},
    "end": {"which": ONE_OF_FEW, "how": st.sampled_from(["succeeds", *ENDINGS])},
    "kill": {"which": ONE_OF_FEW, "reported": YES_OR_NO},
    "create": {"fields": JOBS},
    "edit": {"which": ONE_OF_FEW, "fields": CHANGES},
    "chain": {
        "which": ONE_OF_FEW,
        "after": ONE_OF_FEW,
        "on": st.sampled_from([None, "succeeded", "failed", "ended", "ended"]),
    },
    "edit_without_save": {"which": ONE_OF_FEW, "schedule": SCHEDULES | st.just(INVALID)},
    "pause": {"which": ONE_OF_FEW, "seconds": st.sampled_from([None, 1.0, 7.5])},
    "resume": {"which": ONE_OF_FEW},
    "freeze": {"namespace": SCOPE, "seconds": st.sampled_from([None, 1.0, 7.5])},
    "unfreeze": {"namespace": SCOPE},
    "delete": {"which": ONE_OF_FEW},
    "trigger": {"which": ONE_OF_FEW, "key": st.sampled_from([None, "once"])},
    "rerun": {"which": ONE_OF_FEW},
    "cancel": {"which": ONE_OF_FEW},
    "set_limit": {"name": st.sampled_from([*LIMITS]), "maximum": st.integers(1, 2)},
    "backfill": {"which": ONE_OF_FEW, "seconds": st.sampled_from([5, 20, 60])},
    "work_without_faults": {
        "rounds": st.integers(1, 3),
        "work": st.sampled_from(["none", "begins", "begins", "succeeds", *ENDINGS]),
    },
}
"""The arguments of each operation."""


def operation_with(operation: str, /, **given: Any) -> st.SearchStrategy[Operation]:
    """This operation with the given arguments. The others are drawn."""
    fixed = {name: st.just(value) for name, value in given.items()}
    return st.tuples(st.just(operation), st.fixed_dictionaries(ARGUMENTS[operation] | fixed))


def operations(*of: str) -> st.SearchStrategy[Operation]:
    """One of these operations. An operation that is named several times is more frequent."""
    return st.one_of([operation_with(operation) for operation in of])


OFTEN = (
    "tick",
    "tick",
    "publish",
    "mark",
    "rescue_runs",
    "deliver",
    "deliver",
    "deliver",
    "end",
    "end",
    "end",
    "kill",
)
ANY = operations(*ARGUMENTS, *OFTEN)
LONG = operations(
    "tick",
    "tick",
    "only_tick",
    "rescue_runs",
    "deliver",
    "deliver",
    "end",
    "end",
    "kill",
    "edit",
    "cancel",
    "trigger",
)
"""Operations that mostly consist of several transactions."""
ARGUMENTS |= {
    "interrupted": {
        "after": TRANSACTIONS_BEFORE,
        "by": st.lists(st.tuples(LAPSE, ANY), min_size=1, max_size=4),
        "operation": LONG,
    },
    "crashed": {"after": TRANSACTIONS_BEFORE, "operation": LONG},
    "unanswered": {"after": TRANSACTIONS_BEFORE, "operation": LONG},
}


def at_once(operation: st.SearchStrategy[Operation]) -> st.SearchStrategy[tuple[float, Operation]]:
    return st.tuples(st.just(0.0), operation)


def interrupted(
    operation: st.SearchStrategy[Operation], *by: st.SearchStrategy[Operation]
) -> st.SearchStrategy[Operation]:
    others = st.tuples(*map(at_once, by)).map(list)
    return st.tuples(
        st.just("interrupted"),
        st.fixed_dictionaries({"after": st.integers(0, 2), "by": others, "operation": operation}),
    )


def in_turn(*steps: tuple[float, st.SearchStrategy[Operation]]) -> st.SearchStrategy[Operation]:
    turns = st.tuples(*(st.tuples(st.just(lapse), operation) for lapse, operation in steps)).map(
        list
    )
    return st.tuples(st.just("in_turn"), st.fixed_dictionaries({"operations": turns}))


FEW = range(3)
LATER = operations("work_without_faults", "cancel", "edit", "beat")
DUPLICATE_DELIVERIES = st.one_of(
    [
        interrupted(
            operation_with("deliver", which=which, worker=0, again=True),
            operation_with("deliver", which=which, worker=1, again=False),
            operations("end", "kill"),
            LATER,
        )
        for which in FEW
    ]
)
"""While a worker starts a run, another gets the same message and may finish the run first."""
SUSPENDED = in_turn(
    (0.0, operation_with("work_without_faults", work="begins")),
    (7.0, operations("rescue_runs")),
    (0.0, operation_with("work_without_faults", work="begins")),
    (5.0, operation_with("work_without_faults", work="begins")),
    (0.0, operation_with("end", which=0)),
)
"""A worker is declared lost. It resumes when its run has ended, or during the next attempt."""
CANCELLED_AT_FAILURE = in_turn(
    (0.0, operation_with("work_without_faults", work="begins")),
    (
        0.0,
        interrupted(
            operation_with("end", which=0, how="fails"), operation_with("cancel", which=0), LATER
        ),
    ),
    (5.0, operation_with("work_without_faults", work="begins")),
)
"""A cancel arrives while a failed attempt is completed."""
CAUGHT_UP = in_turn(
    (20.0, operations("only_tick")),
    (0.0, operation_with("backfill", seconds=20)),
    (0.0, operation_with("work_without_faults", rounds=2, work="none")),
)
"""The missed occurrences of an outage are backfilled."""
CANCELLED_AHEAD = in_turn(
    (0.0, operation_with("tick", node=0, leads=True)),
    (0.0, operations("cancel")),
    (0.0, operations("edit", "pause")),
    (0.0, operations("resume", "tick")),
)
"""An occurrence is cancelled before its time, and then its job is changed."""
CLAIM_UNANSWERED = in_turn(
    (0.0, operation_with("tick", node=0, leads=True)),
    (
        7.0,
        operation_with(
            "unanswered",
            after=0,
            operation=("tick", {"node": 0, "leads": True, "looks_for_own": False}),
        ),
    ),
)
"""A node claims and doesn't learn that its claim succeeded."""
FREEZES = st.one_of(
    [
        interrupted(
            operation_with("deliver", which=which, worker=0, again=False),
            operation_with("freeze", namespace=None),
            LATER,
        )
        for which in FEW
    ]
)
"""A freeze begins while a worker starts a run."""
OPERATIONS = st.one_of(
    operations(
        *ARGUMENTS,
        *OFTEN,
        "interrupted",
        "interrupted",
        "interrupted",
        "crashed",
        "work_without_faults",
    ),
    DUPLICATE_DELIVERIES,
    SUSPENDED,
    CANCELLED_AT_FAILURE,
    CAUGHT_UP,
    CANCELLED_AHEAD,
    CLAIM_UNANSWERED,
    FREEZES,
    in_turn((0.0, operation_with("freeze", seconds=7.5)), (0.0, ANY), (5.0, ANY), (5.0, ANY)),
)
