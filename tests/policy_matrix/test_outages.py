"""Test which runs of a backlog the policies execute after an outage of the workers."""

from datetime import timedelta
from typing import Any

import pytest

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.models import Run
from tests import depth
from tests.checker import check
from tests.policy_matrix.conftest import MakeWorld
from tests.policy_matrix.world import World

OCCURRENCES = 24 if depth.FULL else 12
"""Number of occurrences without a worker, one every ten minutes: four hours, or two hours."""


def without_workers(world: World, occurrences: int) -> None:
    world.workers = False
    for _ in range(occurrences):
        world.pass_minutes(10)
        world.tick()


def with_workers_again(world: World) -> None:
    world.workers = True
    world.deliver()
    world.settle()
    verdict = check(world.began, database_now("default"))
    assert not verdict.problems, str(verdict)


@pytest.mark.parametrize(
    ("policy", "overlap", "copies", "expected"),
    [
        ("skip", "allow", 1, "M" * (OCCURRENCES - 1) + "S"),
        ("run_latest", "allow", 8, "M" * (OCCURRENCES - 1) + "S"),
        ("run_all", "queue_all", 8, "SSS" + "M" * (OCCURRENCES - 4) + "S"),
    ],
)
def test_hours_without_workers_leave_no_backlog(
    make_world: MakeWorld, policy: str, overlap: str, copies: int, expected: str
) -> None:
    """``copies``: maximum number of messages of one run. The redelivery interval doubles."""
    world = make_world(misfire_policy=policy, catchup_limit=3, overlap_policy=overlap)
    without_workers(world, OCCURRENCES)
    assert max(world.copies().values()) <= copies
    with_workers_again(world)
    assert world.outcomes() == expected


def test_late_runs_of_a_skip_job_are_missed_without_a_worker(make_world: MakeWorld) -> None:
    world = make_world(misfire_policy="skip")
    without_workers(world, 4)
    assert [run.state for run in Run.objects.order_by("scheduled_at")] == ["missed"] * 3 + [
        "queued"
    ]


@pytest.mark.parametrize(("policy", "expected"), [("run_latest", "MMMMMS"), ("run_all", "SSSMMM")])
def test_order_of_deliveries_does_not_change_the_outcomes(
    make_world: MakeWorld, policy: str, expected: str
) -> None:
    """For example, the queue has priorities, or many workers take messages at the same time."""
    world = make_world(
        misfire_policy=policy, catchup_limit=3, overlap_policy="allow", into=timedelta(minutes=6)
    )
    without_workers(world, 6)
    world.queue.messages.reverse()
    with_workers_again(world)
    assert world.outcomes() == expected


def test_older_run_does_not_replace_a_newer_one(make_world: MakeWorld) -> None:
    """This applies to a run that is executing and to one that waits for the slot."""
    world = make_world(misfire_policy="run_all", overlap_policy="cancel_running")
    without_workers(world, 4)
    first, second, third, fourth = {
        message.run_id: message for message in world.queue.messages
    }.values()
    world.queue.messages = [second, fourth, third, first]
    world.holds_work = True
    with_workers_again(world)
    assert world.outcomes() == "KRKS"
    assert world.order() == [2, 4]


@pytest.mark.parametrize(
    "given", [{"start_deadline": timedelta(minutes=5)}, {"misfire_policy": "skip"}], ids=str
)
def test_run_that_waited_for_its_slot_counts_as_on_time(
    make_world: MakeWorld, given: dict[str, Any]
) -> None:
    """The run counts as on time for the misfire policy, but the start deadline applies to it."""
    world = make_world(overlap_policy="queue_all", **given)
    world.holds_work = True
    for _ in range(3):
        world.occurrence()
    world.settle()
    assert world.outcomes() == ("SSS" if "misfire_policy" in given else "SDS")


def test_overlap_policy_applies_to_manual_runs(make_world: MakeWorld) -> None:
    world = make_world(overlap_policy="skip")
    world.holds_work = True
    world.occurrence()
    manual = control.trigger(world.job)
    world.tick()
    world.deliver()
    manual.refresh_from_db()
    assert (manual.state, "was unfinished: running" in manual.reason) == ("skipped", True)
    world.settle()
    again = control.trigger(world.job)
    world.settle()
    again.refresh_from_db()
    assert again.state == "succeeded"
