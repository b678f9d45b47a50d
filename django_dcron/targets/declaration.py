"""Declare jobs in code: ``@cron`` registers the target and the job, ``sync`` writes the job.

A declaration needs no database and imports no models, so any module may contain it. These errors
are raised at import: an invalid schedule or time zone, an unknown field, a field of the wrong type,
a duplicate name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, Unpack, cast

from django_dcron.exceptions import InvalidSchedule
from django_dcron.policies.job_labels import DEFAULT_NAMESPACE, label_of
from django_dcron.schedules.hashing import hash_key_of
from django_dcron.schedules.schedule import parse_schedule
from django_dcron.targets import celery_tasks, django_tasks, functions
from django_dcron.targets.declared_fields import OUTCOMES, JobFields, validate_declared_fields
from django_dcron.utils.durations import write_duration

F = TypeVar("F")
"""A function or a task. A Django task isn't callable."""


@dataclass(frozen=True)
class Declaration:
    """A job as the code declares it.

    ``fields`` has the declared fields of the job; all others have their defaults. A time zone of
    None means the project's ``TIME_ZONE``.
    """

    namespace: str
    name: str
    target: str
    fields: Mapping[str, Any]

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name

    def __str__(self) -> str:
        return label_of(self.namespace, self.name)


_declared: dict[tuple[str, str], Declaration] = {}


def cron(
    schedule: str = "",
    *,
    name: str | None = None,
    namespace: str = DEFAULT_NAMESPACE,
    args: Iterable[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    **fields: Unpack[JobFields],
) -> Callable[[F], F]:
    """Declare a job that runs the decorated function, Celery task or Django task.

    ``manage.py dcron sync`` creates the job::

        @cron(
            "*/5 * * * *",
            timeout=timedelta(minutes=2),
            retry_on=(ConnectionError,),
            max_attempts=3,
        )
        def fetch_rates(): ...

    ``schedule`` is required. A job that only follows other jobs (``after``) has ``"@never"``.

    ``name`` is the function's name by default. To run one function on several schedules, stack
    decorators with different names. ``args`` and ``kwargs`` must be JSON. Durations are
    ``timedelta`` or numbers of seconds, times are aware ``datetime``. The decorated function can be
    called as before.

    Raises:

    - ``InvalidSchedule``
    - ``TypeError`` for a missing schedule, an unknown field, a value of the wrong type or an
      invalid target.
    - ``ValueError`` for a second job of the same name, or a value that isn't a valid choice.
    """
    if schedule in ("", None):
        raise TypeError(_no_schedule(fields.get("after")))
    if not isinstance(schedule, str):
        raise TypeError(
            f"@cron: the first argument must be text, not {schedule!r:.100}. "
            f"{schedule_advice(schedule)}"
        )
    _refuse_targets_in_after(fields.get("after"))
    declared = validate_declared_fields(fields)
    positional = list(_iterable("args", args))
    by_name = dict(_mapping("kwargs", {} if kwargs is None else kwargs))

    def declare(target: F) -> F:
        job = name or _own_name(target)
        try:
            zone = declared.get("timezone") or "UTC"
            parse_schedule(schedule, zone, hash_key=hash_key_of(namespace, job))
        except InvalidSchedule as error:
            raise InvalidSchedule(f"@cron job {job}: {error}") from None
        given = {
            "schedule": schedule,
            "args": positional,
            "kwargs": by_name,
            "timezone": None,
        }
        _add(Declaration(namespace, job, _ensure_registered(target), {**given, **declared}))
        return target

    return declare


def declarations() -> tuple[Declaration, ...]:
    """Return all jobs declared so far, in the order of their declaration."""
    return tuple(_declared.values())


def declared_for(target: Any) -> tuple[Declaration, ...]:
    """Return the jobs that run this function or task, in the order of their declaration."""
    key = key_of(target)
    return tuple(declaration for declaration in _declared.values() if declaration.target == key)


def key_of(target: Any) -> str | None:
    """Return the key of a task or of a function with ``@cron``, or None for other objects."""
    if celery_tasks.is_celery_task(target):
        return str(target.name)
    if django_tasks.is_django_task(target):
        return str(target.module_path)
    return functions.function_key_of(target)


@contextmanager
def isolated_registry() -> Iterator[None]:
    """Start a test without declarations and registered targets, and restore them afterwards."""
    tables: tuple[dict[Any, Any], ...] = (_declared, functions.registered, django_tasks.registered)
    saved = [dict(table) for table in tables]
    for table in tables:
        table.clear()
    try:
        yield
    finally:
        for table, content in zip(tables, saved, strict=True):
            table.clear()
            table.update(content)


def _add(declaration: Declaration) -> None:
    known = _declared.get(declaration.key)
    # An equal declaration means that the module was loaded again, for example after an error.
    if known is not None and known != declaration:
        raise ValueError(
            f"@cron: two jobs are named {declaration}, one for {known.target} and one for "
            f"{declaration.target}. Give one of them another name=."
        )
    _declared[declaration.key] = declaration


def _ensure_registered(target: Any) -> str:
    """Register the target if necessary, and return its key."""
    celery_tasks.require_registered_task(target)
    if celery_tasks.is_celery_task(target):
        return str(target.name)
    return (
        django_tasks.register_django_task(target)
        if django_tasks.is_django_task(target)
        else functions.register_function(target)
    )


def _own_name(target: Any) -> str:
    name: str | None = (
        target.name if django_tasks.is_django_task(target) else getattr(target, "__name__", None)
    )
    if not name or name == "<lambda>":
        raise TypeError(f"@cron: {target!r:.100} has no name. Pass name=.")
    return name


def _refuse_targets_in_after(after: object) -> None:
    """Raise ``TypeError`` if ``after`` is or contains a function or task, with its job's name."""
    alone = _is_target(after) or not isinstance(after, Iterable)
    for each in [after] if alone else cast("Iterable[object]", after):
        if _is_target(each):
            use = "the name of the job"
            labels = [str(declaration) for declaration in declared_for(each)]
            if len(labels) == 1:
                example = {labels[0]: OUTCOMES[0]}
                use = repr(labels[0]) if isinstance(after, Mapping) else f"after={example}"
            raise TypeError(f"@cron: after contains a function or task. Use {use}.")


def _is_target(value: object) -> bool:
    return callable(value) or key_of(value) is not None


def _no_schedule(after: object) -> str:
    if after:
        return (
            "@cron: the schedule is missing. A job that only follows other jobs has the schedule "
            f'"@never": @cron("@never", after={after!r:.100}).'
        )
    return (
        '@cron: the schedule is missing. Use a schedule such as "*/5 * * * *", or "@never" for a '
        "job that only follows other jobs or is started by users."
    )


def schedule_advice(value: object) -> str:
    """Return what to use instead of a schedule that isn't text: the equivalent text, if any."""
    text = celery_tasks.text_of_crontab(value)
    interval = getattr(value, "run_every", value)  # Celery's schedule has one
    if not text and isinstance(interval, timedelta) and interval > timedelta():
        text = f"@every {write_duration(interval)}"
    try:
        parse_schedule(text, "UTC")
    except InvalidSchedule:
        text = ""
    return f'Use "{text}".' if text else 'Use a schedule such as "*/5 * * * *".'


def _iterable(field: str, value: object) -> Iterable[Any]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise TypeError(f"@cron: {field} {_has_type(value)}, not list. Use {field}=[...].")
    return value


def _mapping(field: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(
            f'@cron: {field} {_has_type(value)}, not dict. Use {field}={{"name": ...}}.'
        )
    return value


def _has_type(value: object) -> str:
    """Return the type of an argument. Its value is omitted, because it may be a secret."""
    return f"has the type {type(value).__name__}"
