"""The policies with real processes: nodes, workers and a broker. The long outage is simulated."""

import json
from contextlib import suppress
from datetime import timedelta
from itertools import pairwise

import pytest
from django.core.management import call_command

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.exceptions import NotPossible
from django_dcron.models import Run
from django_dcron.policies.lifecycle import FINAL
from tests.app.models import Witness
from tests.checker import check
from tests.conftest import StartProcess
from tests.factories import make_job
from tests.policy_matrix.world import (
    every_ten_minutes,
    move_into_the_past,
    next_occurrence,
    outcomes,
)
from tests.services import Process
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

MINUTE = timedelta(minutes=1)
LONG = 100.0
"""In seconds."""
WORK = {"allow": 0.0, "skip": 2.0, "queue_one": 1.0, "queue_all": 0.3, "cancel_running": 2.0}
"""Duration of a run for each overlap policy, in seconds: just enough for other runs to come."""
NO_HEARTBEAT = {"DCRON_TEST_SETTINGS": json.dumps({"RUN_LEASE": 3600})}
"""With this setting, a worker learns of a cancel only from a control command."""


class Jobs:
    """One job for each policy. All have the same occurrences."""

    def __init__(self) -> None:
        schedule = every_ten_minutes(database_now("default").replace(microsecond=0))
        given = {
            "schedule": schedule,
            "misfire_grace": 3 * MINUTE,
            "target": "tests.app.tasks.witness",
        }
        self.jobs = {
            policy: make_job(
                misfire_policy=policy, overlap_policy="allow", catchup_limit=3, **given
            )
            for policy in ("skip", "run_latest", "run_all")
        }
        self.jobs |= {
            f"overlap {policy}": make_job(
                overlap_policy=policy, misfire_policy="run_all", args=[seconds], **given
            )
            for policy, seconds in WORK.items()
        }
        self.first = next_occurrence(self.jobs["skip"])

    def pass_minutes(self, minutes: int) -> None:
        move_into_the_past(minutes * MINUTE)
        self.first -= minutes * MINUTE

    def outcomes(self) -> dict[str, str]:
        return {name: outcomes(job, self.first) for name, job in self.jobs.items()}

    def settle(self, node: Process) -> None:
        """Wait until all due runs have ended, stop the node and check its work."""
        due = Run.objects.filter(scheduled_at__lte=database_now("default"))
        wait_until(due.exists, what="claims")
        unfinished = due.exclude(state__in=FINAL)
        wait_until(
            lambda: not unfinished.exists(),
            60,
            what="all due runs to end",
            interval=0.2,
        )
        node.terminate()
        assert node.wait() == 0
        verdict = check(self.first - timedelta(seconds=1), database_now("default"))
        assert not verdict.problems, str(verdict)

    def verify_overlap(self) -> None:
        """Check the outcomes. Workers race for the slot, so any run may get it."""
        found = {
            name: letters for name, letters in self.outcomes().items() if name.startswith("overlap")
        }
        assert found["overlap allow"] == found["overlap queue_all"] == "SSSSSS"
        assert set(found["overlap skip"]) == {"S", "K"}
        assert set(found["overlap queue_one"]) == {"S", "K"}
        assert found["overlap queue_one"].count("S") >= 2
        replaced = found["overlap cancel_running"]
        assert replaced[-1] == "S"
        assert "R" in replaced
        assert set(replaced) <= {"S", "R", "r", "K"}
        for policy in ("skip", "queue_one", "queue_all"):
            starts = Witness.objects.filter(job=str(self.jobs[f"overlap {policy}"])).order_by("at")
            apart = [
                after - before for before, after in pairwise(starts.values_list("at", flat=True))
            ]
            assert all(each >= timedelta(seconds=WORK[policy]) for each in apart), (
                f"{policy}: two runs overlapped"
            )


@pytest.mark.nightly
def test_policies_apply_after_an_hour_without_scheduler(
    start_runcron: StartProcess, start_worker: StartProcess
) -> None:
    jobs = Jobs()
    jobs.pass_minutes(60)
    start_worker(concurrency=6)
    jobs.settle(start_runcron())
    found = jobs.outcomes()
    assert {name: found[name] for name in ("skip", "run_latest", "run_all")} == {
        "skip": "mmmmMS",
        "run_latest": "mmmmMS",
        "run_all": "SSSmMS",
    }
    jobs.verify_overlap()


@pytest.mark.nightly
def test_policies_apply_after_an_hour_without_workers(
    start_runcron: StartProcess, start_worker: StartProcess
) -> None:
    jobs = Jobs()
    for _ in range(6):
        jobs.pass_minutes(10)
        call_command("runcron", once=True)
    start_worker(concurrency=6)
    jobs.settle(start_runcron())
    found = jobs.outcomes()
    assert {name: found[name] for name in ("skip", "run_latest", "run_all")} == {
        "skip": "MMMMMS",
        "run_latest": "MMMMMS",
        "run_all": "SSSMMS",
    }
    jobs.verify_overlap()


def test_cancel_running_stops_the_run_on_the_worker_at_once(
    start_runcron: StartProcess, start_worker: StartProcess
) -> None:
    """Each run would outlast the test, but the next run replaces it after a second or two."""
    job = make_job(
        target="tests.app.tasks.clean_up_when_cancelled",
        args=[LONG],
        overlap_policy="cancel_running",
    )
    start_worker(env=NO_HEARTBEAT)
    node = start_runcron()
    stopped = Run.objects.filter(job=job, attempts__result='"in order; cancelled: True"')
    wait_until(lambda: stopped.count() >= 3, what="three running runs to be replaced")
    for run in stopped:
        assert (run.state, run.attempts.get().outcome) == ("cancelled", "cancelled")
        assert run.reason.startswith("replaced by the run of")
    job.refresh_from_db()
    control.pause(job)
    unfinished = Run.objects.filter(job=job).exclude(state__in=FINAL)

    def cancelled_by_hand() -> bool:
        for run in unfinished.all():
            with suppress(NotPossible):  # the run has just ended
                control.cancel(run, "by hand")
        return not unfinished.exists()

    wait_until(cancelled_by_hand, what="the last run to be cancelled by hand", interval=0.2)
    node.terminate()
    assert node.wait() == 0
    assert set(Run.objects.filter(job=job).values_list("state", flat=True)) <= {
        "cancelled",
        "skipped",
        "missed",
    }
