"""Tracing: each run is one trace, with spans for its claim, dispatches and attempts.

Requires the extra ``otel``. The modules:

- ``provider``: the project's tracer provider, and the handling of its errors.
- ``run_trace``: the context that is the parent of all spans of a run.
- ``deferred_spans``: spans of claims and dispatches, recorded afterwards.
- ``execution``: the span of an attempt, recorded while it executes.

Invariants:

- The trace id is the run's id: both have 128 bits. All spans of a run have the same parent context,
  which is derived from the id.
- Nothing has to be stored or passed on. Every process that knows the run adds to the same trace,
  even if another process has crashed.
- The parent context itself is never recorded as a span.
- Tracing is on once the project has configured a tracer provider. Before that, or without
  OpenTelemetry, each hook costs about a microsecond.
- Spans of claims and dispatches are created later, when the thread has time.
- If a provider raises or can't be loaded, its traces are lost and one line is logged. No run is
  affected.
"""

from django_dcron.tracing.deferred_spans import (
    record_dispatch,
    record_queued_spans,
    trace_claim,
    trace_dispatch,
)
from django_dcron.tracing.execution import attempt_span
from django_dcron.tracing.run_trace import headers_for, sending_context

__all__ = [
    "attempt_span",
    "headers_for",
    "record_dispatch",
    "record_queued_spans",
    "sending_context",
    "trace_claim",
    "trace_dispatch",
]
