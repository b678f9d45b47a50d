"""``assert_runs_at``: compares the next occurrences of a schedule with expected times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from datetime import datetime
from itertools import zip_longest
from zoneinfo import ZoneInfo

from django.conf import settings as django_settings

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.lookahead import describe_schedule
from django_dcron.models import Job
from django_dcron.schedules.schedule import has_hash
from django_dcron.testing.manual_clock import utc_time
from django_dcron.testing.subjects import Subject, declarations_of, job_from_declaration

NOTHING = "none"


def assert_runs_at(
    subject: Subject | str,
    expected: Iterable[datetime],
    *,
    after: datetime | None = None,
    timezone: str | None = None,
) -> None:
    """Assert that the next occurrences are exactly ``expected``: aware datetimes, ascending.

    An empty ``expected`` asserts that there are none. ``subject`` is a job, saved or not, a
    function or task with one ``@cron``, or the text of a schedule. ``after`` is an aware datetime,
    by default now. ``timezone`` is the time zone of a text, by default the project's ``TIME_ZONE``,
    and replaces the time zone of a job. Calendar, start and end of the job apply, jitter doesn't. A
    paused job counts as resumed. Raises ``AssertionError`` or ``InvalidSchedule``.
    """
    __tracebackhide__ = True  # pytest shows the caller's line
    job = _job_of(subject, timezone)
    wanted = [utc_time("expected", at) for at in expected]
    since = database_now(alias_for(Job)) if after is None else utc_time("after", after)
    actual = control.preview(job, max(len(wanted), 1), after=since)
    if actual != wanted:
        raise AssertionError(_difference(job, since, wanted, actual))


def _job_of(subject: Subject | str, timezone: str | None) -> Job:
    if isinstance(subject, str):
        if has_hash(subject):
            raise ValueError(
                f"{subject!r}: H depends on the job's name. Pass the job instead of the schedule."
            )
        return Job(schedule=subject, timezone=timezone or django_settings.TIME_ZONE)
    if isinstance(subject, Job):
        job = copy(subject)
    else:
        declarations = declarations_of(subject)
        if len(declarations) > 1:
            names = ", ".join(map(str, declarations))
            raise ValueError(
                f"{subject!r:.100} declares several jobs: {names}. Pass one saved job."
            )
        job = job_from_declaration(declarations[0])
    job.timezone = timezone or job.timezone
    return job


def _difference(
    job: Job, since: datetime, wanted: Sequence[datetime], actual: Sequence[datetime]
) -> str:
    schedule = job.parsed_schedule
    zone = ZoneInfo(schedule.timezone)
    rows = [("expected", "actual", " ")]
    for left, right in zip_longest(wanted, actual):
        rows.append((_shown(left, zone), _shown(right, zone), " " if left == right else "!"))
    width = max(len(left) for left, _, _ in rows)
    name = f"job {job}: " if job.name else ""
    words = describe_schedule(schedule)
    return "\n".join(
        [
            f"{name}{schedule.text}" + (f", {words}" if words else ""),
            f"The next occurrences after {_shown(since, zone)}, in {schedule.timezone}:",
            *(f"{mark} {left:<{width}}  {right}" for left, right, mark in rows),
        ]
    )


def _shown(at: datetime | None, zone: ZoneInfo) -> str:
    if at is None:
        return NOTHING
    local = at.astimezone(zone)
    fraction = f".{local:%f}" if local.microsecond else ""
    return f"{local:%a %Y-%m-%d %H:%M:%S}{fraction}{local:%z}"
