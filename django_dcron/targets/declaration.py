"""Declare jobs in code: ``@cron`` registers the target and the job, ``sync`` writes the job.

A declaration needs no database and imports no models, so any module may contain it. These errors
are raised at import: an invalid schedule or time zone, an unknown field, a field of the wrong type,
a duplicate name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import NoneType
from typing import Any, TypedDict, TypeVar, Unpack, get_args, get_type_hints

from django.utils.functional import Promise

from django_dcron.exceptions import InvalidSchedule
from django_dcron.policies.alerting import kinds
from django_dcron.policies.chains import ChainCondition
from django_dcron.policies.misfire import MisfirePolicy
from django_dcron.policies.overlap import OverlapPolicy
from django_dcron.policies.retry import exception_name
from django_dcron.schedules.calendar import ExclusionPolicy
from django_dcron.schedules.schedule import parse_schedule
from django_dcron.targets import celery_tasks, django_tasks, functions
from django_dcron.utils.durations import write_duration
from django_dcron.utils.suggestions import did_you_mean

OTHER_NAMES = {
    "coalesce": "misfire_policy",
    "expires": "start_deadline",
    "max_instances": "overlap_policy",
    "max_retries": "max_attempts, which includes the first attempt",
    "one_off": 'the schedule "@at 2026-12-01T09:00"',
    "paused": "enabled",
    "default_retry_delay": "retry_backoff",
    "retries": "max_attempts, which includes the first attempt",
    "retry_delay": "retry_backoff",
    "retry_wait": "retry_backoff",
    "soft_time_limit": "timeout",
    "time_limit": "timeout",
    "tz": "timezone",
}
"""What to use instead of the names that Celery and APScheduler have."""

F = TypeVar("F")
"""A function or a task. A Django task isn't callable."""
ExceptionNames = Iterable[type[BaseException] | str] | type[BaseException] | str


Duration = timedelta | float
"""A number is in seconds."""


class JobFields(TypedDict, total=False):
    """The fields of a job that ``@cron`` accepts.

    Fields that aren't declared have their defaults. Users may change undeclared fields.
    """

    description: str
    timezone: str | None
    starts_at: datetime | None
    ends_at: datetime | None
    after: Mapping[str, str]
    calendar: str | None
    calendar_policy: str
    jitter: Duration
    enabled: bool
    misfire_policy: str
    misfire_grace: Duration
    catchup_limit: int
    overlap_policy: str
    start_deadline: Duration | None
    queue: str
    priority: int | None
    timeout: Duration | None
    max_attempts: int
    retry_backoff: Duration
    retry_backoff_factor: float
    retry_backoff_max: Duration
    retry_jitter: float
    retry_on: ExceptionNames
    never_retry_on: ExceptionNames
    pause_after_failures: int | None
    alerts: Iterable[Mapping[str, Any]] | None
    keep_for: Duration | None
    keep_failed_for: Duration | None
    keep_runs: int | None
    tags: Iterable[str]


_HINTS = get_type_hints(JobFields)


def _fields_of(kind: Any) -> set[str]:
    """Return the fields that accept this type."""
    return {field for field, hint in _HINTS.items() if kind in (hint, *get_args(hint))}


DURATIONS = _fields_of(timedelta)
INSTANTS = _fields_of(datetime)
EXCEPTIONS = _fields_of(ExceptionNames)
TEXTS = {field for field, hint in _HINTS.items() if hint in (str, str | None)}
WHOLE_NUMBERS = _fields_of(int)
NUMBERS = _fields_of(float) - DURATIONS
FLAGS = _fields_of(bool)
NULLABLE = _fields_of(NoneType)
CHOICES: Mapping[str, tuple[str, ...]] = {
    "calendar_policy": tuple(each.value for each in ExclusionPolicy),
    "misfire_policy": tuple(each.value for each in MisfirePolicy),
    "overlap_policy": tuple(each.value for each in OverlapPolicy),
}
CONDITIONS = tuple(each.value for each in ChainCondition)
"""How a job in ``after`` must end."""
SIMILAR_CHOICE = 0.6
"""The least similarity of a suggested choice, lower than that of names, because choices are few."""
EXAMPLE_RULE = {"on": "failed", "to": ["ops"]}


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
    """Declare a job that runs the decorated function, Celery task or Django task.

    ``manage.py dcron sync`` creates the job::

        @cron(
            "*/5 * * * *",
            timeout=timedelta(minutes=2),
            retry_on=(ConnectionError,),
            max_attempts=3,
        )
        def fetch_rates(): ...

    ``name`` is the function's name by default. To run one function on several schedules, stack
    decorators with different names. ``args`` and ``kwargs`` must be JSON. Durations are
    ``timedelta`` or numbers of seconds, times are aware ``datetime``. The decorated function can be
    called as before.

    Raises ``InvalidSchedule``.
    Raises ``TypeError`` for an unknown field, a value of the wrong type or an invalid target.
    Raises ``ValueError`` for a second job of the same name, or a value that isn't a valid choice.
    """
    if not isinstance(schedule, str):
        raise TypeError(_not_a_schedule(schedule))
    declared = _validate_fields(fields)
    positional = list(_iterable("args", args))
    by_name = dict(_mapping("kwargs", {} if kwargs is None else kwargs))

    def declare(target: F) -> F:
        job = name or _own_name(target)
        try:
            zone = declared.get("timezone") or "UTC"
            parse_schedule(schedule, zone, hash_key=f"{namespace}/{job}")
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
    if celery_tasks.is_celery_task(target):
        key = target.name
    else:
        key = (
            target.module_path
            if django_tasks.is_django_task(target)
            else functions.function_key_of(target)
        )
    return tuple(declaration for declaration in _declared.values() if declaration.target == key)


@contextmanager
def isolated() -> Iterator[None]:
    """For tests: start without declarations and registered targets, and restore them afterwards."""
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


def _not_a_schedule(value: object) -> str:
    example = "*/5 * * * *"
    if isinstance(value, timedelta) and value > timedelta():
        example = f"@every {write_duration(value)}"
    return f'@cron: the first argument must be a schedule such as "{example}", not {value!r:.100}'


def _validate_fields(fields: JobFields) -> dict[str, Any]:
    """Return the fields in stored form. Raises ``TypeError``, which names an invalid field."""
    known = list(JobFields.__annotations__)
    checked: dict[str, Any] = {}
    for field, value in fields.items():
        if field not in known:
            hint = OTHER_NAMES.get(field)
            near = f" Use {hint}." if hint else did_you_mean(field, known)
            near = near or f" Fields: {', '.join(known)}."
            raise TypeError(f"@cron: unknown field {field!r}.{near}")
        checked[field] = _stored_value(field, value)
    return checked


def _stored_value(field: str, value: Any) -> Any:
    if value is None and field in NULLABLE:
        return None
    if field in DURATIONS:
        return _duration(field, value)
    if field in INSTANTS and not (isinstance(value, datetime) and value.utcoffset() is not None):
        raise TypeError(
            f"@cron: {field}={value!r} is not an aware datetime. Use a datetime "
            "with a time zone, such as datetime(2026, 12, 1, 9, tzinfo=UTC)."
        )
    if field in EXCEPTIONS:
        several = [value] if isinstance(value, str | type) else list(value)
        return [_exception_name(field, item) for item in several]
    if field in TEXTS and isinstance(value, Promise):
        value = str(value)  # ``gettext_lazy``
    _check_type(field, value)
    if field in CHOICES:
        _check_choice(f"{field}=", value, CHOICES[field])
    if field == "after":
        return _stored_after(value)
    if field == "alerts":
        return _stored_alerts(value)
    if field == "tags":
        return [value] if isinstance(value, str) else list(value)
    return value


def _duration(field: str, value: object) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):
            return timedelta(seconds=value)
    raise TypeError(
        f"@cron: {field}={value!r:.100} is not a duration. Use a number of seconds or a timedelta, "
        f"such as {field}=timedelta(seconds=30)."
    )


def _iterable(field: str, value: object) -> Iterable[Any]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise TypeError(f"@cron: {field}={value!r:.100} isn't a list. Use {field}=[...].")
    return value


def _mapping(field: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(
            f'@cron: {field}={value!r:.100} is not a dict. Use {field}={{"name": ...}}.'
        )
    return value


def _check_type(field: str, value: Any) -> None:
    kinds: tuple[tuple[set[str], type | tuple[type, ...], str], ...] = (
        (TEXTS, str, "text"),
        (WHOLE_NUMBERS, int, "a whole number"),
        (NUMBERS, (int, float), "a number"),
        (FLAGS, bool, "True or False"),
    )
    for fields, kind, name in kinds:
        is_flag = isinstance(value, bool)
        if field in fields and (not isinstance(value, kind) or (is_flag and kind is not bool)):
            allowed = f" Allowed: {_quoted(CHOICES[field])}." if field in CHOICES else ""
            raise TypeError(f"@cron: {field}={value!r:.100} is not {name}.{allowed}")


def _check_choice(what: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        near = did_you_mean(value, choices, SIMILAR_CHOICE) if isinstance(value, str) else ""
        raise ValueError(
            f"@cron: {what}{value!r:.100} is not a choice.{near} Allowed: {_quoted(choices)}."
        )


def _quoted(choices: Sequence[str]) -> str:
    return ", ".join(repr(choice) for choice in choices)


def _stored_after(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        example = {value if isinstance(value, str) else "import-orders": CONDITIONS[0]}
        raise TypeError(
            f"@cron: after={value!r:.100} is not a dict from job to condition, such as "
            f"{example}. Conditions: {_quoted(CONDITIONS)}."
        )
    for job, condition in value.items():
        if not isinstance(job, str):
            raise TypeError(f"@cron: after contains {job!r:.100}. Use the names of jobs.")
        _check_choice(f"after: the condition for {job!r:.100} is wrong: ", condition, CONDITIONS)
    return dict(value)


def _stored_alerts(value: object) -> list[dict[str, Any]]:
    rules = list(value) if isinstance(value, Iterable) and not isinstance(value, str) else None
    if rules is None or isinstance(value, Mapping):
        raise TypeError(
            f"@cron: alerts={value!r:.100} isn't a list of rules such as [{EXAMPLE_RULE}]. "
            f"Allowed for 'on': {_quoted(kinds(of_job=True))}."
        )
    for number, rule in enumerate(rules, start=1):
        if not isinstance(rule, Mapping):
            raise TypeError(
                f"@cron: alerts: rule {number} is {rule!r:.100}, not a dict such as {EXAMPLE_RULE}."
            )
        _check_choice(f"alerts: rule {number}: on=", rule.get("on"), kinds(of_job=True))
    return [{key: _in_json(given) for key, given in rule.items()} for rule in rules]


def _in_json(value: object) -> object:
    return write_duration(value) if isinstance(value, timedelta) else value


def _exception_name(field: str, item: object) -> str:
    if isinstance(item, str):
        return item
    if isinstance(item, type) and issubclass(item, BaseException):
        return exception_name(item)
    raise TypeError(f"@cron: {field} contains {item!r}. Use exception classes or their names.")
