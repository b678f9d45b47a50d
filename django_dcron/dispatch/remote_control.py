"""Celery's remote control channel, as far as we use it: telling workers that an attempt is revoked.

The command is our own, which workers know by ``tasks``. Celery's would have each worker write a result for a task it never
had, or warn that it cannot. Nor is it sent by Celery's ``broadcast``, which tries without end while the broker is away.
"""

from __future__ import annotations

from typing import Any

REVOKE = "dcron_revoke"


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
