"""Validate a job's definition beyond single fields. Each error is reported for one field."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Set
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from django.utils import translation
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_dcron import targets
from django_dcron.conf import settings
from django_dcron.db import clock
from django_dcron.exceptions import (
    NAIVE_DATETIME,
    InvalidArguments,
    InvalidSchedule,
    InvalidValue,
    UnknownTarget,
)
from django_dcron.models.hidden_characters import hidden_in_label, message_for
from django_dcron.policies.alerting import InvalidRule, read_rules
from django_dcron.policies.chains import ChainCondition
from django_dcron.policies.job_labels import same_job, split_label
from django_dcron.schedules.schedule import parse_schedule
from django_dcron.schedules.timetable import BEGIN, END, Timetable
from django_dcron.utils.control_characters import escape_control_characters
from django_dcron.utils.durations import write_duration
from django_dcron.utils.messages import TOO_LONG

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

    from django_dcron.models.job import Job

LONGEST_JSON = 10_000
"""The maximum number of characters of a column as JSON. Arguments have their own limit,
``DCRON_ARGUMENTS_LIMIT``.
"""
LONGEST_ITEM = 255
"""The maximum number of characters of a tag or an exception name."""
TYPE_NAMES: dict[type, StrOrPromise] = {
    list: gettext_lazy("a JSON list"),
    dict: gettext_lazy("a JSON object"),
}

PAUSE_WITH_END_REFUSED = gettext_lazy(
    "A sync disabled the job, and the end of a pause would enable it. Remove the end of the pause."
)
WAIT_WITH_END_REFUSED = gettext_lazy(
    "The job waits for the handover, and the end of a pause would start it before. Remove the end "
    "of the pause."
)

JSON_EXAMPLES = {
    "args": '["Berlin", 5]',
    "kwargs": '{"city": "Berlin"}',
    "after": '{"import-orders": "succeeded"}',
}
"""An example of each JSON field for error messages."""


def definition_errors(job: Job, invalid: Collection[str] = ()) -> dict[str, str]:
    """Return the problems of ``job`` by field; empty if there are none.

    A check is skipped if it reads a field in ``invalid`` or a field with an earlier error, because
    its error might only follow from the earlier one. No error is returned for a field in
    ``invalid``.
    """
    errors: dict[str, str] = {}
    for reads, check in CHECKS:
        if not reads & {*invalid, *errors}:
            errors |= check(job)
    return {field: text for field, text in errors.items() if field not in invalid}


def _timezone_errors(job: Job) -> dict[str, str]:
    try:
        parse_schedule("@daily", job.timezone)
    except InvalidSchedule as error:
        return {"timezone": error.translate(translation)} | _schedule_errors(job, "UTC")
    return {}


def _schedule_errors(job: Job, timezone: str = "") -> dict[str, str]:
    try:
        parse_schedule(job.schedule, timezone or job.timezone, hash_key=job.hash_key)
    except InvalidSchedule as error:
        return {"schedule": error.translate(translation)}
    return {}


def _calendar_errors(job: Job) -> dict[str, str]:
    """Check that the calendar can be read and that the schedule accepts a calendar."""
    try:
        job.parsed_schedule  # noqa: B018 (reading it parses it)
    except InvalidSchedule as error:
        return {"calendar": error.translate(translation)}
    return {}


def _exhaustion_errors(job: Job) -> dict[str, str]:
    """Require a future occurrence of an enabled job. Otherwise, it would silently never run."""
    if not job.enabled:
        return {}
    now = clock.now()
    start = max(now, job.starts_at - timedelta(microseconds=1)) if job.starts_at else now
    schedule = job.parsed_schedule
    if job.after or schedule.is_never:
        return {}
    timetable = Timetable(schedule, job.starts_at)
    first = timetable.first_after(now)
    if first is None:
        if schedule.at and schedule.at <= now:
            return {
                "schedule": _("%(schedule)s is in the past. Enter a future time.")
                % {"schedule": job.schedule}
            }
        if schedule.calendar and schedule.without_calendar.next_after(start):
            text = _("The calendar excludes all occurrences of %(schedule)s after %(start)s.")
            return {
                "calendar": text
                % {"schedule": job.schedule, "start": start.isoformat(timespec="seconds")}
            }
        return {
            "schedule": _("%(schedule)s has no occurrence after %(start)s.")
            % {"schedule": job.schedule, "start": start.isoformat(timespec="seconds")}
        }
    if job.ends_at and first > job.ends_at and schedule.interval and hasattr(job, "cursor"):
        # Without a start, the interval of a stored job counts from its occurrences.
        counted_from = job.cursor.previous_at or job.cursor.next_at
        first = timetable.first_after(now, counted_from) or first
    if job.ends_at and first > job.ends_at:
        return {
            "ends_at": _("The first occurrence is at %(first)s. Enter this time or a later one.")
            % {"first": first.isoformat()}
        }
    return {}


def _time_range_errors(field: str, job: Job) -> dict[str, str]:
    value = getattr(job, field)
    if value is None:
        return {}
    if value.utcoffset() is None:
        return {field: _(NAIVE_DATETIME) % {"value": value.isoformat()}}
    if BEGIN <= value < END:
        return {}
    return {field: _("The time is out of range. Use a year from 1970 to 2199.")}


def _end_errors(job: Job) -> dict[str, str]:
    if job.starts_at and job.ends_at and job.ends_at < job.starts_at:
        return {"ends_at": _("The end can't be before the start.")}
    return {}


def pause_end_errors(job: Job, stored: Job | None = None) -> dict[str, str]:
    """Refuse the end of a pause for a job that must not start at this end.

    A new reason with the end changes nothing about that for ``stored``, the row.
    """
    if job.enabled or job.paused_until is None:
        return {}
    refusal = why_pause_has_no_end(stored or job)
    return {"paused_until": refusal} if refusal else {}


def why_pause_has_no_end(job: Job) -> str:
    """Return why the end of a pause must not enable the disabled job; empty if it may."""
    if job.is_disabled_by_sync:
        return str(PAUSE_WITH_END_REFUSED)
    return str(WAIT_WITH_END_REFUSED) if job.awaits_handover else ""


def _json_errors(field: str, kind: type, job: Job) -> dict[str, str]:
    value = getattr(job, field)
    if isinstance(value, kind):
        return {}
    return {field: wrong_type(value, kind, JSON_EXAMPLES[field])}


def wrong_type(value: object, kind: type, example: str = "") -> str:
    """Return the message for a JSON value that isn't a ``kind``. Quotes the start of the value."""
    text = _("%(value)s isn't %(allowed)s.")
    if example:
        text = _("%(value)s isn't %(allowed)s, such as %(example)s.")
    return text % {"value": _quote(value), "allowed": TYPE_NAMES[kind], "example": example}


def _quote(value: object) -> str:
    return escape_control_characters(json.dumps(value, ensure_ascii=False))[:80]


def _target_errors(job: Job) -> dict[str, str]:
    try:
        targets.get(job.target)
    except UnknownTarget as error:
        return {"target": error.translate(translation)}
    return {}


def _argument_errors(job: Job) -> dict[str, str]:
    try:
        targets.check_arguments(job.target, job.args, job.kwargs)
    except InvalidArguments as error:
        return {error.field: error.translate(translation)}
    return {}


def _queue_errors(job: Job) -> dict[str, str]:
    try:
        targets.check_queue(job.queue)
    except InvalidValue as error:
        return {"queue": error.problem.translate(translation)}
    return {}


def _name_list_errors(field: str, job: Job) -> dict[str, str]:
    value = getattr(job, field)
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        return {field: _("%(value)s isn't a JSON list of strings.") % {"value": _quote(value)}}
    longest = max(map(len, value), default=0)
    if longest > LONGEST_ITEM:
        return {field: _too_long(longest, LONGEST_ITEM)}
    return {}


def _tag_errors(job: Job) -> dict[str, str]:
    for tag in job.tags:
        if character := hidden_in_label(tag):
            return {"tags": message_for(character)}
    return {}


def _length_errors(field: str, job: Job) -> dict[str, str]:
    value = getattr(job, field)
    length = len(json.dumps(value, ensure_ascii=False)) if value else 0
    return {field: _too_long(length, LONGEST_JSON)} if length > LONGEST_JSON else {}


def _too_long(length: int, most: int) -> str:
    return _(TOO_LONG) % {"count": length, "most": most}


def _backoff_errors(job: Job) -> dict[str, str]:
    if job.retry_backoff_max < job.retry_backoff:
        return {
            "retry_backoff_max": _(
                "The maximum backoff must be at least the retry backoff, %(backoff)s."
            )
            % {"backoff": write_duration(job.retry_backoff, " ")}
        }
    return {}


def _alert_errors(job: Job) -> dict[str, str]:
    if job.alerts is not None:
        try:
            read_rules(job.alerts, settings.ALERT_CHANNELS, of_job=True)
        except InvalidRule as error:
            return {"alerts": error.translate(translation)}
    return {}


def _retention_errors(job: Job) -> dict[str, str]:
    """Require that failed runs are kept at least as long as others.

    The oldest remaining rows show since when the history is complete.
    """
    if job.keep_for and job.keep_failed_for and job.keep_failed_for < job.keep_for:
        return {
            "keep_failed_for": _(
                "Failed runs must be kept at least as long as other runs, %(keep)s."
            )
            % {"keep": write_duration(job.keep_for, " ")}
        }
    return {}


def _after_errors(job: Job) -> dict[str, str]:
    """Check ``after`` without reading other jobs. ``jobs.chains`` checks the rest."""
    if errors := _json_errors("after", dict, job):
        return errors
    for label, on in job.after.items():
        if on not in list(ChainCondition):
            allowed = ", ".join(ChainCondition)
            return {
                "after": _("%(job)s: %(value)s isn't an outcome. Use one of: %(allowed)s.")
                % {"job": label, "value": _quote(on), "allowed": allowed}
            }
        if split_label(label) == (job.namespace, job.name):
            return {"after": _("%(job)s can't run after itself.") % {"job": label}}
    if labels := same_job(job.after):
        text = _("%(first)s and %(second)s are the same job. Name it once.")
        return {"after": text % {"first": labels[0], "second": labels[1]}}
    return {}


CHECKS: tuple[tuple[Set[str], Callable[[Job], dict[str, str]]], ...] = (
    ({"timezone"}, _timezone_errors),
    ({"schedule", "timezone"}, _schedule_errors),
    *(
        ({field}, partial(_time_range_errors, field))
        for field in ("starts_at", "ends_at", "paused_until")
    ),
    ({"starts_at", "ends_at"}, _end_errors),
    ({"enabled", "pause_reason", "paused_until"}, pause_end_errors),
    ({"schedule", "timezone", "calendar", "calendar_policy"}, _calendar_errors),
    *(
        ({field}, partial(_length_errors, field))
        for field in ("after", "retry_on", "never_retry_on", "tags", "alerts")
    ),
    ({"namespace", "name", "after"}, _after_errors),
    (
        {"schedule", "timezone", "calendar", "calendar_policy", "starts_at", "ends_at", "after"},
        _exhaustion_errors,
    ),
    ({"target"}, _target_errors),
    ({"args"}, partial(_json_errors, "args", list)),
    ({"kwargs"}, partial(_json_errors, "kwargs", dict)),
    ({"target", "args", "kwargs"}, _argument_errors),
    ({"queue"}, _queue_errors),
    *(
        ({field}, partial(_name_list_errors, field))
        for field in ("retry_on", "never_retry_on", "tags")
    ),
    ({"tags"}, _tag_errors),
    ({"retry_backoff", "retry_backoff_max"}, _backoff_errors),
    ({"keep_for", "keep_failed_for"}, _retention_errors),
    ({"alerts"}, _alert_errors),
)
"""Each entry: the fields that a check reads, and the check."""
