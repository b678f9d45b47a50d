"""The Celery message of a run: one task for all runs, with the run and its attempt as arguments."""

from __future__ import annotations

from datetime import timedelta
from math import ceil
from typing import Any, NamedTuple
from uuid import UUID

from celery import Celery
from celery.app.amqp import AMQP, task_message
from kombu.serialization import dumps

from django_dcron import tracing
from django_dcron.conf import settings
from django_dcron.dispatch.base import DueRun

TASK = "django_dcron.execute"
NODE_HEADER = "dcron_node"
"""The header with the id of the node that published the message. Workers look it up in their
database.
"""
BACKSTOP = timedelta(hours=1)
"""The time from the end of ``DCRON_HARD_TIMEOUT_AFTER`` until Celery kills a run.

Celery's clock starts when the message is accepted and runs while a worker waits for the database,
so the time is long. Only code that never releases the interpreter runs that long.
"""


class MessageContent(NamedTuple):
    message: task_message
    body: tuple[str, str, bytes | str]
    """Content type, content encoding and serialized body."""


def task_id_of(run_id: UUID, attempt: int) -> str:
    return f"{run_id}.{attempt}"


def builds_like_celery(app: Celery) -> bool:
    """Return whether Celery's own code builds messages, not an instrumentation or a project."""
    amqp: Any = app.amqp
    function = getattr(amqp.as_task_v2, "__func__", None)
    return function is AMQP.as_task_v2 and function.__globals__["__name__"] == "celery.app.amqp"


def build_message(app: Celery, run: DueRun, node: str, serializer: str) -> MessageContent:
    """Return the message of ``run``. ``node``: the id of the publishing node, or empty."""
    limit = _hard_limit(run)
    content = _build(
        app,
        serializer,
        task_id_of(run.run_id, run.attempt),
        (str(run.run_id), run.attempt),
        shadow=run.job_name,
        time_limit=limit,
        soft_time_limit=limit,
    )
    message = content.message
    message.headers.update({"dcron_job": run.job_name}, **tracing.headers_for(run.run_id))
    if node:
        message.headers[NODE_HEADER] = node
    return content


def rebuild_message(
    app: Celery, request: Any, headers: dict[str, Any], serializer: str
) -> MessageContent:
    """Return a message that a worker received, with these headers besides Celery's own.

    ``request``: Celery's context of the task.
    """
    time_limit, soft_time_limit = request.timelimit or (None, None)
    content = _build(
        app,
        serializer,
        request.id,
        request.args,
        shadow=request.shadow,
        time_limit=time_limit,
        soft_time_limit=soft_time_limit,
    )
    content.message.headers.update(headers)
    return content


def _build(app: Celery, serializer: str, task_id: str, args: Any, **options: Any) -> MessageContent:
    message = app.amqp.as_task_v2(
        task_id,
        TASK,
        args,
        argsrepr=repr(tuple(args)),
        kwargsrepr="{}",
        ignore_result=True,
        **options,
    )
    return MessageContent(message, dumps(message.body, serializer))


def _hard_limit(run: DueRun) -> int | None:
    """Return the seconds after which Celery stops and kills the run. None: the worker's limits.

    django-dcron enforces the timeout itself, in any pool. Celery's soft limit is set too, so that
    a shorter one of the worker doesn't apply.
    """
    if run.timeout is None:
        return None
    return ceil((run.timeout + settings.HARD_TIMEOUT_AFTER + BACKSTOP).total_seconds())
