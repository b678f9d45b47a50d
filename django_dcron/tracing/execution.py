"""Tracing of an attempt: its span is current while the job's code executes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Protocol
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
    from opentelemetry.trace import Span, TracerProvider


class AttemptEnding(Protocol):
    """The part of ``runs.completion.Ending`` that a span shows."""

    @property
    def outcome(self) -> object: ...
    @property
    def exception_class(self) -> str: ...
    @property
    def message(self) -> str: ...
    @property
    def traceback(self) -> str: ...


def attempt_span(
    run_id: UUID, attempt: int, rerun_of: UUID | None = None, **attributes: str
) -> AbstractContextManager[Callable[[AttemptEnding], None]]:
    """Return a context manager with the span ``dcron.execute`` of an attempt.

    The context manager yields a function that describes the attempt's ending on the span.
    """
    provider = configured_provider()
    if provider is None:
        return nullcontext(_ignore_end)
    return _executing(provider, run_id, attempt, rerun_of, attributes)


def _ignore_end(ending: AttemptEnding) -> None:
    """Do nothing, because tracing is off."""


@contextmanager
def _executing(
    provider: TracerProvider,
    run_id: UUID,
    attempt: int,
    rerun_of: UUID | None,
    attributes: dict[str, str],
) -> Iterator[Callable[[AttemptEnding], None]]:
    span: Span = trace.INVALID_SPAN
    token = None
    with disable_on_error():
        span = _start_execution(provider, run_id, attempt, rerun_of, attributes)
        token = context.attach(trace.set_span_in_context(span))

    def ended(ending: AttemptEnding) -> None:
        with disable_on_error():
            _describe(span, ending)

    try:
        yield ended
    finally:
        if token is not None:
            context.detach(token)
        with disable_on_error():
            span.end()


def _start_execution(
    provider: TracerProvider,
    run_id: UUID,
    attempt: int,
    rerun_of: UUID | None,
    attributes: dict[str, str],
) -> Span:
    """Start the span.

    If the current span belongs to the run's trace, it becomes the parent. An instrumentation of
    Celery has then continued the trace from the message's headers.
    """
    links = [trace.Link(root_context_of(rerun_of, provider))] if rerun_of else []
    here = trace.get_current_span().get_span_context()
    if here.trace_id == run_id.int:
        parent = None
    else:
        parent = context_within(root_context_of(run_id, provider))
        links += [trace.Link(here)] if here.is_valid else []
    return tracer_of(provider).start_span(
        "dcron.execute",
        parent,
        trace.SpanKind.CONSUMER,
        attempt_attributes(run_id, attempt, **attributes),
        links,
    )


def _describe(span: Span, ending: AttemptEnding) -> None:
    outcome = str(ending.outcome)
    span.set_attribute("dcron.outcome", outcome)
    if ending.exception_class:
        span.add_event(
            "exception",
            {
                "exception.type": ending.exception_class,
                "exception.message": ending.message,
                "exception.stacktrace": ending.traceback,
            },
        )
    if outcome == "succeeded":
        span.set_status(trace.StatusCode.OK)
    elif outcome != "cancelled":  # A cancellation isn't an error.
        span.set_status(trace.StatusCode.ERROR, ending.message or outcome)
