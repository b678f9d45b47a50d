"""The life of runs, in any order: two nodes, two workers, a broker and people, each dying or freezing at any moment.

``moments``: how they come between one another's transactions; ``world``: what each can do; ``promises``: what must be true
after every transaction. At the end everybody works again: then every run ends, and the strict checker finds nothing.

Random lives, a few each time; DCRON_TEST_EXAMPLES says how many: 1000 take about ten minutes. A failure prints its life and a
``@reproduce_failure`` line, which belongs above ``LifeOfRuns``. With DCRON_TEST_SAME_LIVES=1, as in .ci/run, or where Hypothesis
finds itself in a CI, they are the same each time: there the verdict is on the change, and the same tree gets the same one.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from pytest_django import Settings

from django_dcron import occurrences
from django_dcron.dispatch import favour
from django_dcron.models import Attempt, Cursor, Job, Link, Run, Statistics
from tests import depth
from tests.app.models import Witness
from tests.checker import check
from tests.stateful.deeds import DEEDS, JOBS, LAPSE
from tests.stateful.moments import time_of
from tests.stateful.world import Deed, World

EXAMPLES = int(os.environ.get("DCRON_TEST_EXAMPLES", "0"))
SAME_LIVES = not EXAMPLES and (settings.default.derandomize or bool(os.environ.get("DCRON_TEST_SAME_LIVES")))
STEPS = 50


class LifeOfRuns(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        forget_everything()
        self.world = World()
        self._broken = False
        """A promise was broken, or a deed failed: no need to look any further."""
        self._played = ExitStack()
        self._played.enter_context(self.world.moments.watched())
        # Inside of it: what time it is, is asked after a moment.
        self._played.enter_context(time_of(self.world.clock))
        self._played.enter_context(patch.object(favour, "shared_dispatcher", lambda: self.world.broker))

    @initialize(jobs=st.lists(JOBS, min_size=1, max_size=2))
    def begin(self, jobs: list[dict[str, Any]]) -> None:
        for fields in jobs:
            self.world.do("create", {"fields": fields})

    @rule(lapse=LAPSE, deed=DEEDS)
    def happens(self, lapse: float, deed: Deed) -> None:
        self._broken = True
        self.world.pass_time(lapse)
        self.world.do(*deed)
        self._broken = False

    def teardown(self) -> None:
        try:
            if not self._broken:
                self._come_to_rest()
        finally:
            self._played.close()

    def _come_to_rest(self) -> None:
        self.world.come_to_rest()
        promises = self.world.promises
        Witness.objects.exclude(
            run_id__in=[str(run_id) for run_id in promises.rows.runs]
        ).delete()  # of deleted jobs
        verdict = check(promises.changed_at, self.world.clock.now())
        assert not verdict.problems, verdict


def forget_everything() -> None:
    Run.objects.exclude(rerun_of=None).update(rerun_of=None)
    for model in (Witness, Attempt, Run, Statistics, Cursor, Link, Job):
        model.objects.all()._raw_delete("default")


@pytest.fixture
def quick_times(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    settings.DCRON_LOOK_AHEAD = timedelta(seconds=10)
    settings.DCRON_RUN_LEASE = timedelta(seconds=6)
    settings.DCRON_BACKFILL_CONCURRENCY = 2
    settings.DCRON_REDELIVER_AFTER = timedelta(seconds=5)
    # By the occurrence alone: the jobs' keys are others in each life.
    monkeypatch.setattr(occurrences, "offset", lambda job_id, at, jitter: jitter * (at.second % 4) / 4)
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
@pytest.mark.timeout(0 if EXAMPLES else 600)
def test_the_life_of_runs(transactional_db: None, quick_times: None) -> None:
    chosen = settings(
        max_examples=EXAMPLES or (1000 if depth.FULL else 6),
        derandomize=SAME_LIVES,
        database=None,
        stateful_step_count=STEPS,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
        report_multiple_bugs=False,
    )
    run_state_machine_as_test(LifeOfRuns, settings=chosen)
