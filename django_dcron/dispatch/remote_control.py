"""Celery's remote control: revoke attempts, and ask workers for their state.

Revoking uses its own command, which workers know through ``tasks``. Celery's command would make
each worker write a result for an unknown task, or warn that it can't. Celery's ``broadcast`` isn't
used, because it tries forever while the broker is unreachable.

Workers are asked in three steps. The first two are Celery's own commands, which every worker knows.
An unknown command would make workers of other projects log an error with a traceback. The third
step goes only to workers with django-dcron's task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from time import monotonic
from typing import Any
from uuid import UUID

from django_dcron.dispatch.base import BeatTask, UnknownRunReport, WorkerReply

REVOKE = "dcron_revoke"
REPORT = "dcron_report"

REPLY_TIMEOUT = 2.0
"""Seconds to wait for the replies to each command."""


def publish_revoke(producer: Any, app: Any, task_id: str | list[str], worker: str) -> None:
    """Send the revocation to all workers, or only to ``worker``.

    ``worker``: ``host/pid`` of the process that executes the task. ``producer``: a kombu producer.
    ``app``: the Celery app, untyped because the stubs lack its attributes.
    """
    host, _, pid = worker.rpartition("/")
    mailbox = app.control.mailbox
    producer.publish(
        {
            "method": REVOKE,
            "arguments": {"task_id": task_id, "pid": int(pid) if pid.isdigit() else None},
            "destination": [host] if host else None,
        },
        exchange=mailbox.exchange,
        declare=[mailbox.exchange],
        serializer=mailbox.serializer,
        headers={"clock": app.clock.forward(), "expires": 0},
    )


def ask_workers(
    app: Any, connection: Any, task: str, timeout: float = REPLY_TIMEOUT
) -> list[WorkerReply]:
    """Ask all workers for their state.

    A reply contains the worker's queues, whether it has ``task``, its unknown runs, and the tasks
    that beat has sent it. ``connection``: a connected kombu connection. Its errors propagate.
    """
    registered = _send_command(app, connection, "registered", None, timeout)
    queues = _send_command(app, connection, "active_queues", list(registered), timeout)
    executing = [name for name, tasks in registered.items() if _has_task(tasks, task)]
    reports = _send_command(app, connection, REPORT, executing, timeout)
    return [
        WorkerReply(
            name,
            tuple(sorted(str(queue.get("name")) for queue in _entries(queues.get(name)))),
            name in executing,
            tuple(_unknown_runs(reports.get(name))),
            tuple(_beat_tasks(reports.get(name))),
        )
        for name in sorted(registered)
    ]


def _send_command(
    app: Any, connection: Any, command: str, destination: list[str] | None, timeout: float
) -> dict[str, Any]:
    """Send a command and return the replies by worker.

    ``destination``: the workers to ask; None for all.
    """
    if destination == []:
        return {}
    mailbox = app.control.mailbox(connection)
    ticket = f"{command}-{monotonic()}"
    replies: dict[str, Any] = {}

    def receive(body: Any, message: Any) -> None:
        if isinstance(body, dict) and message.headers.get("ticket") == ticket:
            replies.update(body)

    with connection.channel() as channel:
        queue = mailbox.get_reply_queue()(channel)
        queue.declare()
        try:
            producer = app.amqp.Producer(channel, auto_declare=False)
            consumer = app.amqp.Consumer(
                channel,
                [queue],
                callbacks=[receive],
                accept=mailbox.accept,
                no_ack=True,
                auto_declare=False,
            )
            with consumer:
                producer.publish(
                    _message(mailbox, command, destination, ticket),
                    exchange=mailbox.exchange,
                    declare=[mailbox.exchange],
                    serializer=mailbox.serializer,
                    headers={"clock": app.clock.forward(), "expires": 0},
                )
                _drain(
                    connection, timeout, lambda: destination and len(replies) >= len(destination)
                )
        finally:
            queue.delete()  # Redis would keep the queue and late replies forever.
    return replies


def _message(
    mailbox: Any, command: str, destination: list[str] | None, ticket: str
) -> dict[str, Any]:
    reply_to = {"exchange": mailbox.reply_exchange.name, "routing_key": mailbox.oid}
    return {
        "method": command,
        "arguments": {},
        "destination": destination,
        "ticket": ticket,
        "reply_to": reply_to,
    }


def _drain(connection: Any, timeout: float, complete: Callable[[], object]) -> None:
    end = monotonic() + timeout
    while not complete() and (remaining := end - monotonic()) > 0:
        try:
            connection.drain_events(timeout=remaining)
        except TimeoutError:
            return


def _has_task(tasks: Any, task: str) -> bool:
    """Return whether the worker has the task.

    Celery may append attributes in brackets to a task's name.
    """
    return isinstance(tasks, list) and any(str(entry).partition(" ")[0] == task for entry in tasks)


def _entries(reply: Any) -> list[dict[str, Any]]:
    """Return the entries of a reply; none if the worker sent an error or no reply."""
    return [entry for entry in reply if isinstance(entry, dict)] if isinstance(reply, list) else []


def _unknown_runs(reply: Any) -> Iterator[UnknownRunReport]:
    for entry in _entries(reply):
        with suppress(KeyError, TypeError, ValueError):  # a reply of another release
            yield UnknownRunReport(UUID(entry["run"]), float(entry["age"]), bool(entry["dropped"]))


def _beat_tasks(reply: Any) -> Iterator[BeatTask]:
    for entry in _entries(reply):
        with suppress(KeyError, TypeError, ValueError):
            yield BeatTask(str(entry["task"]), float(entry["age"]))
