"""Run the examples of docs/how-to/extending.md: alert service, target, dispatcher and lock."""

import http.server
import re
import sys
import threading
import time
from collections.abc import Callable, Collection
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest
from apprise.plugins import N_MGR
from celery import current_app
from pytest_django import Settings

from django_dcron import control, targets
from django_dcron.contrib.alerts import channels
from django_dcron.dispatch import DispatchFailed, make_dispatcher
from django_dcron.dispatch.base import DueRun
from django_dcron.exceptions import LockUnavailable
from django_dcron.locks import get_lock
from tests.docs.test_documents import ROOT
from tests.factories import make_idle_job

PAGE = (ROOT / "docs" / "how-to" / "extending.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
MODULES = {match[1]: block for block in BLOCKS if (match := re.match(r"# shop/(\w+)\.py\n", block))}

AddModule = Callable[..., ModuleType]


@pytest.fixture
def add_module(monkeypatch: pytest.MonkeyPatch) -> AddModule:
    """Return a function that adds a module to the package ``shop``, from the page by default."""
    package = ModuleType("shop")
    package.__path__ = []
    package.__file__ = str(ROOT / "shop" / "__init__.py")
    monkeypatch.setitem(sys.modules, "shop", package)

    def add(name: str, **names: Any) -> ModuleType:
        module = ModuleType(f"shop.{name}")
        module.__dict__.update(names)
        if not names:
            exec(compile(MODULES[name], f"shop/{name}.py", "exec"), module.__dict__)  # noqa: S102
        monkeypatch.setitem(sys.modules, module.__name__, module)
        setattr(package, name, module)
        return module

    return add


@pytest.fixture
def pasted(settings: Settings) -> Callable[[str], None]:
    """Return a function that sets a setting as the page does."""

    def paste(name: str) -> None:
        (block,) = [block for block in BLOCKS if block.startswith(f"{name} = ")]
        values: dict[str, Any] = {}
        exec(block, values)  # noqa: S102 (the project's own page)
        setattr(settings, name, values[name])

    return paste


def test_custom_service_of_apprise_sends_alerts(
    add_module: AddModule, pasted: Callable[[str], None], settings: Settings
) -> None:
    sent: list[tuple[str, str]] = []
    gateway = add_module("sms_gateway", send=lambda *message: sent.append(message))
    add_module("apps")
    pasted("DCRON_ALERT_CHANNELS")
    try:
        channels.send(settings.DCRON_ALERT_CHANNELS["duty"], "report failed", "ValueError")
        assert sent == [("on-call", "[dcron] report failed\nValueError")]
        gateway.__dict__["send"] = lambda *message: 1 / 0
        with pytest.raises(channels.SendFailed):
            channels.send(settings.DCRON_ALERT_CHANNELS["duty"], "report failed", "ValueError")
    finally:
        N_MGR.remove("smsgate")


def test_one_function_is_the_target_of_jobs_with_different_arguments(
    add_module: AddModule,
) -> None:
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    server.RequestHandlerClass.do_GET = lambda handler: handler.send_error(204)  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.handle_request)
    thread.start()
    try:
        module = add_module("tasks")
        target = targets.get(module.call_url.name)
        url = f"http://127.0.0.1:{server.server_port}/"
        target.check_arguments([url], {})
        assert module.call_url(url) == 204
    finally:
        thread.join()
        server.server_close()
        current_app.tasks.pop(module.call_url.name, None)


@pytest.mark.django_db(transaction=True)
def test_dispatcher_publishes_runs_that_a_worker_executes(
    add_module: AddModule, pasted: Callable[[str], None], settings: Settings
) -> None:
    messages: list[str] = []
    broker = add_module("broker", put=messages.append)
    add_module("dispatch")
    worker = add_module("worker")
    pasted("DCRON_DISPATCHER")
    job = make_idle_job(target="tests.app.tasks.echo", args=["hello"])
    run = control.trigger(job)
    dispatcher = make_dispatcher(settings.DCRON_DISPATCHER, lambda: None)
    due = DueRun(run.pk, run.attempt, run.due_at, job.pk, job.name, job.target)
    prepared = dispatcher.prepare(due)
    dispatcher.publish([prepared])
    assert messages[-1] == prepared
    worker.work(prepared)
    worker.work(prepared)  # a second delivery does nothing
    run.refresh_from_db()
    assert (run.state, run.attempts.count()) == ("succeeded", 1)

    def fail(message: str) -> None:
        raise OSError("connection refused")

    broker.__dict__["put"] = fail
    with pytest.raises(DispatchFailed):
        dispatcher.publish([prepared])
    dispatcher.revoke(run.pk, 1)
    assert (dispatcher.take_unstarted(), dispatcher.executing()) == ([], [])
    dispatcher.close()


def test_lock_takes_releases_and_reports_names(
    add_module: AddModule, pasted: Callable[[str], None]
) -> None:
    held: dict[str, str] = {}

    def hold(names: Collection[str], holder: str, seconds: float) -> dict[str, float]:
        own = [name for name in names if held.setdefault(name, holder) == holder]
        return dict.fromkeys(own, time.monotonic() + seconds)

    def release(names: Collection[str], holder: str) -> None:
        for name in names:
            if held.get(name) == holder:
                del held[name]

    def holders(names: Collection[str]) -> dict[str, str]:
        return {name: held[name] for name in names if name in held}

    server = add_module("lock_server", hold=hold, release=release, holders=holders)
    add_module("locks")
    pasted("DCRON_LOCK")
    lock = get_lock()
    lease = timedelta(seconds=9)
    assert [each.name for each in lock.hold(["b", "a", "a"], "one", lease)] == ["a", "b"]
    (taken,) = lock.hold(["a", "c"], "two", lease)
    assert (taken.name, taken.valid(time.monotonic())) == ("c", True)
    lock.release(["a", "c"], "one")
    assert lock.holders(["a", "b", "c"]) == {"b": "one", "c": "two"}

    def fail(*arguments: Any) -> None:
        raise OSError("connection refused")

    server.__dict__.update(dict.fromkeys(("hold", "release", "holders"), fail))
    for call in (
        lambda: lock.hold(["a"], "one", lease),
        lambda: lock.release(["a"], "one"),
        lambda: lock.holders(["a"]),
    ):
        with pytest.raises(LockUnavailable):
            call()
