"""Execution of runs in threads of the node: for small sites, development and tests."""

from __future__ import annotations

import logging
import platform
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from uuid import UUID

from django.db import close_old_connections

from django_dcron.db.open_transactions import release_connections
from django_dcron.db.query_log import forget_queries
from django_dcron.dispatch.base import DispatchFailed, DueRun
from django_dcron.exceptions import UnknownRun
from django_dcron.utils.threads import mark_dcron_thread

logger = logging.getLogger("django_dcron.runs")


class ThreadDispatcher:
    """Executes runs in a bounded thread pool. Ignores a run that is already in the pool."""

    address = "threads of this process"
    batch_size = 2000

    def __init__(self, execute: Callable[..., Any], threads: int):
        self._execute = execute
        self._pool = ThreadPoolExecutor(
            threads, thread_name_prefix="dcron-run", initializer=mark_dcron_thread
        )
        self._lock = threading.Lock()
        self._submitted: dict[tuple[UUID, int], tuple[str, Future[None]]] = {}
        self._worker = f"{platform.node()}/threads"

    def prepare(self, run: DueRun) -> DueRun:
        return run

    def publish(self, prepared: Sequence[DueRun]) -> None:
        for run in prepared:
            with self._lock:
                if run.key in self._submitted:
                    continue
                try:
                    self._submitted[run.key] = run.job_name, self._pool.submit(self._run, run)
                except RuntimeError as error:
                    raise DispatchFailed("the threads are shut down") from error

    def revoke(self, run_id: UUID, attempt: int, worker: str = "") -> None:
        """Do nothing: a cancellation in this process has already notified the run's heartbeat."""

    def take_back(self) -> list[tuple[UUID, int]]:
        with self._lock:
            unstarted = [key for key, (_, future) in self._submitted.items() if future.cancel()]
            for key in unstarted:
                del self._submitted[key]
        return unstarted

    def executing(self) -> list[str]:
        with self._lock:
            return [job_name for job_name, future in self._submitted.values() if future.running()]

    def close(self, wait: bool = True) -> None:
        self._pool.shutdown(wait=wait, cancel_futures=not wait)

    def _run(self, run: DueRun) -> None:
        try:
            close_old_connections()
            self._execute(run.run_id, run.attempt, worker=self._worker)
        except UnknownRun as error:
            # The run was deleted after its claim: the node and its threads use the same database.
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
