"""Settings of a site that writes its log and its spans as lines of JSON to two files."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from celery import signals
from opentelemetry import context, propagate, trace
from opentelemetry.propagators.textmap import Getter
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from tests.settings import *  # noqa: F403

DIRECTORY = Path(os.environ["DCRON_TEST_OBSERVED"])

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "filters": {"run": {"()": "django_dcron.monitoring.log_context.RunContext"}},
    "formatters": {"json": {"()": "django_dcron.monitoring.log_format.JsonFormatter"}},
    "handlers": {
        "file": {
            "class": "logging.FileHandler",
            "filename": DIRECTORY / "log",
            "filters": ["run"],
            "formatter": "json",
        }
    },
    "root": {"handlers": ["file"], "level": "INFO"},
}
CELERY_WORKER_HIJACK_ROOT_LOGGER = False


class FileExporter(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with (DIRECTORY / "spans").open("a") as file:
            for span in spans:
                file.write(json.dumps(json.loads(span.to_json())) + "\n")
        return SpanExportResult.SUCCESS


provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(FileExporter()))
trace.set_tracer_provider(provider)


class RequestGetter(Getter[Any]):
    """Read the headers of a message as OpenTelemetry's Celery instrumentation does."""

    def get(self, carrier: Any, key: str) -> list[str] | None:
        value = getattr(carrier, key, None)
        return None if value is None else [value]

    def keys(self, carrier: Any) -> list[str]:
        return []


_open: dict[str, Any] = {}


@signals.task_prerun.connect(weak=False)
def begin(task_id: str, task: Any, **kwargs: Any) -> None:
    parent = propagate.extract(task.request, getter=RequestGetter())
    span = trace.get_tracer("celery").start_span(f"run/{task.name}", parent)
    _open[task_id] = span, context.attach(trace.set_span_in_context(span))


@signals.task_postrun.connect(weak=False)
def end(task_id: str, **kwargs: Any) -> None:
    span, token = _open.pop(task_id)
    context.detach(token)
    span.end()
