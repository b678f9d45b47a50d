"""Execution of runs in threads of the node: for small sites, development and tests.

Coroutine functions run in a second pool of threads, which share one event loop, so that many of
them can wait at the same time.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import close_old_connections

from django_dcron import targets
from django_dcron.db.open_transactions import release_connections
from django_dcron.db.query_log import forget_queries
from django_dcron.dispatch.base import DispatchFailed, DueRun
from django_dcron.dispatch.coroutine_threads import CoroutineThreads
from django_dcron.exceptions import UnknownRun, UnknownTarget
from django_dcron.utils.threads import in_greenlet, mark_dcron_thread

logger = logging.getLogger("django_dcron.runs")


@dataclass
class _Submission:
    """A run in one of the pools."""

    job_name: str
    started: bool = False


class ThreadDispatcher:
    """Executes up to ``threads`` runs at once, plus up to ``coroutines`` of coroutine functions.

    Ignores a run that is already submitted.
    """

    address = "threads of this process"
    batch_size = 2000

    def __init__(self, execute: Callable[..., Any], threads: int, coroutines: int):
        self._execute = execute
        self._pool = ThreadPoolExecutor(
            threads, thread_name_prefix="dcron-run", initializer=mark_dcron_thread
        )
        self._coroutines = CoroutineThreads(coroutines)
        self._lock = threading.Lock()
        self._submitted: dict[tuple[UUID, int], _Submission] = {}
        self._is_closed = False
        self._worker = f"{platform.node()}/threads/{os.getpid()}"

    def prepare(self, run: DueRun) -> DueRun:
        return run

    def publish(self, prepared: Sequence[DueRun]) -> None:
        for run in prepared:
            pool = self._coroutines if _needs_event_loop(run.target) else self._pool
            with self._lock:
                if run.key in self._submitted:
                    continue
                if self._is_closed:
                    raise DispatchFailed("the threads are shut down")
                try:
                    pool.submit(self._run, run)
                except RuntimeError as error:
                    raise DispatchFailed(f"no thread can execute the run: {error}") from error
                self._submitted[run.key] = _Submission(run.job_name)

    def revoke(self, run_id: UUID, attempt: int, worker: str = "") -> None:
        """Do nothing: a cancellation in this process has already notified the run's heartbeat."""

    def take_unstarted(self) -> list[tuple[UUID, int]]:
        with self._lock:
            unstarted = [key for key, each in self._submitted.items() if not each.started]
            for key in unstarted:
                del self._submitted[key]
        return unstarted

    def executing(self) -> list[str]:
        with self._lock:
            return [each.job_name for each in self._submitted.values() if each.started]

    def close(self, wait: bool = True) -> None:
        with self._lock:
            self._is_closed = True
        self._pool.shutdown(wait=wait, cancel_futures=not wait)
        self._coroutines.close(wait)

    def _run(self, run: DueRun) -> None:
        with self._lock:
            if (submission := self._submitted.get(run.key)) is None or submission.started:
                return  # It was taken back, and perhaps submitted again.
            submission.started = True
        try:
            close_old_connections()
            self._execute(run.run_id, run.attempt, worker=self._worker)
        except UnknownRun as error:
            # The run was deleted after its claim. It can't be missing for another reason, because
            # the node and its threads use the same database.
            extra = {
                "event": "dropped",
                "run": str(run.run_id),
                "attempt": run.attempt,
                "worker": self._worker,
            }
            logger.debug("run dropped: job=%s reason=%s", run.job_name, error, extra=extra)
        except BaseException:
            # The future's result is never read. A run without an outcome is delivered again or
            # rescued.
            extra = {
                "event": "outcome_not_recorded",
                "job": run.job_name,
                "run": str(run.run_id),
                "attempt": run.attempt,
                "worker": self._worker,
            }
            logger.exception(
                "outcome not recorded: job=%s run=%s", run.job_name, run.run_id, extra=extra
            )
        finally:
            with self._lock:
                self._submitted.pop(run.key, None)
            forget_queries()
            release_connections()


def _needs_event_loop(target: str) -> bool:
    if in_greenlet():  # The attempt will fail. The event loop would break the runs of all threads.
        return False
    try:
        return targets.get(target).is_async
    except UnknownTarget:  # The attempt will fail.
        return False
