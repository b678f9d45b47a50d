"""The outcome of each occurrence under each policy, in each situation.

The expected values come from the design, not from the code. One letter stands for each occurrence,
oldest first:

    S  succeeded                          M  missed
    F  failed: its worker was lost        m  missed, and counted on a later run
    K  skipped: another was unfinished    C  cancelled manually
    r  skipped in line: replaced          R  cancelled: replaced
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.exceptions import NotPossible
from django_dcron.models import Statistics
from tests.checker import check
from tests.policy_matrix.conftest import MakeWorld
from tests.policy_matrix.world import World

HOUR = 6
"""Occurrences per hour."""
MINUTE = timedelta(minutes=1)
LATEST = {"misfire_policy": "run_latest"}
IN_LINE = {"overlap_policy": "queue_all"}
IN_TIME = {"look_ahead": 45 * MINUTE, "misfire_grace": 60 * MINUTE}
QUARTER = {"max_attempts": 2, "retry_backoff": 15 * MINUTE, "retry_jitter": 0.0}


# --- the situations -----------------------------------------------------------------------------


def normal_running(world: World) -> None:
    for _ in range(4):
        world.occurrence()


def scheduler_down_for_an_hour(world: World) -> None:
    world.pass_minutes(60)
    world.tick()
    world.holds_work = True
    world.deliver()


def workers_down_for_an_hour(world: World) -> None:
    world.workers = False
    for _ in range(HOUR):
        world.pass_minutes(10)
        world.tick()
    world.workers = world.holds_work = True
    world.deliver()


def worker_lost_and_all_down_for_an_hour(world: World) -> None:
    world.pass_minutes(10)
    world.tick()
    world.die_while_executing()
    workers_down_for_an_hour(world)


def burst(world: World) -> None:
    """The runs are claimed ahead and dispatched late, all at once. None counts as late."""
    world.tick()
    world.pass_minutes(40)
    world.tick()
    world.holds_work = True
    world.deliver()


def retry_in_progress(world: World) -> None:
    """The first run fails. Its retry comes between the second and the third occurrence."""
    world.failing = 1
    for _ in range(3):
        world.occurrence()


def first_cancelled_in_between(world: World) -> None:
    """The first run is executing when the second occurrence comes."""
    world.holds_work = True
    world.occurrence()
    world.occurrence()
    control.cancel(world.run(1), "by hand")
    world.settle()
    world.occurrence()


def second_cancelled_in_between(world: World) -> None:
    """The second run is cancelled while the first one is executing, unless it has ended already."""
    world.holds_work = True
    world.occurrence()
    world.occurrence()
    second = world.run(2)
    if second.is_final:
        with pytest.raises(NotPossible):
            control.cancel(second, "by hand")
    else:
        control.cancel(second, "by hand")
    world.settle()
    world.occurrence()


def newest_cancelled_while_workers_are_down(world: World) -> None:
    world.workers = False
    for _ in range(HOUR):
        world.pass_minutes(10)
        world.tick()
    control.cancel(world.run(HOUR), "by hand")
    world.workers = world.holds_work = True
    world.deliver()


Situation = Callable[[World], None]
Cell = tuple[Situation, dict[str, Any], str, str]


def cells(
    policies: tuple[str, ...], table: list[tuple[Situation, dict[str, Any], str]]
) -> list[Any]:
    """Return the parameters of each cell of the table: one policy and one situation."""
    return [
        pytest.param(
            situation, given, policy, expected, id="-".join([policy, situation.__name__, *given])
        )
        for situation, given, row in table
        for policy, expected in zip(policies, row.split(), strict=True)
    ]


def verify(world: World) -> None:
    """Check that each occurrence is accounted for and that the rows are consistent."""
    verdict = check(world.began, database_now("default"))
    assert not verdict.problems, str(verdict)


# --- overlap ------------------------------------------------------------------------------------
# All late occurrences run, so that only the overlap policy decides. Under skip and queue_one, late
# occurrences wait for each other.

OVERLAP = ("allow", "skip", "queue_one", "queue_all", "cancel_running")
OVERLAP_TABLE: list[tuple[Situation, dict[str, Any], str]] = [
    #                                                        allow    skip     queue_one queue_all cancel_running
    (normal_running, {},                                    "SSSS     SSSS     SSSS      SSSS      SSSS"),
    (scheduler_down_for_an_hour, {},                         "SSSSSS   SSSSSS   SSSSSS    SSSSSS    RrrrrS"),
    (worker_lost_and_all_down_for_an_hour, {},               "FSSSSSS  FSSSSSS  FSSSSSS   FSSSSSS   FRrrrrS"),
    (scheduler_down_for_an_hour, LATEST,                     "mmmmMS   mmmmMS   mmmmMS    mmmmMS    mmmmMS"),
    (workers_down_for_an_hour, LATEST,                       "MMMMMS   MMMMMS   MMMMMS    MMMMMS    MMMMMS"),
    (burst, IN_TIME | {"misfire_policy": "skip"},           "SSSS     SKKK     SSKK      SSSS      RrrS"),
    (retry_in_progress, QUARTER,                            "SSS      SKS      SSS       SSS       RSS"),
    (first_cancelled_in_between, {},                        "CSS      CKS      CSS       CSS       RSS"),
    (second_cancelled_in_between, {},                       "SCS      SKS      SCS       SCS       RCS"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("situation", "given", "policy", "expected"), cells(OVERLAP, OVERLAP_TABLE)
)
def test_overlap_policy_determines_the_outcomes(
    make_world: MakeWorld, situation: Situation, given: dict[str, Any], policy: str, expected: str
) -> None:
    world = make_world(**{"overlap_policy": policy, "misfire_policy": "run_all"} | given)
    situation(world)
    world.settle()
    assert world.outcomes() == expected
    verify(world)
    if policy != "allow":
        assert world.max_concurrent == 1
    if policy in ("queue_one", "queue_all"):
        assert world.order() == sorted(world.order()), "first come, first served"


# --- misfire ------------------------------------------------------------------------------------
# Runs may overlap, so that only the misfire policy decides. The grace is three minutes, and
# ``run_all`` runs three late occurrences.

MISFIRE = ("skip", "run_latest", "run_all")
BETWEEN = {"into": 6 * MINUTE}
"""The clock is six minutes after an occurrence, so the newest occurrence is late, too."""
MISFIRE_TABLE: list[tuple[Situation, dict[str, Any], str]] = [
    #                                            skip    run_latest  run_all
    (normal_running, {},                        "SSSS    SSSS        SSSS"),
    (scheduler_down_for_an_hour, {},             "mmmmMS  mmmmMS      SSSmMS"),
    (scheduler_down_for_an_hour, BETWEEN,        "mmmmmM  mmmmmS      SSSmmM"),
    (workers_down_for_an_hour, {},               "MMMMMS  MMMMMS      SSSMMS"),
    (workers_down_for_an_hour, BETWEEN,          "MMMMMM  MMMMMS      SSSMMM"),
    (workers_down_for_an_hour, IN_LINE,          "MMMMMS  MMMMMS      SSSMMS"),
    (scheduler_down_for_an_hour, IN_LINE,        "mmmmMS  mmmmMS      SSSmMS"),
    (burst, IN_TIME,                            "SSSS    SSSS        SSSS"),
    (retry_in_progress, QUARTER,                "SSS     SSS         SSS"),
    (newest_cancelled_while_workers_are_down, {}, "MMMMMC  MMMMSC      SSSMMC"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("situation", "given", "policy", "expected"), cells(MISFIRE, MISFIRE_TABLE)
)
def test_misfire_policy_determines_the_outcomes(
    make_world: MakeWorld, situation: Situation, given: dict[str, Any], policy: str, expected: str
) -> None:
    world = make_world(
        **{"misfire_policy": policy, "catchup_limit": 3, "overlap_policy": "allow"} | given
    )
    situation(world)
    world.settle()
    assert world.outcomes() == expected
    verify(world)
    assert Statistics.objects.get(pk=world.job.pk).missed == expected.lower().count("m")
    assert world.order() == sorted(world.order()), "oldest first"
