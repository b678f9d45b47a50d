"""``assert_runs_at``: what a schedule yields, held against what its author expects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from datetime import datetime
from itertools import zip_longest
from zoneinfo import ZoneInfo

from django.conf import settings as django_settings

from django_dcron import control
from django_dcron.domain.schedule import has_hash
from django_dcron.models import Job
from django_dcron.models.database import alias_for, database_now
from django_dcron.observability.lookahead import in_words
from django_dcron.testing.setting_time import checked
from django_dcron.testing.subjects import Subject, as_declared, declared

NOTHING = "none"


def assert_runs_at(
    subject: Subject | str,
    expected: Iterable[datetime],
    *,
    after: datetime | None = None,
    timezone: str | None = None,
) -> None:
    """The next occurrences are exactly ``expected``, aware datetimes in their order; none at all if it is empty.

    ``subject``: a job, saved or not; a function or Celery task that ``@cron`` declares one for, as the code declares it; or the text of
    a schedule. ``after``: strictly after this aware datetime; by default after now. ``timezone``: of a text, by default the project's
    ``TIME_ZONE``; of a job, instead of its own. Calendar, start and end count, jitter does not, and a paused job is taken as if it were
    resumed. Raises ``AssertionError``, or ``InvalidSchedule``.
    """
    __tracebackhide__ = True  # pytest shows the line that asked
    job = _job_of(subject, timezone)
    wanted = [checked("expected", at) for at in expected]
    since = database_now(alias_for(Job)) if after is None else checked("after", after)
    found = control.preview(job, max(len(wanted), 1), after=since)
    if found != wanted:
        raise AssertionError(_difference(job, since, wanted, found))


def _job_of(subject: Subject | str, timezone: str | None) -> Job:
    if isinstance(subject, str):
        if has_hash(subject):
            raise ValueError(f"{subject!r}: H is drawn from the name of a job: give the job")
        return Job(schedule=subject, timezone=timezone or django_settings.TIME_ZONE)
    if isinstance(subject, Job):
        job = copy(subject)
    else:
        declarations = declared(subject)
        if len(declarations) > 1:
            names = ", ".join(map(str, declarations))
            raise ValueError(f"{subject!r:.100} is declared as several jobs, {names}: give the saved job")
        job = as_declared(declarations[0])
    job.timezone = timezone or job.timezone
    return job


def _difference(job: Job, since: datetime, wanted: Sequence[datetime], found: Sequence[datetime]) -> str:
    schedule = job.parsed_schedule
    zone = ZoneInfo(schedule.timezone)
    rows = [("expected", "actual", " ")]
    for left, right in zip_longest(wanted, found):
        rows.append((_shown(left, zone), _shown(right, zone), " " if left == right else "!"))
    width = max(len(left) for left, _, _ in rows)
    name = f"job {job}: " if job.name else ""
    words = in_words(schedule)
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
