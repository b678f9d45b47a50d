"""A logging filter that adds to each record what it was logged for: the node, and the run whose code logs.

So the lines a job's own code writes, and those of the libraries it calls, carry its job, run and attempt, without its doing.
What a record says by itself is left as it is. On a handler it sees the records of all loggers; on a logger only its own.

Needs no Django: logging is configured before the apps are loaded, and something may be logged while they are.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from django_dcron.execution.current import CurrentRun

_node: str | None = None
"""Of this process: a ``runcron`` is one node, whichever of its threads logs."""


@contextmanager
def as_node(name: str) -> Iterator[None]:
    """What is logged inside, by any thread, is this node's."""
    global _node
    before, _node = _node, name
    try:
        yield
    finally:
        _node = before


class RunContext(logging.Filter):
    """``{"()": "django_dcron.observability.log_context.RunContext"}`` in ``LOGGING["filters"]``, for each handler."""

    def filter(self, record: logging.LogRecord) -> bool:
        about = record.__dict__
        if _node is not None:
            about.setdefault("node", _node)
        _add_run(about)
        if "trace_id" not in about and (trace_id := _trace_id(about.get("run"))):
            about["trace_id"] = trace_id
        return True


def _add_run(about: dict[str, object]) -> None:
    execution = sys.modules.get(
        "django_dcron.execution.current"
    )  # where that is not imported, no run is executed
    current_run: Callable[[], CurrentRun | None] | None = getattr(execution, "current_run", None)
    run = current_run() if current_run else None
    if run is None or about.setdefault("run", str(run.id)) != str(run.id):
        return  # it says that it is about another
    about.setdefault("job", str(run.job))
    about.setdefault("attempt", run.attempt)
    about.setdefault("worker", run.worker)


def _trace_id(run: object) -> str | None:
    """That of the run's trace; None if ``run`` is something else of the project's."""
    try:
        return UUID(run).hex if isinstance(run, str) else None
    except ValueError:
        return None
