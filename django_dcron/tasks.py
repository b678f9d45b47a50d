"""The one Celery task and the remote control commands: a worker's ways in.

All that decides anything is in ``execution``.
"""

from __future__ import annotations

import os
import signal
from functools import cache
from typing import Any
from uuid import UUID

from billiard.process import active_children, current_process
from celery import Task, shared_task
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded, Terminated, WorkerLostError
from celery.signals import worker_process_init, worker_process_shutdown
from celery.worker import state as worker_state
from celery.worker.control import control_command
from celery.worker.request import Request

from django_dcron.dispatch.base import DispatchFailed
from django_dcron.dispatch.celery import NODE_HEADER, CeleryDispatcher
from django_dcron.dispatch.remote_control import REVOKE, UNKNOWN_RUNS
from django_dcron.domain.lifecycle import Outcome
from django_dcron.exceptions import UnknownRun
from django_dcron.execution import checkins, interruption
from django_dcron.execution.executor import START_PATIENCE, execute
from django_dcron.execution.forced_end import end_by_force
from django_dcron.execution.heart import look_for_cancels
from django_dcron.execution.outage import wait_out
from django_dcron.execution.unknown_runs import UnknownRuns, published_here, warnings
from django_dcron.models import Node
from django_dcron.models.database import alias_for

RETURNS = 10
"""How often workers that don't know a run publish its message again. Then a node does: ``scheduler.worker_probe``, or the
rescue after ``DCRON_REDELIVER_AFTER``."""
RETURNS_HEADER = "dcron_returns"
"""How often a message was published again by workers."""

unknown_runs = UnknownRuns()
"""Of this worker: lives in its main process, where remote control commands are answered."""


class NotOurs(Ignore):
    """The run belongs to another database. Tells the worker's main process, which acknowledges the message."""

    def __init__(self, dropped: bool):
        super().__init__(dropped)
        self.dropped = dropped
        """Nobody published the message again."""


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
            if isinstance(died_of, (NotOurs, Reject)):
                unknown_runs.add(self.args[0], dropped=getattr(died_of, "dropped", False))
            elif isinstance(died_of, (WorkerLostError, Terminated, SystemExit)):
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


@control_command(name=UNKNOWN_RUNS, visible=False)
def report_unknown_runs(state: Any) -> list[dict[str, Any]]:
    """Report the latest runs that this worker received and didn't find in its database."""
    return unknown_runs.report()


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
    worker = _worker_name(self.request.hostname, os.getpid())
    try:
        execute(
            UUID(run_id),
            attempt,
            worker=worker,
            timeout_exception=SoftTimeLimitExceeded,
            end_process=_kill_this_process if _is_prefork_child() else None,
        )
    except UnknownRun:
        _return_to_queue(self, UUID(run_id), attempt, worker)


def _return_to_queue(task: Task[Any, Any], run_id: UUID, attempt: int, worker: str) -> None:
    """Publish the message again, for workers with the right database, unless it was published for this one.

    Raises ``NotOurs``, or ``Reject`` if the broker itself has to put the message back.
    """
    request: Any = task.request  # of which the stubs know too little
    headers = dict(request.headers or {})
    node = headers.get(NODE_HEADER)
    if node and wait_out(
        lambda: published_here(node), f"a look at node {node}", alias_for(Node), give_up_after=START_PATIENCE
    ):
        warnings.log(run_id, attempt, worker, "Node and worker use the same database.", expected=True)
        return
    returns = int(headers.get(RETURNS_HEADER, 0))
    if returns >= RETURNS:
        consequence = f"Workers returned the message {returns} times: a node hands the run over again."
        warnings.log(run_id, attempt, worker, consequence, expected=True)
        raise NotOurs(True)
    try:
        _returner(task.app).publish_again(request, {**headers, RETURNS_HEADER: returns + 1})
    except DispatchFailed as error:
        # A broker that puts a message back may deliver it to the same worker at once: so it is asked only once.
        dropped = bool((request.delivery_info or {}).get("redelivered"))
        consequence = f"The message can't be published again: {error}"
        warnings.log(run_id, attempt, worker, consequence)
        if dropped:
            raise NotOurs(True) from error
        raise Reject(str(error), requeue=True) from error
    warnings.log(run_id, attempt, worker, "The message is back in the queue.", expected=returns > 0)
    raise NotOurs(False)


@cache
def _returner(app: Any) -> CeleryDispatcher:
    return CeleryDispatcher(app)
