"""Jobs declared in code: ``@cron`` registers what runs and notes the job; ``sync`` writes it to the database.

Declaring needs no database and imports no models, so it may stand in any module that is imported at start. What can be
told at once (the schedule text, unknown or mistyped fields, two jobs of one name) is refused at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import NoneType
from typing import Any, TypedDict, TypeVar, Unpack, get_args, get_type_hints

from django_dcron.domain.durations import write_duration
from django_dcron.domain.schedule import parse_schedule
from django_dcron.exceptions import InvalidSchedule
from django_dcron.targets import celery_tasks, django_tasks, functions
from django_dcron.targets.base import did_you_mean

F = TypeVar("F")
"""A function or a task. (Django's cannot be called.)"""
ExceptionNames = Iterable[type[BaseException] | str] | type[BaseException] | str


class JobFields(TypedDict, total=False):
    """The fields of a job that ``@cron`` may declare; one left out is the job's default and people's to change."""

    description: str
    timezone: str | None
    starts_at: datetime | None
    ends_at: datetime | None
    after: Mapping[str, str]
    calendar: str | None
    calendar_policy: str
    jitter: timedelta
    enabled: bool
    misfire_policy: str
    misfire_grace: timedelta
    catchup_limit: int
    overlap_policy: str
    start_deadline: timedelta | None
    queue: str
    priority: int | None
    timeout: timedelta | None
    max_attempts: int
    retry_backoff: timedelta
    retry_backoff_factor: float
    retry_backoff_max: timedelta
    retry_jitter: float
    retry_on: ExceptionNames
    never_retry_on: ExceptionNames
    pause_after_failures: int | None
    alerts: Iterable[Mapping[str, Any]] | None
    keep_for: timedelta | None
    keep_failed_for: timedelta | None
    keep_runs: int | None
    tags: Iterable[str]


_HINTS = get_type_hints(JobFields)


def _fields_of(kind: Any) -> set[str]:
    """The fields that take a value of this type, be it among others."""
    return {field for field, hint in _HINTS.items() if kind in (hint, *get_args(hint))}


DURATIONS = _fields_of(timedelta)
INSTANTS = _fields_of(datetime)
EXCEPTIONS = _fields_of(ExceptionNames)
NULLABLE = _fields_of(NoneType)


@dataclass(frozen=True)
class Declaration:
    """A job as the code declares it. ``fields`` are the job's fields it names, by name; the rest are the defaults.

    A time zone of None is the project's ``TIME_ZONE``.
    """

    namespace: str
    name: str
    target: str
    fields: Mapping[str, Any]

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name

    def __str__(self) -> str:
        return self.name if self.namespace == "default" else f"{self.namespace}/{self.name}"


_declared: dict[tuple[str, str], Declaration] = {}


def cron(
    schedule: str,
    *,
    name: str | None = None,
    namespace: str = "default",
    args: Iterable[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    **fields: Unpack[JobFields],
) -> Callable[[F], F]:
    """Declare a job that runs the decorated function, Celery task or Django task; ``manage.py dcron sync`` creates it.

    ::

        @cron("*/5 * * * *", timeout=timedelta(minutes=2), retry_on=(ConnectionError,), max_attempts=3)
        def fetch_rates(): ...

    ``name`` is the function's own unless given; stack several with different names to run one function on several
    schedules. ``args`` and ``kwargs`` must be JSON. Durations are ``timedelta``, instants aware ``datetime``. The
    function stays what it was and can be called as ever.

    Raises ``InvalidSchedule``; ``TypeError`` for an unknown or mistyped field or what cannot be run; ``ValueError``
    for a second job of the same name.
    """
    if not isinstance(schedule, str):
        raise TypeError(f'@cron needs a schedule first: @cron("*/5 * * * *"), not {schedule!r:.100}')
    declared = _checked(fields)

    def declare(target: F) -> F:
        job = name or _own_name(target)
        try:
            parse_schedule(schedule, hash_key=f"{namespace}/{job}")
        except InvalidSchedule as error:
            raise InvalidSchedule(f"job {job} declared by @cron: {error}") from None
        given = {"schedule": schedule, "args": list(args), "kwargs": dict(kwargs or {}), "timezone": None}
        _add(Declaration(namespace, job, _registered(target), {**given, **declared}))
        return target

    return declare


def declarations() -> tuple[Declaration, ...]:
    """All jobs declared so far, in the order of their declaration."""
    return tuple(_declared.values())


def declared_for(target: Any) -> tuple[Declaration, ...]:
    """The jobs that run this function, Celery task or Django task, in the order of their declaration."""
    if celery_tasks.is_task(target):
        key = target.name
    else:
        key = target.module_path if django_tasks.is_task(target) else functions.key_of(target)
    return tuple(declaration for declaration in _declared.values() if declaration.target == key)


@contextmanager
def isolated() -> Iterator[None]:
    """For tests: within, nothing is declared and no function registered but what is declared within."""
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
    # The same once more is a module loaded again, after a first try that failed half way, say.
    if known is not None and known != declaration:
        raise ValueError(
            f"two jobs named {declaration} are declared by @cron, for {known.target} and for {declaration.target}; "
            "give one of them another name="
        )
    _declared[declaration.key] = declaration


def _registered(target: Any) -> str:
    """The key under which it is a target."""
    if celery_tasks.is_task(target):
        return str(target.name)
    return django_tasks.register(target) if django_tasks.is_task(target) else functions.register(target)


def _own_name(target: Any) -> str:
    name: str | None = target.name if django_tasks.is_task(target) else getattr(target, "__name__", None)
    if not name or name == "<lambda>":
        raise TypeError(f"@cron needs name= for {target!r:.100}, which has no name of its own")
    return name


def _checked(fields: JobFields) -> dict[str, Any]:
    """The fields in the form the job stores; raises TypeError naming the one that cannot be."""
    known = list(JobFields.__annotations__)
    checked: dict[str, Any] = {}
    for field, value in fields.items():
        if field not in known:
            raise TypeError(f"@cron: a job has no field {field!r}{did_you_mean(field, known)}")
        checked[field] = _stored(field, value)
    return checked


def _stored(field: str, value: Any) -> Any:
    if value is None and field in NULLABLE:
        return None
    if field in DURATIONS and not isinstance(value, timedelta):
        number = value if type(value) in (int, float) else 30
        raise TypeError(
            f"@cron: {field}={value!r} is not a timedelta; write {field}=timedelta(seconds={number})"
        )
    if field in INSTANTS and not (isinstance(value, datetime) and value.utcoffset() is not None):
        raise TypeError(f"@cron: {field}={value!r} is not an aware datetime")
    if field in EXCEPTIONS:
        several = [value] if isinstance(value, str | type) else list(value)
        return [_exception_name(field, item) for item in several]
    if field == "alerts":
        return [{key: _in_json(given) for key, given in rule.items()} for rule in value]
    if field == "after":
        return dict(value)
    if field == "tags":
        return [value] if isinstance(value, str) else list(value)
    return value


def _in_json(value: object) -> object:
    return write_duration(value) if isinstance(value, timedelta) else value


def _exception_name(field: str, item: object) -> str:
    if isinstance(item, str):
        return item
    if isinstance(item, type) and issubclass(item, BaseException):
        return (
            item.__qualname__ if item.__module__ == "builtins" else f"{item.__module__}.{item.__qualname__}"
        )
    raise TypeError(f"@cron: {field}: {item!r} is neither an exception class nor the name of one")
