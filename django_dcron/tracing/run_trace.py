"""The context that is the parent of all spans of a run.

The provider's sampler decides once whether a run is recorded, and the spans inherit the decision.
The sampler gets an evenly distributed hash of the run's id, because the id begins with the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django_dcron.tracing.provider import configured_provider, disable_on_error

with suppress(ImportError):  # OpenTelemetry is an optional extra.
    from opentelemetry import context, propagate, trace

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext, TracerProvider

SPAN_ID_MASK = 2**64 - 1
"""A span's id has 64 bits; the root's is the last half of the run's id."""


def root_context_of(run_id: UUID, provider: TracerProvider) -> SpanContext:
    """Return the parent context of all spans of the run. It is the same in every process."""
    flags = trace.TraceFlags.SAMPLED if _is_sampled(run_id, provider) else trace.TraceFlags.DEFAULT
    return trace.SpanContext(
        run_id.int, run_id.int & SPAN_ID_MASK, is_remote=True, trace_flags=trace.TraceFlags(flags)
    )


def _is_sampled(run_id: UUID, provider: TracerProvider) -> bool:
    # The SDK's provider has a sampler. Other implementations may lack one.
    sampler: Any = getattr(provider, "sampler", None)
    if sampler is None:
        return True
    spread = int.from_bytes(blake2b(run_id.bytes, digest_size=16).digest())
    return bool(sampler.should_sample(None, spread, "dcron.run").decision.is_sampled())


def context_within(origin: SpanContext) -> Any:
    """Return a context in which new spans are children of ``origin``. It contains nothing else."""
    return trace.set_span_in_context(trace.NonRecordingSpan(origin), context.Context())


def headers_for(run_id: UUID) -> dict[str, str]:
    """Return message headers that let the receiver add spans to the run's trace.

    The format is W3C's ``traceparent``, unless the project configures another one.
    """
    headers: dict[str, str] = {}
    if provider := configured_provider():
        with disable_on_error():
            propagate.inject(headers, context_within(root_context_of(run_id, provider)))
    return headers


def sending_context(run_id: UUID) -> AbstractContextManager[object]:
    """Return a context manager for sending one message.

    Spans of a Celery instrumentation become part of the run's trace.
    """
    provider = configured_provider()
    return nullcontext() if provider is None else _attach_trace(run_id, provider)


@contextmanager
def _attach_trace(run_id: UUID, provider: TracerProvider) -> Iterator[None]:
    token = None
    with disable_on_error():
        token = context.attach(context_within(root_context_of(run_id, provider)))
    try:
        yield
    finally:
        if token is not None:
            context.detach(token)


def attempt_attributes(run_id: UUID, attempt: int, **more: str) -> dict[str, str | int]:
    """Return the attributes of a span about an attempt. Empty values are left out."""
    extra = {f"dcron.{key}": value for key, value in more.items() if value}
    return {"dcron.run": str(run_id), "dcron.attempt": attempt, **extra}
