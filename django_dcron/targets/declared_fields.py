"""The fields of a job that ``@cron`` accepts, and their validation.

No model is imported, so a declaration needs no database. Values are converted to those of the job's
fields: durations to ``timedelta``, exceptions to their names. ``jobs.python_values`` converts the
values of other jobs in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from types import NoneType
from typing import Any, Literal, TypedDict, get_args, get_type_hints

from django.utils.functional import Promise

from django_dcron.policies.alerting import rule_kinds
from django_dcron.policies.chains import ChainCondition
from django_dcron.policies.job_labels import same_job
from django_dcron.policies.misfire import MisfirePolicy
from django_dcron.policies.overlap import OverlapPolicy
from django_dcron.policies.retry import exception_name
from django_dcron.schedules.calendar import ExclusionPolicy
from django_dcron.utils.durations import write_duration
from django_dcron.utils.messages import gettext_noop as _
from django_dcron.utils.suggestions import did_you_mean

_ATTEMPTS = _("max_attempts, which includes the first attempt")
_INTERVAL = _('the schedule "@every 5m"')
_ONCE = _('the schedule "@at 2026-12-01T09:00"')
_OPPOSITE = _("enabled, with the opposite value")
OTHER_NAMES = {
    "active": "enabled",
    "allow_overlap": "overlap_policy",
    "backoff": "retry_backoff",
    "coalesce": "misfire_policy",
    "default_retry_delay": "retry_backoff",
    "depends_on": "after",
    "disabled": _OPPOSITE,
    "email": "alerts",
    "every": _INTERVAL,
    "expires": "start_deadline",
    "func": "target",
    "interval": _INTERVAL,
    "max_instances": "overlap_policy",
    "max_retries": _ATTEMPTS,
    "max_retry": _ATTEMPTS,
    "no_overlap": "overlap_policy",
    "notify": "alerts",
    "one_off": _ONCE,
    "paused": _OPPOSITE,
    "retries": _ATTEMPTS,
    "retry": _ATTEMPTS,
    "retry_delay": "retry_backoff",
    "retry_wait": "retry_backoff",
    "seconds": _INTERVAL,
    "soft_time_limit": "timeout",
    "task": "target",
    "time_limit": "timeout",
    "timeout_seconds": "timeout",
    "tz": "timezone",
}
"""What to use instead of names in other schedulers, such as Celery and APScheduler."""
_DECORATOR = "@cron as a decorator of the function or task"

ExceptionNames = Iterable[type[BaseException] | str] | type[BaseException] | str
Duration = timedelta | float
"""A number is in seconds."""


class JobFields(TypedDict, total=False):
    """The fields of a job that ``@cron`` accepts.

    A field that isn't declared has its default. A sync keeps the fields that users have changed.
    """

    description: str
    timezone: str | None
    starts_at: datetime | None
    ends_at: datetime | None
    after: Mapping[str, str]
    calendar: str | None
    calendar_policy: ExclusionPolicy | Literal["skip", "next_day", "window_end"]
    jitter: Duration
    enabled: bool
    misfire_policy: MisfirePolicy | Literal["skip", "run_latest", "run_all"]
    misfire_grace: Duration
    catchup_limit: int
    overlap_policy: (
        OverlapPolicy | Literal["allow", "skip", "queue_one", "queue_all", "cancel_running"]
    )
    limit: str | None
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


class JobValues(JobFields, total=False):
    """The fields of a job that ``control.update_or_create`` accepts."""

    target: Any
    """A task, a function with ``@cron``, or the key of a target, such as ``command:NAME``."""
    args: Iterable[Any]
    kwargs: Mapping[str, Any]
    schedule: str


_HINTS = get_type_hints(JobFields)


def _fields_of(kind: Any) -> set[str]:
    """Return the fields that accept this type."""
    return {field for field, hint in _HINTS.items() if kind in (hint, *get_args(hint))}


DURATIONS = _fields_of(timedelta)
INSTANTS = _fields_of(datetime) | {"paused_until"}
EXCEPTIONS = _fields_of(ExceptionNames)
WHOLE_NUMBERS = _fields_of(int)
NUMBERS = _fields_of(float) - DURATIONS
FLAGS = _fields_of(bool)
NULLABLE = _fields_of(NoneType)
CHOICES: Mapping[str, tuple[str, ...]] = {
    "calendar_policy": tuple(each.value for each in ExclusionPolicy),
    "misfire_policy": tuple(each.value for each in MisfirePolicy),
    "overlap_policy": tuple(each.value for each in OverlapPolicy),
}
TEXTS = {field for field, hint in _HINTS.items() if hint in (str, str | None)} | {*CHOICES}
OUTCOMES = tuple(each.value for each in ChainCondition)
"""The outcomes that a declaration may require of a job in ``after``."""
SIMILAR_CHOICE = 0.6
"""The similarity above which a choice is suggested: lower than for names, as choices are few."""
EXAMPLE_RULE = {"on": "failed", "to": ["ops"]}


def validate_declared_fields(fields: JobFields) -> dict[str, Any]:
    """Return the fields in stored form.

    Raises ``TypeError`` for an unknown field or a value of the wrong type, and ``ValueError`` for
    an invalid choice.
    """
    checked: dict[str, Any] = {}
    for field, value in fields.items():
        try:
            require_known_field(field, JobFields.__annotations__)
            checked[field] = stored_value_of(field, value)
        except TypeError as error:
            raise TypeError(f"@cron: {error}") from None
        except ValueError as error:
            raise ValueError(f"@cron: {error}") from None
    return checked


def field_meant_by(name: str) -> str:
    """Return the field that a name in another scheduler means, or "" if there is none."""
    hint = OTHER_NAMES.get(name, "")
    return "schedule" if hint.startswith("the schedule ") else hint.partition(",")[0]


def require_known_field(field: str, known: Iterable[str]) -> None:
    """Raise ``TypeError``, with a similar name, if the field isn't known."""
    if field not in (known := list(known)):
        hint = OTHER_NAMES.get(field)
        if hint == "target" and hint not in known:
            hint = _DECORATOR
        near = f" Use {hint}." if hint else did_you_mean(field, known)
        near = near or f" Fields: {', '.join(known)}."
        raise TypeError(f"unknown field {field!r}.{near}")


def stored_value_of(field: str, value: Any) -> Any:
    """Return the value in stored form. Raises ``TypeError`` or ``ValueError``."""
    if value is None and field in NULLABLE:
        return None
    if field in DURATIONS:
        return _duration(field, value)
    if field in INSTANTS and not (isinstance(value, datetime) and value.utcoffset() is not None):
        raise TypeError(
            f"{field}={value!r} is not an aware datetime. Use a datetime "
            "with a time zone, such as datetime(2026, 12, 1, 9, tzinfo=UTC)."
        )
    if field in EXCEPTIONS:
        return [_exception_name(field, item) for item in _listed(field, value)]
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
        return _listed(field, value)
    return value


def _listed(field: str, value: Any) -> list[Any]:
    """Return one or several tags or exceptions as a list."""
    if isinstance(value, str | type):
        return [value]
    if isinstance(value, Mapping) or not isinstance(value, Iterable):
        raise TypeError(f"{field}={value!r:.100} isn't a list. Use {field}=[...].")
    return list(value)


def _duration(field: str, value: object) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):
            return timedelta(seconds=value)
    raise TypeError(
        f"{field}={value!r:.100} is not a duration. Use a number of seconds or a timedelta, "
        f"such as {field}=timedelta(seconds=30)."
    )


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
            raise TypeError(f"{field}={value!r:.100} is not {name}.{allowed}")


def _check_choice(what: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        near = did_you_mean(value, choices, SIMILAR_CHOICE) if isinstance(value, str) else ""
        raise ValueError(
            f"{what}{value!r:.100} is not a choice.{near} Allowed: {_quoted(choices)}."
        )


def _quoted(choices: Sequence[str]) -> str:
    return ", ".join(repr(choice) for choice in choices)


def _stored_after(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        example = {value if isinstance(value, str) else "import-orders": OUTCOMES[0]}
        raise TypeError(
            f"after={value!r:.100} is not a dict from job to outcome, such as "
            f"{example}. Outcomes: {_quoted(OUTCOMES)}."
        )
    for job, outcome in value.items():
        if not isinstance(job, str):
            raise TypeError(f"after contains {job!r:.100}. Use the names of jobs.")
        _check_choice(f"after: outcome of {job!r:.100}: ", outcome, OUTCOMES)
    if labels := same_job(value):
        raise ValueError(
            f"after: {labels[0]!r:.100} and {labels[1]!r:.100} are the same job. Name it once."
        )
    return dict(value)


def _stored_alerts(value: object) -> list[dict[str, Any]]:
    rules = list(value) if isinstance(value, Iterable) and not isinstance(value, str) else None
    if rules is None or isinstance(value, Mapping):
        raise TypeError(
            f"alerts={value!r:.100} isn't a list of rules such as [{EXAMPLE_RULE}]. "
            f"Allowed for 'on': {_quoted(rule_kinds(of_job=True))}."
        )
    for number, rule in enumerate(rules, start=1):
        if not isinstance(rule, Mapping):
            raise TypeError(
                f"alerts: rule {number} is {rule!r:.100}, not a dict such as {EXAMPLE_RULE}."
            )
        _check_choice(f"alerts: rule {number}: on=", rule.get("on"), rule_kinds(of_job=True))
    return [{key: _in_json(given) for key, given in rule.items()} for rule in rules]


def _in_json(value: object) -> object:
    return write_duration(value) if isinstance(value, timedelta) else value


def _exception_name(field: str, item: object) -> str:
    if isinstance(item, str):
        return item
    if isinstance(item, type) and issubclass(item, BaseException):
        return exception_name(item)
    raise TypeError(f"{field} contains {item!r}. Use exception classes or their names.")
