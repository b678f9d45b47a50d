"""Keep the outcomes of runs whose rows other sessions lock, and record them later.

Meanwhile, the process executes other runs. A thread looks for unlocked rows until no outcome is
left. The heartbeats of the runs continue, so that no node declares them lost.

Invariants:

- An outcome is kept until it is recorded, fails with an unknown error, or the process ends. Before
  the process ends, it waits up to ``DCRON_RUN_LEASE`` for its outcomes. A node declares the
  attempts of all unrecorded outcomes lost.
- A lock on one run doesn't delay the outcomes of other runs.
- A process keeps at most ``MAX_OUTCOMES`` outcomes. Any further run that ends waits until its rows
  are unlocked.
"""

from __future__ import annotations

import atexit
import logging
import os
import random
import threading
import time
from collections.abc import Collection
from contextlib import ExitStack
from uuid import UUID

from django.db import connections

from django_dcron.conf import settings
from django_dcron.db.contention import supports_no_key_update
from django_dcron.db.routing import alias_for
from django_dcron.execution.database_outage import FIRST_PAUSE, retry_until_available
from django_dcron.execution.heartbeat_loss import log_fields
from django_dcron.execution.unrecorded_outcome import UnrecordedOutcome
from django_dcron.execution.worker_exit import before_exit
from django_dcron.models import Attempt, Run
from django_dcron.runs import deliveries
from django_dcron.utils.threads import DcronThread

logger = logging.getLogger("django_dcron.runs")

MAX_OUTCOMES = 100
"""The maximum number of outcomes that a process keeps."""
LONGEST_PAUSE = 1.0
"""The maximum number of seconds between two searches for unlocked rows."""


class PendingOutcomes:
    """The pending outcomes of a process."""

    def __init__(self) -> None:
        self._heartbeats: dict[UnrecordedOutcome, ExitStack] = {}
        """The pending outcomes in order, each with the context that keeps its run alive."""
        self._changed = threading.Condition()
        """The lock of all attributes, notified when an outcome is no longer pending."""
        self._thread: threading.Thread | None = None

    def add(self, outcome: UnrecordedOutcome, heartbeat: ExitStack) -> bool:
        """Keep the outcome, and close ``heartbeat`` when it is recorded.

        Returns False if there are too many pending outcomes, or if no thread can be started.
        """
        with self._changed:
            if len(self._heartbeats) >= MAX_OUTCOMES:
                return False
            if self._thread is None:
                thread = DcronThread(target=self._run, name="dcron-outcomes", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the system has too many threads
                    return False
                self._thread = thread
            self._heartbeats[outcome] = heartbeat.pop_all()
        logger.warning(
            "outcome kept: job=%s run=%s reason=another session locks the run",
            outcome.run.job,
            outcome.run.id,
            extra={"event": "outcome_kept", **log_fields(outcome.run)},
        )
        return True

    def flush(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds until no outcome is pending. Return whether none is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._heartbeats, timeout)

    def flush_before_exit(self) -> None:
        """Wait up to ``DCRON_RUN_LEASE`` until no outcome is pending. Log those that are lost."""
        if self.flush(0):
            return
        seconds = settings.RUN_LEASE.total_seconds()
        text = "process waits for locked runs before it exits: runs=%d at_most=%gs"
        extra = {"event": "exit_waits_for_outcomes", "runs": len(self._heartbeats)}
        logger.warning(text, len(self._heartbeats), seconds, extra=extra)
        if not self.flush(seconds):
            extra = {"event": "outcomes_lost", "runs": len(self._heartbeats)}
            logger.error("outcomes lost: runs=%d", len(self._heartbeats), extra=extra)

    def _run(self) -> None:
        pause = FIRST_PAUSE
        try:
            while pending := self._pending():
                try:
                    recorded = self._record_unlocked(pending)
                except Exception:  # for example, a migration has renamed a column
                    extra = {"event": "outcomes_pending", "runs": len(pending)}
                    logger.exception("no outcome recorded: runs=%d", len(pending), extra=extra)
                    recorded = 0
                if recorded:
                    pause = FIRST_PAUSE
                    continue
                time.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 (spreads, keeps no secret)
                pause = min(2 * pause, LONGEST_PAUSE)
        finally:
            connections.close_all()  # of this thread

    def _pending(self) -> list[UnrecordedOutcome]:
        """Return the pending outcomes. If there are none, the caller's thread must end."""
        with self._changed:
            if not self._heartbeats:
                self._thread = None
            return list(self._heartbeats)

    def _record_unlocked(self, pending: Collection[UnrecordedOutcome]) -> int:
        """Record the outcomes whose rows are unlocked. Return how many aren't pending any more.

        An outcome that fails with an unknown error isn't pending any more either.
        """
        using, number = alias_for(Run), 0
        unlocked = retry_until_available(
            lambda: _unlocked({outcome.run.id for outcome in pending}), "find unlocked runs", using
        )
        for outcome in pending:
            if outcome.run.id not in unlocked:
                continue
            step = f"record outcome of {outcome.run.job}"
            try:
                if not retry_until_available(outcome.record_unless_locked, step, using):
                    continue
            except Exception:  # The other outcomes must be recorded. A node rescues this run.
                extra = {"event": "outcome_not_recorded", **log_fields(outcome.run)}
                logger.exception("outcome not recorded: job=%s", outcome.run.job, extra=extra)
            number += 1
            with self._changed:
                self._heartbeats.pop(outcome).close()
                self._changed.notify_all()
        return number


def _unlocked(run_ids: Collection[UUID]) -> set[UUID]:
    """Return the runs whose rows, and those of their open attempts, nobody else has locked."""
    using = alias_for(Attempt)
    no_key = supports_no_key_update(using)
    with deliveries.lock_unlocked(run_ids) as unlocked:
        rows = Attempt.objects.using(using).filter(run__in=unlocked, outcome="").order_by()
        attempts = rows.values_list("pk", "run")
        locked = set(attempts) - set(attempts.select_for_update(skip_locked=True, no_key=no_key))
        return unlocked - {run_id for _, run_id in locked}


_by_process: dict[int, PendingOutcomes] = {}


def process_outcomes() -> PendingOutcomes:
    """Return the pending outcomes of this process. A forked child has none of its parent's."""
    return _by_process.setdefault(os.getpid(), PendingOutcomes())


def _flush_before_exit() -> None:
    process_outcomes().flush_before_exit()


before_exit(_flush_before_exit)
atexit.register(_flush_before_exit)
