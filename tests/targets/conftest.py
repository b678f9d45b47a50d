"""Fixtures of the tests of targets."""

from collections.abc import Iterator
from typing import Any

import celery
import celery._state
import pytest

from django_dcron.targets import django_tasks, functions


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Iterator[celery.Celery]:
    """A separate app for this thread, with only Celery's own tasks. Publishing fails the test."""
    monkeypatch.setattr(django_tasks, "has_tasks", lambda: False)
    monkeypatch.setattr(functions, "registered", {})
    before = celery.current_app._get_current_object()
    builtin = {
        finalizer
        for finalizer in celery._state._on_app_finalizers
        if finalizer.__module__ == "celery.app.builtins"
    }
    # Otherwise, all apps share their tasks.
    monkeypatch.setattr(celery._state, "_on_app_finalizers", builtin)
    app = celery.Celery("proj", broker="memory://", fixups=[])

    def refuse(*args: Any, **options: Any) -> None:
        raise AssertionError("a message was published")

    monkeypatch.setattr(app, "send_task", refuse)
    monkeypatch.setattr(app.amqp, "send_task_message", refuse)
    app.set_current()
    yield app
    before.set_current()
