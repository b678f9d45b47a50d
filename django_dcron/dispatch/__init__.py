"""Dispatch: publishing due runs to the workers that execute them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from django_dcron.conf import settings
from django_dcron.dispatch.base import (
    Dispatcher,
    DispatchFailed,
    DueRun,
    SupportsBulkRevocation,
    Undeliverable,
)

__all__ = [
    "DispatchFailed",
    "Dispatcher",
    "DueRun",
    "SupportsBulkRevocation",
    "Undeliverable",
    "make_dispatcher",
    "shared_dispatcher",
]


def make_dispatcher(kind: str, execute: Callable[..., Any]) -> Dispatcher:
    """Return a node's dispatcher: "celery", "thread", "tasks", or the dotted path of a class.

    ``execute`` is the function that the thread dispatcher calls. Raises ``ImproperlyConfigured`` if
    the dispatcher could never reach a broker or a worker.
    """
    if kind == "thread":
        from django_dcron.dispatch.thread import ThreadDispatcher

        return ThreadDispatcher(execute, settings.THREADS, settings.COROUTINES)
    if kind == "celery":
        from django_dcron.dispatch.celery_setup import transport_problem

        if problem := transport_problem():
            raise ImproperlyConfigured(f"invalid broker URL: {problem}")
    return _remote_dispatcher(kind)


def shared_dispatcher() -> Dispatcher | None:
    """Return the dispatcher with which processes other than nodes publish a run at once.

    Returns None if only nodes can dispatch runs: with the thread dispatcher, or without a Celery
    app. Without an app, only nodes with ``--embedded`` can run.
    """
    if settings.DISPATCHER == "thread":
        return None
    if settings.DISPATCHER == "celery":
        from django_dcron.dispatch.celery_setup import has_app

        if not has_app():
            return None
    return _shared(settings.DISPATCHER)


@lru_cache(maxsize=4)
def _shared(kind: str) -> Dispatcher:
    return _remote_dispatcher(kind)


def _remote_dispatcher(kind: str) -> Dispatcher:
    if kind == "celery":
        from django_dcron.dispatch.celery import CeleryDispatcher

        return CeleryDispatcher()
    if kind == "tasks":
        from django_dcron.dispatch.django_tasks_setup import dispatch_problem

        if problem := dispatch_problem():
            raise ImproperlyConfigured(problem)
        from django_dcron.dispatch.django_tasks import DjangoTaskDispatcher

        return DjangoTaskDispatcher()
    dispatcher: Dispatcher = import_string(kind)()
    return dispatcher
