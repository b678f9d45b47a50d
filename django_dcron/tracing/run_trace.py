"""The context that all spans of a run descend from.

Whether a run is recorded is asked of the provider's sampler once, by a number made of the run's id that is spread evenly (the id
itself is not: it begins with the time); the spans inherit it from their parent.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django_dcron.tracing.provider import configured, harmless

with suppress(ImportError):  # the extra
    from opentelemetry import context, propagate, trace

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext, TracerProvider

SPAN_ID = 2**64 - 1


def origin_of(run_id: UUID, provider: TracerProvider) -> SpanContext:
    """What all spans of the run descend from, the same wherever it is asked for."""
    flags = trace.TraceFlags.SAMPLED if _is_sampled(run_id, provider) else trace.TraceFlags.DEFAULT
    return trace.SpanContext(
        run_id.int, run_id.int & SPAN_ID, is_remote=True, trace_flags=trace.TraceFlags(flags)
    )


def _is_sampled(run_id: UUID, provider: TracerProvider) -> bool:
    sampler: Any = getattr(
        provider, "sampler", None
    )  # the SDK's; what stands before another backend may have none
    if sampler is None:
        return True
    spread = int.from_bytes(blake2b(run_id.bytes, digest_size=16).digest())
    return bool(sampler.should_sample(None, spread, "dcron.run").decision.is_sampled())


def within(origin: SpanContext) -> Any:
    """A context in which new spans are children of ``origin``, and nothing else is."""
    return trace.set_span_in_context(trace.NonRecordingSpan(origin), context.Context())


def headers_for(run_id: UUID) -> dict[str, str]:
    """What a message carries so that whoever receives it adds to the run's trace: W3C's ``traceparent``, or as configured."""
    headers: dict[str, str] = {}
    if provider := configured():
        with harmless():
            propagate.inject(headers, within(origin_of(run_id, provider)))
    return headers


def sending(run_id: UUID) -> AbstractContextManager[object]:
    """Around sending one message: what an instrumentation of Celery records is part of the run's trace."""
    provider = configured()
    return nullcontext() if provider is None else _attached(run_id, provider)


@contextmanager
def _attached(run_id: UUID, provider: TracerProvider) -> Iterator[None]:
    token = None
    with harmless():
        token = context.attach(within(origin_of(run_id, provider)))
    try:
        yield
    finally:
        if token is not None:
            context.detach(token)


def about_attempt(run_id: UUID, attempt: int, **more: str) -> dict[str, str | int]:
    said = {f"dcron.{key}": value for key, value in more.items() if value}
    return {"dcron.run": str(run_id), "dcron.attempt": attempt, **said}
