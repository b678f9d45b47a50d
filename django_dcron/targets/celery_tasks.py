"""The project's Celery tasks as targets, under their own names.

Invariants:

- A task runs inside a worker, but not from its own message: django-dcron's message carries it.
- Its request has ``is_eager`` set. So ``self.retry()`` and ``autoretry_for`` raise ``Retry`` and
  publish nothing, and the job's retry policy decides.
- The shared task object never changes, except that a call removes the limit of retries that Celery
  left there. All else is in the request that is pushed for this thread.
- Celery sends its own signals for the carrying task only.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Iterable
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
from celery.schedules import crontab
from django.apps import apps

from django_dcron.exceptions import PermanentFailure, RetryLater
from django_dcron.policies.retry import refused_retry_note
from django_dcron.targets.base import Invocation, Target, TargetKind, first_line
from django_dcron.targets.parameters import TargetParameter, parameters_of
from django_dcron.targets.signatures import check_call, signature_of, signature_text

logger = logging.getLogger(__name__)

RESERVED_PREFIXES = ("celery.", "django_dcron.")
"""Celery's built-in tasks and the task that carries the runs."""


LIMIT_OF_RETRY = "override_max_retries"
"""The attribute in which ``Task.retry()`` stores its ``max_retries``. Celery never resets it."""


class JobRequest(Context):
    """``self.request`` of a task that a job runs."""

    called_task: Task[..., Any]
    limit_of_retry: int | None = None
    """The ``max_retries`` of the latest call of ``self.retry()``. None: it had none."""

    def _get_custom_headers(self, *args: Any, **kwargs: Any) -> None:
        """Return None: a run's message has no headers for the task."""

    def as_execution_options(self) -> dict[str, Any]:
        # Only Task.retry() reads these options, right after it has stored its argument.
        self.limit_of_retry = vars(self.called_task).get(LIMIT_OF_RETRY)
        return super().as_execution_options()

    def get(self, key: str, default: Any = None) -> Any:
        if key == "replaced_task_nesting":
            # Task.replace() reads this right before it publishes the replacement or, if eager, runs
            # it inline. The replacement is an independent task and belongs on its own queue.
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
        return signature_text(signature_of(self.task.run))

    @property
    def parameters(self) -> list[TargetParameter] | None:
        return parameters_of(signature_of(self.task.run), self.task.run)

    @property
    def route_name(self) -> str:
        return self.key

    def check_arguments(self, args: list[Any], kwargs: dict[str, Any]) -> None:
        if self.task.typing:  # otherwise, the project disabled Celery's check
            check_call(signature_of(self.task.run), args, kwargs)

    def call(self, invocation: Invocation) -> Any:
        """Run the task and its hooks as Celery's tracer does.

        ``Retry`` becomes ``RetryLater`` if the task chose a delay, otherwise its cause, so that the
        job's policy decides. An exception that ``self.retry(max_retries=…)`` raises because this
        limit is reached ends the run. ``Ignore`` counts as success without a result. ``Reject`` and
        all other exceptions aren't caught.
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
            called_task=task,
        )
        vars(task).pop(LIMIT_OF_RETRY, None)  # of an earlier call
        _task_stack.push(task)
        task.request_stack.push(request)
        try:
            return _TracedCall(task, invocation, request).run()
        finally:
            task.request_stack.pop()
            _task_stack.pop()


class _TracedCall:
    """One call with the task's hooks. An error in a hook is logged and replaces no other error."""

    def __init__(self, task: Task[..., Any], invocation: Invocation, request: JobRequest):
        self.task = task
        self.request = request
        self.invocation = invocation
        self.hook_arguments: tuple[str, Any, Any] = (
            invocation.call_id,
            invocation.args,
            invocation.kwargs,
        )
        """The task id and the arguments of the call, which each hook gets."""

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
            self._call_failure_hooks(error)
            if not self._is_out_of_retries():
                raise
            final = PermanentFailure()
            final.add_note(f"The task's call of retry() allows {self.request.limit_of_retry}.")
            raise final from error
        else:
            self._hook("on_success", result, *self.hook_arguments)
            self._hook("after_return", states.SUCCESS, result, *self.hook_arguments, None)
            return result
        raise self._exception_for(retry)

    def _body(self) -> Any:
        task, (call_id, args, kwargs) = self.task, self.hook_arguments
        task.before_start(call_id, args, kwargs)
        # Like Celery's tracer, call the task only if the project overrides ``__call__``.
        function = task.run if type(task).__call__ is Task.__call__ else task
        return function(*args, **kwargs)

    def _is_out_of_retries(self) -> bool:
        """Return whether ``self.retry()`` gave up because of the ``max_retries`` of its call.

        Limits that the task declares don't count: at import, the job's ``max_attempts`` follows
        them, and from then on, it decides. ``autoretry_for`` passes a declared limit to the call.
        """
        limit = self.request.limit_of_retry
        declared = (getattr(self.task, "retry_kwargs", None) or {}).get("max_retries")
        return limit is not None and limit != declared and self.request.retries >= limit

    def _exception_for(self, retry: Retry) -> Exception:
        """Return the exception to raise for ``Retry``.

        The caller raises it outside its ``except`` block, so that the cause keeps its context.
        """
        cause = _cause(retry)
        if self.invocation.is_last:
            self._call_failure_hooks(cause or retry)
        else:
            self._hook("on_retry", cause, *self.hook_arguments, _info(retry))
        after = _delay(self.task, retry)
        if after is None and cause is not None:
            if self.invocation.is_last and not getattr(cause, "__notes__", ()):
                cause.add_note(refused_retry_note(self.invocation.max_attempts or 1))
            return cause
        later = RetryLater("" if cause is not None else str(retry), after=after)
        later.__cause__ = cause
        # Without a cause, only the traceback of the Retry shows where the task asked for it.
        return later if cause is not None else later.with_traceback(retry.__traceback__)

    def _call_failure_hooks(self, error: Exception) -> None:
        self._hook("on_failure", error, *self.hook_arguments, _info(error))
        self._hook("after_return", states.FAILURE, error, *self.hook_arguments, None)

    def _hook(self, name: str, *values: Any) -> None:
        try:
            getattr(self.task, name)(*values)
        except Exception:
            extra = {"event": "hook_failed"}
            logger.exception("task hook failed: hook=%s task=%s", name, self.task.name, extra=extra)


def _info(error: BaseException) -> ExceptionInfo:
    return ExceptionInfo((type(error), error, error.__traceback__))


def _cause(retry: Retry) -> Exception | None:
    """Return the exception that the task retries for, with a traceback.

    Celery replaces an exception that can't be pickled. If the handled exception is the original
    one, it is returned instead.
    """
    handled, cause = retry.__context__, retry.exc
    if (
        isinstance(handled, Exception)
        and cause is not None
        and repr(handled) == getattr(retry, "excs", None)
    ):
        cause = handled
    if cause is not None and cause.__traceback__ is None:  # created for retry(), never raised
        cause.__traceback__ = retry.__traceback__
    return cause


def _delay(task: Task[..., Any], retry: Retry) -> timedelta | None:
    """Return how long the task wants to wait, or None for Celery's default: the job decides."""
    when = retry.when
    if isinstance(when, datetime):
        now = datetime.now(UTC) if when.tzinfo else datetime.now(UTC).replace(tzinfo=None)
        return max(when - now, timedelta())
    if when is None or when == Task.default_retry_delay == task.default_retry_delay:
        return None
    return timedelta(seconds=max(float(when), 0))


# --- Finding them ---------------------------------------------------------------------------------

_problems: WeakKeyDictionary[Celery, str] = WeakKeyDictionary()
"""The apps whose task modules were imported, each with the error, or "" if there was none."""
_discovering = threading.local()
_discovery = threading.Lock()
LONGEST_DISCOVERY = 30.0
"""Seconds that a thread waits while another thread imports the task modules.

The other thread may itself wait for a module that this thread imports.
"""


def find(key: str) -> CeleryTarget | None:
    if key.startswith(RESERVED_PREFIXES):
        return None
    task = discovered_app().tasks.get(key)
    return CeleryTarget(task) if task is not None else None


def keys() -> list[str]:
    return [name for name in list(discovered_app().tasks) if not name.startswith(RESERVED_PREFIXES)]


def discovery_problem() -> str:
    """Return why task modules can't be imported, so tasks may be missing; empty if they can."""
    return _problems.get(discovered_app(), "")


def require_registered_task(target: Any) -> None:
    """Raise ``TypeError`` for a task class, or for an instance of one that isn't registered."""
    cls = target if inspect.isclass(target) else type(target)
    if issubclass(cls, Task) and (cls is target or not _is_registered(target)):
        name = cls.__name__
        problem = "is the class of a task" if cls is target else "is a task that isn't registered"
        raise TypeError(
            f"@cron: {name} {problem}. Declare cron(...)(app.register_task({name}())), where app "
            "is the project's Celery app."
        )


def _is_registered(task: Task[..., Any]) -> bool:
    app: Any = task.app
    # ``app.tasks`` would finalize the app, although modules that configure it may not be imported.
    return type(app._tasks.get(task.name)) is type(task)


def is_celery_task(value: object) -> bool:
    """Return whether ``value`` is a Celery task or a proxy of one."""
    return isinstance(value, Task)


def known_tasks(*, finalize: bool) -> dict[str, Task[..., Any]]:
    """Return the tasks known so far. Imports no module.

    Only a finalized app knows its tasks. With ``finalize``, finalize it, which runs the project's
    handlers of Celery's signal.
    """
    app: Any = app_or_default()
    return dict(app.tasks) if finalize or app.finalized else {}


def tasks_by_function(tasks: Iterable[Task[..., Any]]) -> dict[Any, Task[..., Any]]:
    """Return the tasks by the function that each of them calls."""
    wrapped = ((getattr(task, "__wrapped__", None), task) for task in tasks)
    # The function of a task with bind=True is a method.
    return {getattr(each, "__func__", each): task for each, task in wrapped if each is not None}


def text_of_crontab(value: object) -> str:
    """Return the fields of Celery's ``crontab`` as written, or "" if their meaning differs in cron.

    The text may be invalid, because Celery accepts other names. In Celery, both the day of the
    month and the day of the week must match. In cron, one suffices.
    """
    if not isinstance(value, crontab):
        return ""
    fields: list[Any] = [
        vars(value)[f"_orig_{name}"]
        for name in ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
    ]
    if "*" not in (fields[2], fields[4]):
        return ""
    return " ".join(
        ",".join(map(str, field)) if isinstance(field, set | list | tuple) else str(field)
        for field in fields
    )


def discovered_app() -> Celery:
    """Return the current app with the project's task modules imported.

    Only workers import these modules automatically. The import happens once. Other threads wait for
    it, because Celery skips an import while another one is in progress. In the importing thread,
    and while Django loads its apps, the tasks known so far are used.
    """
    app: Celery = app_or_default()
    known = app in _problems or app.loader.worker_initialized
    if not known and apps.ready and not getattr(_discovering, "now", False):
        has_lock, _discovering.now = False, True
        try:  # an exception of a time limit may arrive while this thread waits
            has_lock = _discovery.acquire(timeout=LONGEST_DISCOVERY)
            if app not in _problems:
                _problems[app] = _import_task_modules(app)
        finally:
            _discovering.now = False
            if has_lock:
                _discovery.release()
    return app


def _import_task_modules(app: Celery) -> str:
    """Import the modules. Returns the error, or "" if there was none."""
    # Celery's fixup sets up Django first, which has been done here. A second setup would run all
    # system checks and reset the project's logging. With ``disable_existing_loggers``, that would
    # silence most loggers.
    for fixup in getattr(app, "_fixups", ()):
        if isinstance(fixup, DjangoFixup):
            for sender in (app, None):  # the sender depends on Celery's version
                signals.import_modules.disconnect(fixup.on_import_modules, sender=sender)
    try:
        app.loader.import_default_modules()
    except Exception as error:
        text = "task modules not imported: celery_app=%s"
        logger.exception(text, app.main, extra={"event": "tasks_not_imported"})
        return f"{type(error).__name__}: {error}"
    return ""
