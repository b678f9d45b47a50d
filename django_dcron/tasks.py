"""The entry points of a Celery worker: the one Celery task and the remote control commands.

``execution`` decides about the start and the end of runs. This module decides what happens to
messages of unknown runs.
"""

from __future__ import annotations

import os
import re
import signal
from datetime import timedelta
from functools import cache
from typing import Any
from uuid import UUID

from billiard.process import active_children, current_process
from celery import Task, shared_task
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded, Terminated, WorkerLostError
from celery.signals import (
    beat_init,
    before_task_publish,
    celeryd_init,
    task_received,
    worker_process_init,
    worker_process_shutdown,
)
from celery.worker import state as worker_state
from celery.worker.control import control_command

from django_dcron.conf import Settings
from django_dcron.db.query_log import forget_queries
from django_dcron.db.routing import alias_for
from django_dcron.dispatch import worker_reconnect  # noqa: F401 (connects a signal)
from django_dcron.dispatch.acknowledgement import DeferredAckRequest
from django_dcron.dispatch.base import DispatchFailed
from django_dcron.dispatch.celery import CeleryDispatcher
from django_dcron.dispatch.messages import NODE_HEADER
from django_dcron.dispatch.remote_control import REPORT, REVOKE
from django_dcron.exceptions import UnknownRun
from django_dcron.execution import interruption
from django_dcron.execution.beat_tasks import BeatSender, BeatTasks
from django_dcron.execution.database_outage import retry_until_available
from django_dcron.execution.executor import START_TIMEOUT, execute
from django_dcron.execution.heartbeat import check_cancellations
from django_dcron.execution.termination import record_killed_attempt
from django_dcron.execution.unknown_runs import UnknownRuns, is_published_here, unknown_run_log
from django_dcron.execution.worker_exit import run_before_exit
from django_dcron.models import Node
from django_dcron.policies.lifecycle import Outcome
from django_dcron.utils.durations import write_duration

MAX_RETURNS = 10
"""The number of times that workers without the run publish its message again. After that, a node
dispatches the run: ``scheduler.worker_probe``, or the rescue after ``DCRON_REDELIVER_AFTER``.
"""
RETURNS_HEADER = "dcron_returns"
"""The header that counts how often workers have published the message again."""

unknown_runs = UnknownRuns()
"""The unknown runs of this worker, kept in its main process, which answers remote control
commands.
"""
beat_tasks = BeatTasks()
"""The tasks that beat has sent to this worker, kept in its main process, too."""
beat_sender = BeatSender()


JOB_NUMBER = re.compile(r" Job: \d+\.$")
KILLED = "signal 9 "
KILLED_HINT = "often the kernel kills processes for lack of memory: see dmesg"


class ForeignRun(Ignore):
    """Report to the worker's main process that the run belongs to another database.

    The main process acknowledges the message.
    """

    def __init__(self, dropped: bool):
        super().__init__(dropped)
        self.dropped = dropped
        """Whether the message was dropped instead of published again."""


class RunRequest(DeferredAckRequest):
    """A request in the worker's main process, which learns first when a child dies."""

    def on_timeout(self, soft: bool, timeout: float) -> None:
        super().on_timeout(soft, timeout)
        if not soft:
            lasted = write_duration(timedelta(seconds=timeout))
            self._end_by_force(Outcome.TIMED_OUT, f"killed: still running after {lasted}")

    def on_failure(
        self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False
    ) -> Any:
        # The child records exceptions of the target itself; they don't reach this process.
        try:
            return super().on_failure(exc_info, send_failed_event, return_ok)
        finally:
            # billiard may have wrapped the exception.
            cause = getattr(exc_info.exception, "exc", exc_info.exception)
            if isinstance(cause, (ForeignRun, Reject)):
                unknown_runs.add(self.args[0], dropped=getattr(cause, "dropped", False))
            elif isinstance(cause, (WorkerLostError, Terminated, SystemExit)):
                self._end_by_force(Outcome.LOST, _message_of_death(str(cause)))

    def _end_by_force(self, outcome: Outcome, message: str) -> None:
        run_id, attempt = self.args
        worker = _worker_name(self.hostname, self.worker_pid)
        record_killed_attempt(UUID(run_id), attempt, outcome, message, worker=worker)


def _message_of_death(cause: str) -> str:
    """Return the message of an attempt whose process died: the same for each such death.

    Celery's number of the job is removed, because incidents group failures by their message.
    """
    text = f"worker process died: {JOB_NUMBER.sub('', cause)}"
    return f"{text}; {KILLED_HINT}" if KILLED in cause else text


@control_command(name=REVOKE, visible=False)
def revoke(state: Any, task_id: str | list[str], pid: int | None) -> dict[str, str]:
    """Revoke one or many tasks on this worker, and notify process ``pid``, which executes it.

    The process checks for a cancellation. It isn't killed, because it has to record the outcome of
    the run.
    """
    worker_state.revoked.update([task_id] if isinstance(task_id, str) else task_id)
    if pid == os.getpid():  # Celery uses a pool of threads.
        check_cancellations()
    elif pid is not None and pid in {child.pid for child in active_children()}:
        os.kill(pid, interruption.SIGNAL)
    return {"ok": f"{task_id} revoked"}


@control_command(name=REPORT, visible=False)
def report_state(state: Any) -> list[dict[str, Any]]:
    """Return the latest runs that this worker received and didn't find in its database, and the
    tasks that it received from beat.
    """
    return [*unknown_runs.report(), *beat_tasks.report()]


@celeryd_init.connect(weak=False)
def _require_valid_settings(**kwargs: Any) -> None:
    """End a worker whose settings are invalid, as each command of Django ends.

    Celery runs Django's system checks in a worker, but ignores what they find. Runs would then fail
    or stay queued.
    """
    if problems := [problem for setting in Settings.all() if (problem := setting.problem())]:
        text = "The worker can't start, because settings of django-dcron are invalid:"
        raise SystemExit("\n".join([text, *problems, "Correct them. See manage.py check."]))


@task_received.connect(weak=False)
def _remember_beat_tasks(request: Any = None, **kwargs: Any) -> None:
    beat_tasks.remember(request.request_dict, request.delivery_info)


@beat_init.connect(weak=False)
def _mark_messages_of_beat(**kwargs: Any) -> None:
    """Mark the messages of this beat process. Other processes publish without this signal."""
    beat_sender.begin()
    before_task_publish.connect(_mark, weak=False)


def _mark(headers: Any = None, **kwargs: Any) -> None:
    beat_sender.mark(headers)


@worker_process_init.connect(weak=False)
def _listen_for_cancels(**kwargs: Any) -> None:
    """Install the signal handler in each pool process before its first run.

    Without the handler, the signal would end the process.
    """
    interruption.call_on_signal(check_cancellations)


@worker_process_shutdown.connect(weak=False)
def _run_before_exit(**kwargs: Any) -> None:
    run_before_exit()


def _worker_name(hostname: str | None, pid: object) -> str:
    """Return the name with the process id: two children of one worker may receive the same run."""
    return f"{hostname or 'celery'}/{pid}"


def _kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _is_prefork_child() -> bool:
    """Return whether this is a pool process that the worker replaces when it ends."""
    return hasattr(current_process(), "index")


@shared_task(
    bind=True,
    name="django_dcron.execute",
    Request=RunRequest,  # type: ignore[call-overload, untyped-decorator]  # not in the stubs
    ignore_result=True,
    # The message is acknowledged after execution, so a killed worker's messages are redelivered.
    # The start drops messages of runs that have started.
    acks_late=True,
    acks_on_failure_or_timeout=True,
    reject_on_worker_lost=False,
)
def execute_run(self: Task[Any, Any], run_id: str, attempt: int) -> str:
    """Execute the attempt. Returns its outcome as text.

    Celery logs ``Task … succeeded`` with this text for each message that was processed, regardless
    of the attempt's outcome.
    """
    worker = _worker_name(self.request.hostname, os.getpid())
    try:
        outcome = execute(
            UUID(run_id),
            attempt,
            worker=worker,
            timeout_exception=SoftTimeLimitExceeded,
            end_process=_kill_this_process if _is_prefork_child() else None,
        )
        return (
            f"attempt {outcome}"
            if outcome
            else "not executed: a duplicate message, or the run needs no start"
        )
    except UnknownRun:
        _return_to_queue(self, UUID(run_id), attempt, worker)
        return "dropped: unknown run"
    finally:
        forget_queries()


def _return_to_queue(task: Task[Any, Any], run_id: UUID, attempt: int, worker: str) -> None:
    """Publish the message again for workers with the right database.

    A message that was published for this database is dropped: its run doesn't exist. Raises
    ``ForeignRun``, or ``Reject`` if the broker has to requeue the message.
    """
    request: Any = task.request  # The stubs lack these attributes.
    headers = dict(request.headers or {})
    node = headers.get(NODE_HEADER)
    if node and retry_until_available(
        lambda: is_published_here(node),
        f"look up node {node}",
        alias_for(Node),
        give_up_after=START_TIMEOUT,
    ):
        unknown_run_log.log(
            run_id, attempt, worker, "Node and worker use the same database.", expected=True
        )
        return
    returns = int(headers.get(RETURNS_HEADER, 0))
    if returns >= MAX_RETURNS:
        consequence = (
            f"Workers returned the message {returns} times. A node will dispatch the run again."
        )
        unknown_run_log.log(run_id, attempt, worker, consequence, expected=True)
        raise ForeignRun(True)
    try:
        _dispatcher_for(task.app).publish_again(request, {**headers, RETURNS_HEADER: returns + 1})
    except DispatchFailed as error:
        # The broker may redeliver a requeued message to this worker at once, so the worker requeues
        # it only once.
        dropped = bool((request.delivery_info or {}).get("redelivered"))
        consequence = f"The message can't be published again: {error}"
        unknown_run_log.log(run_id, attempt, worker, consequence)
        if dropped:
            raise ForeignRun(True) from error
        raise Reject(str(error), requeue=True) from error
    unknown_run_log.log(
        run_id, attempt, worker, "The message is back in the queue.", expected=returns > 0
    )
    raise ForeignRun(False)


@cache
def _dispatcher_for(app: Any) -> CeleryDispatcher:
    return CeleryDispatcher(app)
