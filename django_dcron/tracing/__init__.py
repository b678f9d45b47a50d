"""Tracing: a run is one trace, from its claim through each hand-over to each attempt. With the extra ``otel`` alone.

The trace's id is the run's own (a UUID has the 128 bits of one), and all its spans are children of one context that is made of
that id, too. So nothing has to be stored or passed on: whoever knows the run, a node, a worker or its successor after a crash, adds
to the same trace. Nobody ever records that first context as a span of its own.

It is on by itself once the project has configured a tracer provider. Before that, and without OpenTelemetry, each of the
hooks here costs about a microsecond. Of claims and hand-overs the spans are made when there is time for them. A provider that raises,
or cannot be loaded, costs its traces and one line in the log, never a run.

provider    the project's, and what is done when it raises
run_trace   the context that all spans of a run descend from
noted       claims and hand-overs, recorded when they are done
execution   an attempt, recorded while it lasts
"""

from django_dcron.tracing.execution import executing
from django_dcron.tracing.noted import claiming, handed_over, publishing, record_noted
from django_dcron.tracing.run_trace import headers_for, sending

__all__ = ["claiming", "executing", "handed_over", "headers_for", "publishing", "record_noted", "sending"]
