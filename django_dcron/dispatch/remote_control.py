"""Celery's remote control channel, as far as we use it: telling workers that an attempt is revoked, and asking how they are.

The command to revoke is our own, which workers know by ``tasks``. Celery's would have each worker write a result for a task it
never had, or warn that it cannot. Nothing is sent by Celery's ``broadcast``, which tries without end while the broker is away.

Workers are asked in three steps. The first two are Celery's own commands, which every worker knows: an unknown command would
make the workers of other projects log an error with a traceback. The third one goes only to workers with our task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from time import monotonic
from typing import Any
from uuid import UUID

from django_dcron.dispatch.base import UnknownAtWorker, WorkerAnswer

REVOKE = "dcron_revoke"
UNKNOWN_RUNS = "dcron_unknown_runs"

PATIENCE = 2.0
"""Seconds to wait for answers to each question."""


def publish_revoke(producer: Any, app: Any, task_id: str, worker: str) -> None:
    """To all workers; or to ``worker`` (``host/pid``), and the process there that executes it.

    ``producer``: kombu's. ``app``: the Celery app, of which the stubs know too little.
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


def ask_workers(app: Any, connection: Any, task: str, patience: float = PATIENCE) -> list[WorkerAnswer]:
    """Ask all workers for their queues, whether they have ``task``, and which runs they didn't know.

    ``connection``: kombu's, connected. Raises what it raises.
    """
    registered = _ask(app, connection, "registered", None, patience)
    queues = _ask(app, connection, "active_queues", list(registered), patience)
    executing = [name for name, tasks in registered.items() if _has_task(tasks, task)]
    unknown = _ask(app, connection, UNKNOWN_RUNS, executing, patience)
    return [
        WorkerAnswer(
            name,
            tuple(sorted(str(queue.get("name")) for queue in _entries(queues.get(name)))),
            name in executing,
            tuple(_unknown_runs(unknown.get(name))),
        )
        for name in sorted(registered)
    ]


def _ask(
    app: Any, connection: Any, command: str, destination: list[str] | None, patience: float
) -> dict[str, Any]:
    """The answer of each worker that answers; ``destination``: the workers to ask, None: all."""
    if destination == []:
        return {}
    mailbox = app.control.mailbox(connection)
    ticket = f"{command}-{monotonic()}"
    answers: dict[str, Any] = {}

    def receive(body: Any, message: Any) -> None:
        if isinstance(body, dict) and message.headers.get("ticket") == ticket:
            answers.update(body)

    with connection.channel() as channel:
        queue = mailbox.get_reply_queue()(channel)
        queue.declare()
        try:
            producer = app.amqp.Producer(channel, auto_declare=False)
            consumer = app.amqp.Consumer(
                channel, [queue], callbacks=[receive], accept=mailbox.accept, no_ack=True, auto_declare=False
            )
            with consumer:
                producer.publish(
                    {
                        "method": command,
                        "arguments": {},
                        "destination": destination,
                        "ticket": ticket,
                        "reply_to": {"exchange": mailbox.reply_exchange.name, "routing_key": mailbox.oid},
                    },
                    exchange=mailbox.exchange,
                    declare=[mailbox.exchange],
                    serializer=mailbox.serializer,
                    headers={"clock": app.clock.forward(), "expires": 0},
                )
                _drain(connection, patience, lambda: destination and len(answers) >= len(destination))
        finally:
            queue.delete()  # Redis would keep it, and what comes late, for ever
    return answers


def _drain(connection: Any, patience: float, complete: Callable[[], object]) -> None:
    end = monotonic() + patience
    while not complete() and (remaining := end - monotonic()) > 0:
        try:
            connection.drain_events(timeout=remaining)
        except TimeoutError:
            return


def _has_task(tasks: Any, task: str) -> bool:
    """``tasks``: names, some with attributes in brackets behind."""
    return isinstance(tasks, list) and any(str(entry).partition(" ")[0] == task for entry in tasks)


def _entries(answer: Any) -> list[dict[str, Any]]:
    """Those of an answer; none of a worker that answered with an error, or not at all."""
    return [entry for entry in answer if isinstance(entry, dict)] if isinstance(answer, list) else []


def _unknown_runs(answer: Any) -> Iterator[UnknownAtWorker]:
    for entry in _entries(answer):
        with suppress(KeyError, TypeError, ValueError):  # of another release
            yield UnknownAtWorker(UUID(entry["run"]), float(entry["age"]), bool(entry["dropped"]))
