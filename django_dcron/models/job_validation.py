"""What must hold of a job's definition beyond its single fields. Each problem is an error on the field it is about."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Set
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from django.utils import translation
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_dcron import targets
from django_dcron.conf import settings
from django_dcron.domain import clock
from django_dcron.domain.alerting import InvalidRule, read_rules
from django_dcron.domain.chains import On, key_of
from django_dcron.domain.durations import write_duration
from django_dcron.domain.schedule import parse_schedule
from django_dcron.domain.timetable import BEGIN, END
from django_dcron.exceptions import InvalidArguments, InvalidSchedule, InvalidValue, UnknownTarget

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

    from django_dcron.models.job import Job

NAME = re.compile(r"^[^:\uff1a]+[:\uff1a]\s*")
"""That a message begins with; a translation may have a colon of its own."""
TYPE_NAMES: dict[type, StrOrPromise] = {
    list: gettext_lazy("a JSON list"),
    dict: gettext_lazy("a JSON object"),
}


def definition_errors(job: Job, unsound: Collection[str] = ()) -> dict[str, str]:
    """The problems of ``job``, by field; empty when there are none.

    A check that reads a field of ``unsound``, or one that an earlier check found fault with, is left out: of one
    mistake the errors that follow from it say nothing new.
    """
    errors: dict[str, str] = {}
    for reads, check in CHECKS:
        if not reads & {*unsound, *errors}:
            errors |= check(job)
    return errors


def _timezone_errors(job: Job) -> dict[str, str]:
    try:
        parse_schedule("@daily", job.timezone)
    except InvalidSchedule as error:
        return _at("timezone", error)
    return {}


def _schedule_errors(job: Job) -> dict[str, str]:
    try:
        parse_schedule(job.schedule, job.timezone, hash_key=job.hash_key)
    except InvalidSchedule as error:
        return _at("schedule", error)
    return {}


def _excluded_errors(job: Job) -> dict[str, str]:
    """Of a calendar that cannot be read, or a schedule that takes none."""
    try:
        job.parsed_schedule  # noqa: B018 (reading it parses it)
    except InvalidSchedule as error:
        return _at("calendar", error)
    return {}


def _at(field: str, error: InvalidSchedule) -> dict[str, str]:
    """Without the field's name where the message begins with it: whoever shows it at the field names that by itself."""
    said = error.said(translation)
    return {field: NAME.sub("", said, count=1) if str(error).startswith(f"{field}: ") else said}


def _exhausted(job: Job) -> dict[str, str]:
    """An enabled job must have something to come, or it would never run and nobody would know why."""
    if not job.enabled:
        return {}
    now = clock.now()
    start = max(now, job.starts_at - timedelta(microseconds=1)) if job.starts_at else now
    schedule = job.parsed_schedule
    if job.after or schedule.is_never:
        return {}
    first = schedule.next_after(start)
    if first is None:
        if schedule.at and schedule.at <= now:
            return {"schedule": _("%(schedule)s is in the past.") % {"schedule": job.schedule}}
        if schedule.calendar and schedule.without_calendar.next_after(start):
            text = _("It leaves no occurrence of %(schedule)s after %(start)s.")
            return {
                "calendar": text % {"schedule": job.schedule, "start": start.isoformat(timespec="seconds")}
            }
        return {
            "schedule": _("%(schedule)s never fires after %(start)s.")
            % {"schedule": job.schedule, "start": start.isoformat(timespec="seconds")}
        }
    if job.ends_at and first > job.ends_at:
        return {
            "ends_at": _("The first occurrence, %(first)s, is after this.") % {"first": first.isoformat()}
        }
    return {}


def _calendar_errors(field: str, job: Job) -> dict[str, str]:
    value = getattr(job, field)
    if value is None or BEGIN <= value < END:
        return {}
    return {field: _("Use a time in the years 1970 to 2199.")}


def _end_errors(job: Job) -> dict[str, str]:
    if job.starts_at and job.ends_at and job.ends_at < job.starts_at:
        return {"ends_at": _("It is before the start.")}
    return {}


def _json_errors(field: str, kind: type, job: Job) -> dict[str, str]:
    value = getattr(job, field)
    if isinstance(value, kind):
        return {}
    return {
        field: _("%(value)s is not %(allowed)s.") % {"value": json.dumps(value), "allowed": TYPE_NAMES[kind]}
    }


def _target_errors(job: Job) -> dict[str, str]:
    try:
        targets.get(job.target)
    except UnknownTarget as error:
        return {"target": error.said(translation)}
    return {}


def _argument_errors(job: Job) -> dict[str, str]:
    try:
        targets.check_arguments(job.target, job.args, job.kwargs)
    except InvalidArguments as error:
        return {error.field: error.said(translation)}
    return {}


def _queue_errors(job: Job) -> dict[str, str]:
    try:
        targets.check_queue(job.queue)
    except InvalidValue as error:
        return {"queue": f"{error.problem.said(translation)}."}
    return {}


def _name_list_errors(field: str, job: Job) -> dict[str, str]:
    value = getattr(job, field)
    if isinstance(value, list) and all(isinstance(item, str) and item for item in value):
        return {}
    return {field: _("%(value)s is not a JSON list of texts.") % {"value": json.dumps(value)}}


def _backoff_errors(job: Job) -> dict[str, str]:
    if job.retry_backoff_max < job.retry_backoff:
        return {
            "retry_backoff_max": _("It is shorter than the first backoff, %(backoff)s.")
            % {"backoff": job.retry_backoff}
        }
    return {}


def _alert_errors(job: Job) -> dict[str, str]:
    if job.alerts is not None:
        try:
            read_rules(job.alerts, settings.ALERT_CHANNELS, of_job=True)
        except InvalidRule as error:
            return {"alerts": error.said(translation)}
    return {}


def _retention_errors(job: Job) -> dict[str, str]:
    """Failed runs are kept as long as others at least: the oldest rows that are left tell how far back the history is whole."""
    if job.keep_for and job.keep_failed_for and job.keep_failed_for < job.keep_for:
        return {
            "keep_failed_for": _(
                "It is shorter than for other runs, %(keep)s. Failed runs are kept at least as long."
            )
            % {"keep": write_duration(job.keep_for)}
        }
    return {}


def _after_errors(job: Job) -> dict[str, str]:
    """What can be told without the other jobs; the rest is told by whoever saves it (``chaining``)."""
    if errors := _json_errors("after", dict, job):
        return errors
    for label, on in job.after.items():
        if on not in list(On):
            allowed = ", ".join(On)
            return {
                "after": _("%(job)s: %(value)s is not an end of a run (allowed: %(allowed)s).")
                % {"job": label, "value": json.dumps(on), "allowed": allowed}
            }
        if key_of(label) == (job.namespace, job.name):
            return {"after": _("%(job)s cannot come after itself.") % {"job": label}}
    return {}


CHECKS: tuple[tuple[Set[str], Callable[[Job], dict[str, str]]], ...] = (
    ({"timezone"}, _timezone_errors),
    ({"schedule", "timezone"}, _schedule_errors),
    *(({field}, partial(_calendar_errors, field)) for field in ("starts_at", "ends_at", "paused_until")),
    ({"starts_at", "ends_at"}, _end_errors),
    ({"schedule", "timezone", "calendar", "calendar_policy"}, _excluded_errors),
    ({"namespace", "name", "after"}, _after_errors),
    ({"schedule", "timezone", "calendar", "calendar_policy", "starts_at", "ends_at", "after"}, _exhausted),
    ({"target"}, _target_errors),
    ({"args"}, partial(_json_errors, "args", list)),
    ({"kwargs"}, partial(_json_errors, "kwargs", dict)),
    ({"target", "args", "kwargs"}, _argument_errors),
    ({"queue"}, _queue_errors),
    *(({field}, partial(_name_list_errors, field)) for field in ("retry_on", "never_retry_on", "tags")),
    ({"retry_backoff", "retry_backoff_max"}, _backoff_errors),
    ({"keep_for", "keep_failed_for"}, _retention_errors),
    ({"alerts"}, _alert_errors),
)
"""What each check reads, and the check."""
