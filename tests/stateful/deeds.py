"""What may happen, and how often: the strategies from which a life is drawn."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import strategies as st

from tests.scheduler.stand_ins import START
from tests.stateful.world import ENDINGS, GARBAGE, SOUND, Deed

LAPSE = st.sampled_from([0.0, 0.0, 0.5, 1.0, 2.0, 2.25, 5.0, 7.0, 20.0])
MOMENT = st.sampled_from([0, 1, 1, 2, 2, 3, 4, 5, 7])
ONE_OF_FEW = st.integers(0, 5)
EITHER = st.integers(0, 1)
YES_OR_NO = st.booleans()
SCHEDULES = st.sampled_from(
    [SOUND, "*/3 * * * * *", "*/15 * * * * *", "@every 7s", "@at 2026-03-01T12:00:20"]
)
POLICIES = {
    "misfire_policy": st.sampled_from(["skip", "run_latest", "run_all"]),
    "overlap_policy": st.sampled_from(["allow", "skip", "queue_one", "queue_all", "cancel_running"]),
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

GIVEN: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "tick": {"node": EITHER, "leads": st.sampled_from([True, True, False]), "looks_for_own": YES_OR_NO},
    "only_tick": {"node": EITHER},
    "take_up": {"node": EITHER},
    "hand_over": {"node": EITHER},
    "mark": {"node": EITHER},
    "drain": {"node": EITHER},
    "restart": {"node": EITHER},
    "broker_goes": {"away": YES_OR_NO},
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
    "edit_past_save": {"which": ONE_OF_FEW, "schedule": SCHEDULES | st.just(GARBAGE)},
    "pause": {"which": ONE_OF_FEW, "seconds": st.sampled_from([None, 1.0, 7.5])},
    "resume": {"which": ONE_OF_FEW},
    "delete": {"which": ONE_OF_FEW},
    "trigger": {"which": ONE_OF_FEW, "key": st.sampled_from([None, "once"])},
    "rerun": {"which": ONE_OF_FEW},
    "cancel": {"which": ONE_OF_FEW},
    "backfill": {"which": ONE_OF_FEW, "seconds": st.sampled_from([5, 20, 60])},
    "all_go_well": {
        "rounds": st.integers(1, 3),
        "work": st.sampled_from(["none", "begins", "begins", "succeeds", *ENDINGS]),
    },
}
"""What each deed is given."""


def deeds(*of: str) -> st.SearchStrategy[Deed]:
    """One of these. Named more than once: more often."""
    return st.one_of([st.tuples(st.just(deed), st.fixed_dictionaries(GIVEN[deed])) for deed in of])


OFTEN = (
    "tick",
    "tick",
    "hand_over",
    "mark",
    "take_up",
    "deliver",
    "deliver",
    "deliver",
    "end",
    "end",
    "end",
    "kill",
)
ANY = deeds(*GIVEN, *OFTEN)
LONG = deeds(
    "tick",
    "tick",
    "only_tick",
    "take_up",
    "deliver",
    "deliver",
    "end",
    "end",
    "kill",
    "edit",
    "cancel",
    "trigger",
)
"""Of several transactions, mostly."""
GIVEN |= {
    "interrupted": {
        "after": MOMENT,
        "by": st.lists(st.tuples(LAPSE, ANY), min_size=1, max_size=4),
        "deed": LONG,
    },
    "crashed": {"after": MOMENT, "deed": LONG},
    "unanswered": {"after": MOMENT, "deed": LONG},
}


def sure(deed: str, /, **given: Any) -> st.SearchStrategy[Deed]:
    """This deed, with what is given, and the rest drawn."""
    drawn = {name: st.just(value) for name, value in given.items()}
    return st.tuples(st.just(deed), st.fixed_dictionaries(GIVEN[deed] | drawn))


def at_once(deed: st.SearchStrategy[Deed]) -> st.SearchStrategy[tuple[float, Deed]]:
    return st.tuples(st.just(0.0), deed)


def interrupted(deed: st.SearchStrategy[Deed], *by: st.SearchStrategy[Deed]) -> st.SearchStrategy[Deed]:
    others = st.tuples(*map(at_once, by)).map(list)
    return st.tuples(
        st.just("interrupted"),
        st.fixed_dictionaries({"after": st.integers(0, 2), "by": others, "deed": deed}),
    )


def in_turn(*steps: tuple[float, st.SearchStrategy[Deed]]) -> st.SearchStrategy[Deed]:
    turns = st.tuples(*(st.tuples(st.just(lapse), deed) for lapse, deed in steps)).map(list)
    return st.tuples(st.just("in_turn"), st.fixed_dictionaries({"deeds": turns}))


FEW = range(3)
LATER = deeds("all_go_well", "cancel", "edit", "beat")
RIVALS = st.one_of(
    [
        interrupted(
            sure("deliver", which=which, worker=0, again=True),
            sure("deliver", which=which, worker=1, again=False),
            deeds("end", "kill"),
            LATER,
        )
        for which in FEW
    ]
)
"""While a worker starts a run, another gets the same message, and may be done with it before the first goes on."""
FROZEN = in_turn(
    (0.0, sure("all_go_well", work="begins")),
    (7.0, deeds("take_up")),
    (0.0, sure("all_go_well", work="begins")),
    (5.0, sure("all_go_well", work="begins")),
    (0.0, sure("end", which=0)),
)
"""A worker is declared lost, and comes back when its run is through, or at its next attempt."""
STOPPED = in_turn(
    (0.0, sure("all_go_well", work="begins")),
    (0.0, interrupted(sure("end", which=0, how="fails"), sure("cancel", which=0), LATER)),
    (5.0, sure("all_go_well", work="begins")),
)
"""A cancel comes while a failed attempt is concluded."""
CAUGHT_UP = in_turn(
    (20.0, deeds("only_tick")),
    (0.0, sure("backfill", seconds=20)),
    (0.0, sure("all_go_well", rounds=2, work="none")),
)
"""What was missed in an outage is backfilled."""
CANCELLED_AHEAD = in_turn(
    (0.0, sure("tick", node=0, leads=True)),
    (0.0, deeds("cancel")),
    (0.0, deeds("edit", "pause")),
    (0.0, deeds("resume", "tick")),
)
"""An occurrence is cancelled before its time, and then its job is changed."""
UNSURE = in_turn(
    (0.0, sure("tick", node=0, leads=True)),
    (7.0, sure("unanswered", after=0, deed=("tick", {"node": 0, "leads": True, "looks_for_own": False}))),
)
"""A node claims and does not learn that it has."""
DEEDS = st.one_of(
    deeds(*GIVEN, *OFTEN, "interrupted", "interrupted", "interrupted", "crashed", "all_go_well"),
    RIVALS,
    FROZEN,
    STOPPED,
    CAUGHT_UP,
    CANCELLED_AHEAD,
    UNSURE,
)
