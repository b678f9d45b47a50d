"""A logging filter that adds the node and the current run to each record.

Invariants:

- Records of a job's own code, and of the libraries that it calls, contain its job, run and attempt.
- The filter never overwrites an attribute of a record.
- On a handler, the filter sees the records of all loggers. On a logger, it sees only that logger's.
- The module doesn't import Django, because logging is configured before the apps are loaded.
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
"""The name of this process's node. All threads of a ``runcron`` process belong to one node."""


@contextmanager
def as_node(name: str) -> Iterator[None]:
    """Attribute all records logged within this context, by any thread, to the node."""
    global _node
    before, _node = _node, name
    try:
        yield
    finally:
        _node = before


class RunContext(logging.Filter):
    """Adds the context. Configure it for each handler in ``LOGGING["filters"]``.

    The entry is ``{"()": "django_dcron.monitoring.log_context.RunContext"}``.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        about = record.__dict__
        if _node is not None:
            about.setdefault("node", _node)
        _add_run(about)
        if "trace_id" not in about and (trace_id := _trace_id(about.get("run"))):
            about["trace_id"] = trace_id
        return True


def _add_run(about: dict[str, object]) -> None:
    # A process that hasn't imported the module executes no run.
    execution = sys.modules.get("django_dcron.execution.current")
    active_run: Callable[[], CurrentRun | None] | None = getattr(execution, "active_run", None)
    run = active_run() if active_run else None
    if run is None or about.setdefault("run", str(run.id)) != str(run.id):
        return  # the record belongs to another run
    about.setdefault("job", str(run.job))
    about.setdefault("attempt", run.attempt)
    about.setdefault("worker", run.worker)


def _trace_id(run: object) -> str | None:
    """Return the id of the run's trace, or None if the project uses ``run`` for another value."""
    try:
        return UUID(run).hex if isinstance(run, str) else None
    except ValueError:
        return None
