"""Check what the migration guide states about listeners to Celery, and run its middleware."""

import re
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import sentry_sdk
from celery import signals
from pytest_django import Settings
from sentry_sdk.transport import Transport

from django_dcron import tasks
from django_dcron.models import Attempt
from django_dcron.targets.celery_tasks import discovered_app
from tests.docs.test_documents import ROOT
from tests.factories import make_idle_job, make_run

PAGE = (ROOT / "docs" / "how-to" / "migrate.md").read_text()
SECTION = PAGE.partition("\n#### What listeners to Celery see\n")[2].partition("\n##")[0]
TASK_SIGNALS = ("prerun", "postrun", "success", "failure", "retry")

pytestmark = pytest.mark.django_db


class Events(Transport):
    """Records the events that Sentry's SDK would send."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Any) -> None:
        self.events += [item.payload.json for item in envelope if item.type == "event"]


@pytest.fixture
def heard() -> Iterator[list[tuple[str, str]]]:
    """The names of Celery's signals, each with the name of the task that sent it."""
    received: list[tuple[str, str]] = []
    receivers = {}
    for name in TASK_SIGNALS:

        def receive(sender: Any, name: str = name, **kwargs: Any) -> None:
            received.append((name, sender.name))

        receivers[name] = receive
        getattr(signals, f"task_{name}").connect(receive)
    yield received
    for name, receive in receivers.items():
        getattr(signals, f"task_{name}").disconnect(receive)


@pytest.fixture
def sentry() -> Iterator[Events]:
    events = Events()
    with sentry_sdk.isolation_scope() as scope:
        scope.set_client(
            sentry_sdk.Client(
                "https://key@sentry.example/1", transport=events, default_integrations=False
            )
        )
        yield events


@pytest.fixture
def middleware(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    """Use the middleware and the setting of the page."""
    module, setting = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
    package, added = ModuleType("shop"), ModuleType("shop.sentry")
    exec(compile(module, "shop/sentry.py", "exec"), added.__dict__)  # noqa: S102
    monkeypatch.setitem(sys.modules, "shop", package)
    monkeypatch.setitem(sys.modules, "shop.sentry", added)
    values: dict[str, Any] = {}
    exec(setting, values)  # noqa: S102 (the project's own page)
    settings.DCRON_MIDDLEWARE = values["DCRON_MIDDLEWARE"]


def execute(target: str) -> Any:
    """Execute a run as a worker's tracer does. Return Celery's result, after the attempt's end."""
    run = make_run(make_idle_job(name="nightly", target=target))
    return tasks.execute_run.apply(args=[str(run.pk), 1])


@pytest.mark.parametrize(
    ("target", "outcome"),
    [("tests.app.tasks.ok", "succeeded"), ("tests.app.tasks.fail", "failed")],
)
def test_celery_sends_signals_for_the_carrying_task_only(
    heard: list[tuple[str, str]], target: str, outcome: str
) -> None:
    result = execute(target)

    assert Attempt.objects.get().outcome == outcome
    assert heard == [(name, "django_dcron.execute") for name in ("prerun", "success", "postrun")]
    assert result.state == "SUCCESS"
    assert all(f"`task_{name}`" in SECTION for name in TASK_SIGNALS)


def test_carrying_task_stores_no_result() -> None:
    assert tasks.execute_run.ignore_result


@pytest.mark.usefixtures("middleware")
def test_middleware_names_the_transaction_of_an_error(
    sentry: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        sentry_sdk.capture_message("reported by the task")

    monkeypatch.setattr(discovered_app().tasks["tests.app.tasks.ok"], "run", fail)
    # Sentry's integration begins a transaction for each message of Celery.
    with sentry_sdk.start_transaction(name="django_dcron.execute", source="task"):
        execute("tests.app.tasks.ok")
        sentry_sdk.capture_message("logged after the end")

    attempt = Attempt.objects.get()
    assert len(sentry.events) == 2
    for event in sentry.events:
        assert event["transaction"] == "nightly"
        assert event["transaction_info"]["source"] == "task"
        assert event["tags"] == {
            "dcron.job": "nightly",
            "dcron.target": "tests.app.tasks.ok",
            "dcron.run": str(attempt.run_id),
        }
