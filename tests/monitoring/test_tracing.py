"""Test traces: one per run, from its claim through the agenda to each attempt."""

import logging
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBasedTraceIdRatio, Sampler

from django_dcron import control, tracing
from django_dcron.conf import settings as dcron
from django_dcron.db.now import database_now
from django_dcron.dispatch.base import DueRun
from django_dcron.execution.executor import execute
from django_dcron.models import Attempt, Run
from django_dcron.models.run import new_run_id
from django_dcron.runs import deliveries
from django_dcron.scheduler.adoption import adopt
from django_dcron.scheduler.agenda import Agenda
from django_dcron.scheduler.claim import claim
from django_dcron.tracing import deferred_spans, execution, provider, run_trace
from tests.execution.conftest import MakeTarget, make_target
from tests.factories import make_idle_job, make_job, make_run
from tests.scheduler.stand_ins import MemoryDispatcher, StillClock, due_run
from tests.scheduler.test_tick import NodeUnderTest
from tests.waiting import wait_until

__all__ = ["make_target"]

pytestmark = pytest.mark.django_db(transaction=True)

Spans = InMemorySpanExporter
SHARDS = range(dcron.SHARDS)


def configure(
    monkeypatch: pytest.MonkeyPatch, sampler: Sampler | None = None
) -> tuple[TracerProvider, Spans]:
    """Configure tracing as a project does at its start. The test's teardown undoes it."""
    configured, exporter = TracerProvider(sampler=sampler), InMemorySpanExporter()
    configured.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", configured)
    monkeypatch.setattr(provider, "_given_up", False)
    return configured, exporter


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    return configure(monkeypatch)[1]


def spans_of(spans: Spans, run_id: UUID) -> list[ReadableSpan]:
    """Return the spans of the run in the order of their start."""
    found = [
        span
        for span in spans.get_finished_spans()
        if span.context and span.context.trace_id == run_id.int
    ]
    return sorted(found, key=lambda span: span.start_time or 0)


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the events of the tracing logger."""
    return [
        record.__dict__["event"]
        for record in caplog.records
        if record.name == "django_dcron.tracing"
    ]


class Pipeline:
    """Runs the claim, the agenda and the worker manually, one after the other."""

    def __init__(self) -> None:
        self.now = database_now("default")
        self.dispatcher = MemoryDispatcher()
        self.agenda = Agenda(self.dispatcher, StillClock(self.now + timedelta(hours=2)))

    def claim(self) -> list[DueRun]:
        claimed = claim(SHARDS, self.now, node="a").runs
        tracing.record_queued_spans()
        return claimed

    def publish(self, runs: list[DueRun], node: str) -> None:
        assert self.agenda.add(runs) == []
        self.agenda.publish_due()
        delivered = self.agenda.take_dispatched()
        deliveries.mark_queued((run.key for run in delivered), self.now, node=node)
        self.agenda.forget(delivered)
        tracing.record_queued_spans()

    def adopt(self, node: str) -> list[DueRun]:
        return adopt(SHARDS, self.now + timedelta(hours=1), node=node)


# --- one trace ------------------------------------------------------------------------------------


def test_run_has_one_trace_from_claim_through_retry(spans: Spans, make_target: MakeTarget) -> None:
    calls = Counter[str]()

    def flaky() -> None:
        calls["flaky"] += 1
        with trace.get_tracer("shop").start_as_current_span("shop.work"):
            if calls["flaky"] == 1:
                raise ValueError("not yet")

    job = make_job(
        target=make_target(flaky), max_attempts=2, queue="q", retry_backoff=timedelta(seconds=1)
    )
    pipeline = Pipeline()
    run = pipeline.claim()[0]
    pipeline.publish([run], "a")
    assert execute(run.run_id, 1, worker="w-1")
    adopted: list[DueRun] = []

    def adopts() -> bool:
        """A node skips a run while another session locks it."""
        adopted.extend(due for due in pipeline.adopt("b") if due.run_id == run.run_id)
        return bool(adopted)

    wait_until(adopts)
    pipeline.publish(adopted, "b")
    assert execute(run.run_id, 2, worker="w-2")
    assert Run.objects.get(pk=run.run_id).state == "succeeded"

    traced = spans_of(spans, run.run_id)
    assert [(span.name, attributes_of(span).get("dcron.attempt")) for span in traced] == [
        ("dcron.claim", 1),
        ("dcron.dispatch", 1),
        ("dcron.execute", 1),
        ("shop.work", None),
        ("dcron.dispatch", 2),
        ("dcron.execute", 2),
        ("shop.work", None),
    ]
    first, second = (span for span in traced if span.name == "dcron.execute")
    spans = [span for span in traced if span.name.startswith("dcron.")]
    parents = {span.parent.span_id for span in spans if span.parent}
    assert len(parents) == 1, "all spans have the same parent"
    assert {span.parent.span_id for span in traced if span.parent and span.name == "shop.work"} == {
        first.context.span_id,
        second.context.span_id,
    }, "spans of the job's code descend from its attempt"
    about = {
        "dcron.run": str(run.run_id),
        "dcron.job": str(job),
        "dcron.target": job.target,
        "dcron.queue": "q",
    }
    assert attributes_of(first) == about | {
        "dcron.attempt": 1,
        "dcron.worker": "w-1",
        "dcron.outcome": "failed",
    }
    assert attributes_of(second) == about | {
        "dcron.attempt": 2,
        "dcron.worker": "w-2",
        "dcron.outcome": "succeeded",
    }
    assert attributes_of(spans[1]) == about | {"dcron.attempt": 1}
    assert (first.status.status_code.name, first.status.description) == ("ERROR", "not yet")
    assert second.status.status_code.name == "OK"
    (event,) = first.events
    assert (event.name, dict(event.attributes or {})["exception.type"]) == (
        "exception",
        "ValueError",
    )
    assert "in flaky" in str(dict(event.attributes or {})["exception.stacktrace"])


def test_claim_span_is_linked_to_all_its_runs(spans: Spans) -> None:
    for _ in range(3):
        make_job()
    pipeline = Pipeline()
    claimed = pipeline.claim()
    (batch,) = (span for span in spans.get_finished_spans() if span.name == "dcron.claims")
    assert attributes_of(batch) == {"dcron.runs": len(claimed)}
    assert {link.context.trace_id for link in batch.links} == {run.run_id.int for run in claimed}
    for run in claimed:
        (own,) = spans_of(spans, run.run_id)
        assert [link.context for link in own.links] == [batch.context]
    assert pipeline.claim() == []
    assert len(spans.get_finished_spans()) == len(claimed) + 1, "an empty claim has no span"


def test_manual_run_is_linked_to_current_span(
    spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher = MemoryDispatcher()
    monkeypatch.setattr("django_dcron.dispatch.best_effort.shared_dispatcher", lambda: dispatcher)
    with trace.get_tracer("web").start_as_current_span("POST /invoices") as request:
        run = control.trigger(make_idle_job())
    assert [handed.run_id for handed in dispatcher.dispatched] == [run.pk]
    (dispatched,) = spans_of(spans, run.pk)
    assert (dispatched.name, [link.context for link in dispatched.links]) == (
        "dcron.dispatch",
        [request.get_span_context()],
    )


def test_rerun_has_own_trace_linked_to_first_run(
    spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_dcron.dispatch.best_effort.shared_dispatcher", lambda: None)
    first = make_run(make_idle_job())
    assert execute(first.pk, 1, worker="w")
    again = control.rerun(Run.objects.get(pk=first.pk))
    assert execute(again.pk, 1, worker="w")
    (span,) = spans_of(spans, again.pk)
    assert [link.context.trace_id for link in span.links] == [first.pk.int]


@pytest.mark.parametrize(
    ("outcome", "status"), [("cancelled", "UNSET"), ("timed_out", "ERROR"), ("lost", "ERROR")]
)
def test_span_status_reflects_outcome_of_attempt(spans: Spans, outcome: str, status: str) -> None:
    class Ending:
        exception_class = message = traceback = ""

    Ending.outcome = outcome  # type: ignore[attr-defined]
    run_id = new_run_id()
    with tracing.attempt_span(run_id, 1) as ended:
        ended(Ending())  # type: ignore[arg-type]
    (span,) = spans_of(spans, run_id)
    assert (attributes_of(span)["dcron.outcome"], span.status.status_code.name) == (outcome, status)


def test_attempt_span_is_child_of_span_of_instrumented_celery(spans: Spans) -> None:
    """An instrumented Celery reads the run's trace from the message's headers."""
    run_id = new_run_id()
    headers = tracing.headers_for(run_id)
    assert headers == {"traceparent": f"00-{run_id.hex}-{run_id.hex[16:]}-01"}
    tracer = trace.get_tracer("celery")
    parent = propagate.extract(headers)
    with tracer.start_as_current_span("run/x", parent) as outer, tracing.attempt_span(run_id, 1):
        pass
    inner = spans_of(spans, run_id)[1]
    assert inner.parent == outer.get_span_context()
    with tracer.start_as_current_span("of another trace") as other, tracing.attempt_span(run_id, 2):
        pass
    apart = spans_of(spans, run_id)[-1]
    assert apart.parent
    assert apart.parent.span_id == run_id.int & 2**64 - 1
    assert [link.context for link in apart.links] == [other.get_span_context()]


def test_sending_sets_trace_of_run_as_current(spans: Spans) -> None:
    run_id = new_run_id()
    with tracing.sending_context(run_id):
        assert trace.get_current_span().get_span_context().trace_id == run_id.int
    assert not trace.get_current_span().get_span_context().is_valid


# --- sampling -------------------------------------------------------------------------------------


def test_sampler_records_all_or_no_spans_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK's ratio uses the lower half of a trace id.

    In a UUID, the first bits of that half are constant.
    """
    _, spans = configure(monkeypatch, ParentBasedTraceIdRatio(0.25))
    runs = [due_run(f"{number}", run_id=new_run_id()) for number in range(1000)]
    tracing.record_dispatch(runs, 1, 2)
    for run in runs:
        with tracing.attempt_span(run.run_id, 1):
            pass
    names = {run.run_id: [span.name for span in spans_of(spans, run.run_id)] for run in runs[:200]}
    assert {tuple(sorted(found)) for found in names.values()} == {
        (),
        ("dcron.dispatch", "dcron.execute"),
    }
    sampled = {span.context.trace_id for span in spans.get_finished_spans() if span.context}
    assert 150 < len(sampled) < 350
    flags = {run.run_id.int: tracing.headers_for(run.run_id)["traceparent"][-2:] for run in runs}
    assert {trace_id for trace_id, flag in flags.items() if flag == "01"} == sampled


def test_always_off_sampler_records_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    _, spans = configure(monkeypatch, ALWAYS_OFF)
    make_job()
    pipeline = Pipeline()
    (run, *_) = pipeline.claim()
    pipeline.publish([run], "a")
    assert execute(run.run_id, 1, worker="w")
    assert spans.get_finished_spans() == ()


# --- disabled and broken --------------------------------------------------------------------------


@pytest.fixture
def unconfigured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)


@pytest.mark.usefixtures("unconfigured")
@pytest.mark.parametrize("installed", [True, False])
def test_tracing_is_off_without_provider_or_extra(
    monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    monkeypatch.setattr(provider, "installed", installed)
    if not installed:
        for module in (provider, run_trace, deferred_spans, execution):
            for name in ("trace", "context", "propagate"):
                monkeypatch.delattr(module, name, raising=False)
    make_job()
    pipeline = Pipeline()
    run = pipeline.claim()[0]
    pipeline.publish([run], "a")
    assert execute(run.run_id, 1, worker="w")
    assert Attempt.objects.get(run_id=run.run_id).outcome == "succeeded"
    assert tracing.headers_for(run.run_id) == {}
    with tracing.sending_context(run.run_id):
        pass


def test_package_can_be_imported_without_extra() -> None:
    code = (
        "import sys\n"
        "sys.modules['opentelemetry'] = None\n"
        "import django; django.setup()\n"
        "from django_dcron.tracing import provider\n"
        "import django_dcron.scheduler.runner\n"
        "import django_dcron.execution.executor, django_dcron.dispatch.celery\n"
        "assert not provider.installed\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.usefixtures("unconfigured")
def test_provider_that_cannot_be_loaded_is_ignored(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The environment names a provider without its package, so OpenTelemetry raises each time."""
    monkeypatch.setenv("OTEL_PYTHON_TRACER_PROVIDER", "of_a_package_that_is_missing")
    monkeypatch.setattr(provider, "_given_up", False)
    make_job()
    pipeline = Pipeline()
    run = pipeline.claim()[0]
    pipeline.publish([run], "a")
    assert execute(run.run_id, 1, worker="w")
    assert Run.objects.get(pk=run.run_id).state == "succeeded"
    assert failures(caplog) == ["tracing_failed"]


class SpanObserver(SpanProcessor):
    """Records the result of ``measure`` when a span of this name ends."""

    def __init__(self, name: str, measure: Callable[[], int]):
        self.name = name
        self.measure = measure
        self.seen: list[int] = []

    def on_end(self, span: ReadableSpan) -> None:
        if span.name == self.name:
            self.seen.append(self.measure())


def test_spans_are_recorded_after_claim_and_dispatch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor may block on a collector that hangs.

    By then, the claimed runs are on the agenda and the dispatched runs are marked.
    """
    configured, _ = configure(monkeypatch)
    node = NodeUnderTest()
    claims = SpanObserver("dcron.claim", lambda: len(node.agenda))
    dispatches = SpanObserver("dcron.dispatch", lambda: Run.objects.filter(state="queued").count())
    for each in (claims, dispatches):
        configured.add_span_processor(each)
    make_job()
    node.ticker.tick()
    waiting = len(node.agenda)
    assert claims.seen == [waiting] * waiting
    node.clock.advance(3600)
    node.agenda.publish_due()
    node.ticker.mark_dispatched()
    node.ticker.close()
    assert dispatches.seen == [waiting] * waiting


def test_only_dispatched_runs_get_spans(spans: Spans) -> None:
    pipeline = Pipeline()
    pipeline.dispatcher.room["full"] = 0
    pipeline.agenda.add([due_run("a", run_id=new_run_id(), target="full")])
    pipeline.agenda.publish_due()
    assert pipeline.dispatcher.batches
    assert not deferred_spans._queue, "nothing was dispatched"


class FailingProcessor(SpanProcessor):
    def __init__(self, when: str):
        self.when = when

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if self.when == "start":
            raise ZeroDivisionError("a processor's own mistake")

    def on_end(self, span: Any) -> None:
        if self.when == "end":
            raise ZeroDivisionError("a processor's own mistake")


@pytest.mark.parametrize("when", ["start", "end", "sample"])
def test_failing_provider_loses_traces_but_no_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    configured, spans = configure(monkeypatch)
    configured.add_span_processor(FailingProcessor(when))
    if when == "sample":
        monkeypatch.setattr(configured, "sampler", object())
    make_job()
    pipeline = Pipeline()
    run = pipeline.claim()[0]
    pipeline.publish([run], "a")
    assert [handed.run_id for handed in pipeline.dispatcher.dispatched] == [run.run_id]
    assert execute(run.run_id, 1, worker="w")
    assert Run.objects.get(pk=run.run_id).state == "succeeded"
    assert failures(caplog) == ["tracing_failed"]
    assert not trace.get_current_span().get_span_context().is_valid
    assert len(spans.get_finished_spans()) <= 1, "tracing is then off"


@pytest.mark.parametrize("when", ["start", "end"])
def test_failed_span_does_not_affect_attempt(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    configured, _ = configure(monkeypatch)
    configured.add_span_processor(FailingProcessor(when))
    caplog.set_level(logging.INFO)
    run = make_run(make_idle_job(target="tests.app.tasks.fail"))
    assert execute(run.pk, 1, worker="w")
    assert Attempt.objects.get(run=run).message == "as asked"
    assert not trace.get_current_span().get_span_context().is_valid
