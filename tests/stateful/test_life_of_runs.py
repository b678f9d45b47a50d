"""Random lives of runs: two nodes, two workers, a broker and users act in any order.

Each process may die or be suspended at any moment. ``transactions`` inserts events between the
transactions of other actors, ``world`` defines their operations, and ``guarantees`` checks the rows
after every transaction. At the end, everything works again: then every run must end, and the strict
checker must find nothing.

DCRON_TEST_EXAMPLES sets the number of lives; 1000 take about ten minutes. A failure prints its life
and a ``@reproduce_failure`` line, which belongs above ``LifeOfRuns``. The lives are the same each
time with DCRON_TEST_DERANDOMIZE=1, as in .ci/run, or if Hypothesis detects a CI. There, the result
must depend on the change alone.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
from django.db import connection
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from pytest_django import Settings

from django_dcron.dispatch import best_effort
from django_dcron.models import (
    Attempt,
    AuditEntry,
    Cursor,
    Freeze,
    Incident,
    Job,
    Limit,
    LimitPlace,
    LimitStart,
    Link,
    PendingCount,
    Run,
    Statistics,
)
from django_dcron.runs import creation
from tests import depth
from tests.app.models import Witness
from tests.checker import check
from tests.stateful.operations import JOBS, LAPSE, OPERATIONS
from tests.stateful.transactions import time_of
from tests.stateful.world import Operation, World

EXAMPLES = int(os.environ.get("DCRON_TEST_EXAMPLES", "0"))
DERANDOMIZE = not EXAMPLES and (
    settings.default.derandomize or bool(os.environ.get("DCRON_TEST_DERANDOMIZE"))
)
STEPS = 50
MODELS = (
    Witness,
    Attempt,
    LimitPlace,
    Run,
    Statistics,
    PendingCount,
    Cursor,
    Link,
    Freeze,
    Incident,
    AuditEntry,
    Job,
    LimitStart,
    Limit,
)
"""The models whose rows a life leaves behind, in an order in which they can be deleted."""


class LifeOfRuns(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        delete_all_rows()
        self.world = World()
        self._broken = False
        """Whether a guarantee was broken or an operation failed: no further check is useful."""
        self._patches = ExitStack()
        self._patches.enter_context(self.world.events.watched())
        # Enter the clock within ``events.watched``, so that an event may happen before each query
        # for the time.
        self._patches.enter_context(time_of(self.world.clock))
        self._patches.enter_context(
            patch.object(best_effort, "shared_dispatcher", lambda: self.world.broker)
        )

    @initialize(jobs=st.lists(JOBS, min_size=1, max_size=2))
    def begin(self, jobs: list[dict[str, Any]]) -> None:
        self.world.make_limits()
        for fields in jobs:
            self.world.do("create", {"fields": fields})

    @rule(lapse=LAPSE, operation=OPERATIONS)
    def step(self, lapse: float, operation: Operation) -> None:
        self._broken = True
        self.world.pass_time(lapse)
        self.world.do(*operation)
        self._broken = False

    def teardown(self) -> None:
        try:
            if not self._broken:
                self._settle()
        finally:
            self._patches.close()
            connection.close()  # which ends the limits of nodes that were killed

    def _settle(self) -> None:
        self.world.settle()
        guarantees = self.world.guarantees
        Witness.objects.exclude(
            run_id__in=[str(run_id) for run_id in guarantees.rows.runs]
        ).delete()  # witnesses of deleted jobs
        verdict = check(guarantees.changed_at, self.world.clock.now())
        assert not verdict.problems, verdict


def delete_all_rows() -> None:
    Run.objects.exclude(rerun_of=None).update(rerun_of=None)
    for model in MODELS:
        model.objects.all()._raw_delete("default")


@pytest.fixture
def quick_times(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    settings.DCRON_LOOK_AHEAD = timedelta(seconds=10)
    settings.DCRON_RUN_LEASE = timedelta(seconds=6)
    settings.DCRON_BACKFILL_CONCURRENCY = 2
    settings.DCRON_REDELIVER_AFTER = timedelta(seconds=5)
    # Jitter may depend only on the occurrence, because each life has other job ids.
    monkeypatch.setattr(
        creation, "jitter_delay", lambda job_id, at, jitter: jitter * (at.second % 4) / 4
    )
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
@pytest.mark.timeout(0 if EXAMPLES else 600)
def test_guarantees_hold_in_random_lives_of_runs(transactional_db: None, quick_times: None) -> None:
    chosen = settings(
        max_examples=EXAMPLES or (1000 if depth.FULL else 4),
        derandomize=DERANDOMIZE,
        database=None,
        stateful_step_count=STEPS,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
        report_multiple_bugs=False,
    )
    run_state_machine_as_test(LifeOfRuns, settings=chosen)
