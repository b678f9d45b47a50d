"""The project's Celery tasks as targets, under their own names. The only module here that imports Celery.

A task runs inside a worker's process but not from a message of its own: dcron's message carries it. So its request says
``is_eager``, which is what makes ``self.retry()`` and ``autoretry_for`` raise ``Retry`` and publish nothing; the wish is
handed to the job's policy. The shared task object is never changed: all that differs is the request pushed for this
thread. Celery's own signals are sent for the carrying task only.
"""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime, timedelta
from typing import Any
from weakref import WeakKeyDictionary

from billiard.einfo import ExceptionInfo
from celery import Celery, Task, signals, states
from celery._state import _task_stack  # type: ignore[attr-defined]  # what celery.current_task reads
from celery.app import app_or_default
from celery.app.task import Context
from celery.exceptions import Ignore, Reject, Retry
from celery.fixups.django import DjangoFixup
from django.apps import apps

from django_dcron.exceptions import RetryLater
from django_dcron.targets.base import Invocation, Target, TargetKind, first_line
from django_dcron.targets.signatures import check_call, in_words, signature_of

logger = logging.getLogger(__name__)

NOT_FOR_JOBS = ("celery.", "django_dcron.")
"""Celery's built-ins, and the task that carries the runs."""


class JobRequest(Context):
    """The ``self.request`` of a task that a job runs."""

    def get(self, key: str, default: Any = None) -> Any:
        if key == "replaced_task_nesting":
            # Task.replace() asks, right before it publishes the replacement or, if eager, runs it here and now. The
            # replacement is a task in its own right: it belongs on its own queue.
            self.is_eager = False
        return super().get(key, default)


class CeleryTarget(Target):
    kind = TargetKind.TASK

    def __init__(self, task: Task[..., Any]):
        self.key = task.name
        self.task = task

    @property
    def description(self) -> str:
        own = type(self.task).__doc__
        return first_line(own) if own != Task.__doc__ else ""

    @property
    def signature(self) -> str:
        return in_words(signature_of(self.task.run))

    @property
    def route_name(self) -> str:
        return self.key

    def check_arguments(self, args: list[Any], kwargs: dict[str, Any]) -> None:
        if self.task.typing:  # else the project asked Celery not to check
            check_call(signature_of(self.task.run), args, kwargs)

    def call(self, invocation: Invocation) -> Any:
        """Run the task as Celery's tracer does, hooks included.

        ``Retry`` becomes ``RetryLater`` if the task said when, else the exception behind it, so that the job's policy
        decides. ``Ignore`` is success without a result. ``Reject`` and all else pass through.
        """
        task = self.task
        request = JobRequest(
            id=invocation.call_id,
            root_id=invocation.call_id,
            task=task.name,
            args=invocation.args,
            kwargs=invocation.kwargs,
            retries=invocation.attempt - 1,
            hostname=invocation.worker,
            delivery_info={},
            called_directly=False,
            is_eager=True,
        )
        _task_stack.push(task)
        task.request_stack.push(request)
        try:
            return _TracedCall(task, invocation).run()
        finally:
            task.request_stack.pop()
            _task_stack.pop()


class _TracedCall:
    """One call with the hooks a task may define; a hook that raises is logged and hides nothing."""

    def __init__(self, task: Task[..., Any], invocation: Invocation):
        self.task = task
        self.invocation = invocation
        self.facts: tuple[str, Any, Any] = (invocation.call_id, invocation.args, invocation.kwargs)

    def run(self) -> Any:
        try:
            result = self._body()
        except Ignore:
            return None
        except Reject:
            raise
        except Retry as asked:
            retry = asked
        except Exception as error:
            self._failed(error)
            raise
        else:
            self._hook("on_success", result, *self.facts)
            self._hook("after_return", states.SUCCESS, result, *self.facts, None)
            return result
        raise self._answer(retry)

    def _body(self) -> Any:
        task, (call_id, args, kwargs) = self.task, self.facts
        task.before_start(call_id, args, kwargs)
        # Like the tracer: through __call__ only where it is the project's own.
        function = task.run if type(task).__call__ is Task.__call__ else task
        return function(*args, **kwargs)

    def _answer(self, retry: Retry) -> Exception:
        """What to raise for ``Retry``. Raised outside its ``except`` block, so that the cause keeps its own context."""
        cause = _cause(retry)
        if self.invocation.is_last:
            self._failed(cause or retry)
        else:
            self._hook("on_retry", cause, *self.facts, _info(retry))
        after = _delay(self.task, retry)
        if after is None and cause is not None:
            return cause
        later = RetryLater(str(retry), after=after)
        later.__cause__ = cause
        return later

    def _failed(self, error: Exception) -> None:
        self._hook("on_failure", error, *self.facts, _info(error))
        self._hook("after_return", states.FAILURE, error, *self.facts, None)

    def _hook(self, name: str, *values: Any) -> None:
        try:
            getattr(self.task, name)(*values)
        except Exception:
            extra = {"event": "hook_failed"}
            logger.exception("%s of Celery task %s raised", name, self.task.name, extra=extra)


def _info(error: BaseException) -> ExceptionInfo:
    return ExceptionInfo((type(error), error, error.__traceback__))


def _cause(retry: Retry) -> Exception | None:
    """What the task retries for, with a traceback.

    Celery keeps a stand-in for an exception that cannot be pickled; the one being handled is better, if it is that.
    """
    handled, cause = retry.__context__, retry.exc
    if isinstance(handled, Exception) and cause is not None and repr(handled) == getattr(retry, "excs", None):
        cause = handled
    if cause is not None and cause.__traceback__ is None:  # made for retry(), never raised
        cause.__traceback__ = retry.__traceback__
    return cause


def _delay(task: Task[..., Any], retry: Retry) -> timedelta | None:
    """How long the task wants to wait; None if it left that to Celery's general default, that is, to the job."""
    when = retry.when
    if isinstance(when, datetime):
        now = datetime.now(UTC) if when.tzinfo else datetime.now(UTC).replace(tzinfo=None)
        return max(when - now, timedelta())
    if when is None or when == Task.default_retry_delay == task.default_retry_delay:
        return None
    return timedelta(seconds=max(float(when), 0))


# --- Finding them -----------------------------------------------------------------------------------------

_problems: WeakKeyDictionary[Celery, str] = WeakKeyDictionary()
"""The apps whose task modules were imported, each with what went wrong ("" if nothing did)."""
_discovering = threading.local()


def find(key: str) -> CeleryTarget | None:
    if key.startswith(NOT_FOR_JOBS):
        return None
    task = discovered_app().tasks.get(key)
    return CeleryTarget(task) if task is not None else None


def keys() -> list[str]:
    return [name for name in list(discovered_app().tasks) if not name.startswith(NOT_FOR_JOBS)]


def discovery_problem() -> str:
    """Why some task modules could not be imported, and so some tasks are unknown; empty if all were."""
    return _problems.get(discovered_app(), "")


def is_task(thing: object) -> bool:
    """Whether it is a Celery task, or a proxy of one."""
    return isinstance(thing, Task)


def discovered_app() -> Celery:
    """The current app, with the project's task modules imported, as only a worker does by itself.

    Done once. Threads that come at the same time do it side by side, which is harmless; they must not go on with half
    of the tasks. Within the import itself, and while Django is loading its apps, what is known so far has to do.
    """
    app: Celery = app_or_default()
    known = app in _problems or app.loader.worker_initialized
    if not known and apps.ready and not getattr(_discovering, "now", False):
        _discovering.now = True
        try:
            _problems[app] = _import_task_modules(app)
        finally:
            _discovering.now = False
    return app


def _import_task_modules(app: Celery) -> str:
    """Import them; returns what went wrong, or ""."""
    # A worker sets up Django first. Here that is done, and doing it again would reset the project's logging (and with
    # ``disable_existing_loggers``, silence most of it) and run all system checks.
    for fixup in getattr(app, "_fixups", ()):
        if isinstance(fixup, DjangoFixup):
            for sender in (app, None):  # the sender it listens to depends on Celery's version
                signals.import_modules.disconnect(fixup.on_import_modules, sender=sender)
    try:
        app.loader.import_default_modules()
    except Exception as error:
        text = "Some task modules of the Celery app %s could not be imported"
        logger.exception(text, app.main, extra={"event": "tasks_not_imported"})
        return f"{type(error).__name__}: {error}"
    return ""
