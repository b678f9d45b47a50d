"""The one Celery task and the one remote control command: a worker's ways in.

All that decides anything is in ``execution``.
"""

from __future__ import annotations

import os
import signal
from typing import Any
from uuid import UUID

from billiard.process import active_children, current_process
from celery import Task, shared_task
from celery.exceptions import SoftTimeLimitExceeded, Terminated, WorkerLostError
from celery.signals import worker_process_init, worker_process_shutdown
from celery.worker import state as worker_state
from celery.worker.control import control_command
from celery.worker.request import Request

from django_dcron.dispatch.remote_control import REVOKE
from django_dcron.domain.lifecycle import Outcome
from django_dcron.execution import checkins, interruption
from django_dcron.execution.executor import execute
from django_dcron.execution.forced_end import end_by_force
from django_dcron.execution.heart import look_for_cancels


class RunRequest(Request):
    """Lives in the worker's main process, which is the first to learn that a child was killed or died."""

    def on_timeout(self, soft: bool, timeout: float) -> None:
        super().on_timeout(soft, timeout)
        if not soft:
            self._end_by_force(Outcome.TIMED_OUT, f"killed: still running after {timeout:g} s")

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        # Whatever the target raises is recorded in the child and ends there.
        try:
            return super().on_failure(exc_info, send_failed_event, return_ok)
        finally:
            died_of = getattr(exc_info.exception, "exc", exc_info.exception)  # billiard may have wrapped it
            if isinstance(died_of, (WorkerLostError, Terminated, SystemExit)):
                self._end_by_force(Outcome.LOST, f"its worker process died: {died_of}")

    def _end_by_force(self, outcome: Outcome, message: str) -> None:
        run_id, attempt = self.args
        worker = _worker_name(self.hostname, self.worker_pid)
        end_by_force(UUID(run_id), attempt, outcome, message, worker=worker)


@control_command(name=REVOKE, visible=False)
def revoke(state: Any, task_id: str, pid: int | None) -> dict[str, str]:
    """Drop what this worker holds of a task, or will get; have process ``pid``, which executes it, look for a cancel.

    That process is not killed: it would take the record of what became of the run with it.
    """
    worker_state.revoked.add(task_id)
    if pid == os.getpid():  # a pool of threads
        look_for_cancels()
    elif pid is not None and pid in {child.pid for child in active_children()}:
        os.kill(pid, interruption.SIGNAL)
    return {"ok": f"{task_id} revoked"}


@worker_process_init.connect(weak=False)
def _listen_for_cancels(**kwargs: Any) -> None:
    """In each process of a pool, before it has any run: without a handler the signal would end it."""
    interruption.on_signal(look_for_cancels)


@worker_process_shutdown.connect(weak=False)
def _send_last_check_ins(**kwargs: Any) -> None:
    """Such a process ends without what others do at their exit."""
    checkins.sender.flush(checkins.LAST_PATIENCE)


def _worker_name(hostname: str | None, pid: object) -> str:
    """The process, too: two children of one worker may each have a delivery of the same run."""
    return f"{hostname or 'celery'}/{pid}"


def _kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _is_prefork_child() -> bool:
    """Whether this process is one of a pool's, which the worker replaces when it ends."""
    return hasattr(current_process(), "index")


@shared_task(
    bind=True,
    name="django_dcron.execute",
    Request=RunRequest,  # type: ignore[call-overload, untyped-decorator]  # not in the stubs
    ignore_result=True,
    # Acknowledged when done, so that a killed worker's messages come again; those that started are dropped then.
    acks_late=True,
    acks_on_failure_or_timeout=True,
    reject_on_worker_lost=False,
)
def execute_run(self: Task[Any, Any], run_id: str, attempt: int) -> None:
    execute(
        UUID(run_id),
        attempt,
        worker=_worker_name(self.request.hostname, os.getpid()),
        timeout_exception=SoftTimeLimitExceeded,
        end_process=_kill_this_process if _is_prefork_child() else None,
    )
