"""Tracing of claims and dispatches: due runs don't wait, because spans are created later."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, Protocol, TypeVar
from uuid import UUID

from django_dcron.tracing.provider import configured, harmless, tracer_of
from django_dcron.tracing.run_trace import about_attempt, origin_of, within

with suppress(ImportError):  # OpenTelemetry is an optional extra.
    from opentelemetry import context, trace

if TYPE_CHECKING:
    from opentelemetry.trace import Link, SpanKind, TracerProvider

LINKS = 128
"""The maximum number of links that a span of the SDK keeps."""
NOTED = 1000
"""The maximum number of batches that wait to be recorded. The oldest ones are dropped."""


class Traceable(Protocol):
    """The type of ``dispatch.base.DueRun``."""

    @property
    def run_id(self) -> UUID: ...
    @property
    def attempt(self) -> int: ...
    @property
    def job_name(self) -> str: ...
    @property
    def target(self) -> str: ...
    @property
    def queue(self) -> str: ...


class _Batch(NamedTuple):
    record: Callable[[TracerProvider, _Batch], None]
    began: int
    ended: int
    """Nanoseconds of ``time.time_ns()``."""
    runs: Sequence[Traceable]


_noted: deque[_Batch] = deque(maxlen=NOTED)

P = ParamSpec("P")
R = TypeVar("R")


def claiming(claim: Callable[P, R]) -> Callable[P, R]:
    """Trace a function that returns an object with claimed ``runs``.

    Each run's trace gets the span ``dcron.claim``. It links to ``dcron.claims``, which covers the
    whole batch and has its own trace.
    """
    return _noting(claim, lambda claimed: claimed.runs, _record_claim)


def publishing(publish: Callable[P, R]) -> Callable[P, R]:
    """Trace a function that returns an object with dispatched agenda entries in ``taken``.

    Each run's trace gets the span ``dcron.dispatch``.
    """
    return _noting(publish, lambda outcome: [entry[2] for entry in outcome.taken], _record_publish)


def _noting(
    work: Callable[P, R],
    runs_of: Callable[[Any], Sequence[Traceable]],
    record: Callable[[TracerProvider, _Batch], None],
) -> Callable[P, R]:
    """Queue the batches for ``record_noted``.

    Creating spans may take longer than the work itself, or block.
    """

    @wraps(work)
    def traced(*args: P.args, **kwargs: P.kwargs) -> R:
        if configured() is None:
            return work(*args, **kwargs)
        began = time.time_ns()
        done = work(*args, **kwargs)
        if runs := runs_of(done):
            _noted.append(_Batch(record, began, time.time_ns(), runs))
        return done

    return traced


def record_noted() -> None:
    """Create the spans of the queued batches. Called when nothing else waits."""
    while _noted:
        with suppress(IndexError):  # A draining thread may have been faster.
            batch = _noted.popleft()
            if provider := configured():
                with harmless():
                    batch.record(provider, batch)


def _record_claim(provider: TracerProvider, batch: _Batch) -> None:
    links = [trace.Link(origin_of(run.run_id, provider)) for run in batch.runs[:LINKS]]
    about = {"dcron.runs": len(batch.runs)}
    claims = tracer_of(provider).start_span(
        "dcron.claims", context.Context(), attributes=about, links=links, start_time=batch.began
    )
    claims.end(batch.ended)
    _record(
        provider,
        "dcron.claim",
        trace.SpanKind.INTERNAL,
        batch,
        [trace.Link(claims.get_span_context())],
    )


def _record_publish(provider: TracerProvider, batch: _Batch) -> None:
    """Record a dispatch and link it to the current span, for example of a web request."""
    here = trace.get_current_span().get_span_context()
    links = [trace.Link(here)] if here.is_valid else []
    _record(provider, "dcron.dispatch", trace.SpanKind.PRODUCER, batch, links)


def dispatched(runs: Sequence[Traceable], began: int, ended: int) -> None:
    """Record the dispatch of runs that are on no agenda.

    ``began`` and ``ended`` are nanoseconds of ``time.time_ns()``.
    """
    if provider := configured():
        with harmless():
            _record_publish(provider, _Batch(_record_publish, began, ended, runs))


def _record(
    provider: TracerProvider, name: str, kind: SpanKind, batch: _Batch, links: list[Link]
) -> None:
    tracer = tracer_of(provider)
    for run in batch.runs:
        origin = origin_of(run.run_id, provider)
        if origin.trace_flags.sampled:
            about = about_attempt(
                run.run_id, run.attempt, job=run.job_name, target=run.target, queue=run.queue
            )
            tracer.start_span(name, within(origin), kind, about, links, batch.began).end(
                batch.ended
            )
