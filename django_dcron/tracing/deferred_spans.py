"""Spans of claims and dispatches. Nodes record them later, so that tracing delays no due run."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, Protocol, TypeVar
from uuid import UUID

from django_dcron.tracing.provider import configured_provider, disable_on_error, tracer_of
from django_dcron.tracing.run_trace import (
    attempt_attributes,
    context_within,
    root_context_of,
)

with suppress(ImportError):  # OpenTelemetry is an optional extra.
    from opentelemetry import context, trace

if TYPE_CHECKING:
    from opentelemetry.trace import Link, SpanKind, TracerProvider

MAX_LINKS = 128
"""By default, OpenTelemetry's SDK keeps at most this many links per span."""
MAX_QUEUED_BATCHES = 1000
"""The maximum number of queued batches. If the queue is full, the oldest batch is dropped."""


class TraceableRun(Protocol):
    """The attributes of ``dispatch.base.DueRun`` that a span records."""

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


class RunBatch(Protocol):
    """The result of a traced function."""

    @property
    def runs(self) -> Sequence[TraceableRun]: ...


class _Batch(NamedTuple):
    """Runs that were claimed or dispatched together.

    ``start_time`` and ``end_time`` are in nanoseconds (``time.time_ns``).
    """

    record: Callable[[TracerProvider, _Batch], None]
    start_time: int
    end_time: int
    runs: Sequence[TraceableRun]


_queue: deque[_Batch] = deque(maxlen=MAX_QUEUED_BATCHES)

P = ParamSpec("P")
R = TypeVar("R", bound=RunBatch)


def trace_claim(claim: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that claims a batch and returns an object with its ``runs``.

    Each run's trace gets a span ``dcron.claim``, which links to the span ``dcron.claims`` of the
    whole batch. That span has its own trace.
    """
    return _defer_spans(claim, _record_claim)


def trace_dispatch(publish: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that dispatches a batch and returns an object with its ``runs``.

    Each run's trace gets a span ``dcron.dispatch``.
    """
    return _defer_spans(publish, _record_dispatch)


def _defer_spans(
    work: Callable[P, R], record: Callable[[TracerProvider, _Batch], None]
) -> Callable[P, R]:
    """Wrap ``work`` so that its batches are queued for ``record_queued_spans``.

    Spans are created later, because that may block or take longer than the work itself.
    """

    @wraps(work)
    def traced(*args: P.args, **kwargs: P.kwargs) -> R:
        if configured_provider() is None:
            return work(*args, **kwargs)
        start_time = time.time_ns()
        result = work(*args, **kwargs)
        if result.runs:
            _queue.append(_Batch(record, start_time, time.time_ns(), result.runs))
        return result

    return traced


def record_queued_spans() -> None:
    """Create the spans of the queued batches. Nodes call it after the urgent work of a tick."""
    while _queue:
        with suppress(IndexError):  # Another thread may have emptied the queue.
            batch = _queue.popleft()
            if provider := configured_provider():
                with disable_on_error():
                    batch.record(provider, batch)


def _record_claim(provider: TracerProvider, batch: _Batch) -> None:
    links = [trace.Link(root_context_of(run.run_id, provider)) for run in batch.runs[:MAX_LINKS]]
    attributes = {"dcron.runs": len(batch.runs)}
    claims = tracer_of(provider).start_span(
        "dcron.claims",
        context.Context(),
        attributes=attributes,
        links=links,
        start_time=batch.start_time,
    )
    claims.end(batch.end_time)
    _record(
        provider,
        "dcron.claim",
        trace.SpanKind.INTERNAL,
        batch,
        [trace.Link(claims.get_span_context())],
    )


def _record_dispatch(provider: TracerProvider, batch: _Batch) -> None:
    """Record the spans of a dispatch, linked to the current span, such as that of a web request."""
    current = trace.get_current_span().get_span_context()
    links = [trace.Link(current)] if current.is_valid else []
    _record(provider, "dcron.dispatch", trace.SpanKind.PRODUCER, batch, links)


def record_dispatch(runs: Sequence[TraceableRun], start_time: int, end_time: int) -> None:
    """Record the spans of a dispatch that bypassed the agenda.

    ``start_time`` and ``end_time`` are in nanoseconds (``time.time_ns``).
    """
    if provider := configured_provider():
        with disable_on_error():
            _record_dispatch(provider, _Batch(_record_dispatch, start_time, end_time, runs))


def _record(
    provider: TracerProvider, name: str, kind: SpanKind, batch: _Batch, links: list[Link]
) -> None:
    tracer = tracer_of(provider)
    for run in batch.runs:
        origin = root_context_of(run.run_id, provider)
        if origin.trace_flags.sampled:
            attributes = attempt_attributes(
                run.run_id, run.attempt, job=run.job_name, target=run.target, queue=run.queue
            )
            tracer.start_span(
                name, context_within(origin), kind, attributes, links, batch.start_time
            ).end(batch.end_time)
