"""Preview a job definition, saved or not: description, next occurrences and cautions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

from django.utils import translation
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_dcron.diagnosis.load import SPREAD, count_jobs_starting_in, in_every_minute
from django_dcron.diagnosis.scope import EVERYTHING, Scope
from django_dcron.exceptions import InvalidSchedule
from django_dcron.jobs import placement
from django_dcron.jobs.pausing import END_FAILED
from django_dcron.jobs.preview import interval_phase, list_occurrences
from django_dcron.models import Job
from django_dcron.policies.chains import ChainCondition
from django_dcron.schedules.clock_changes import ClockChange, Effect, clock_changes
from django_dcron.schedules.crowding import hash_form
from django_dcron.schedules.describe import describe
from django_dcron.schedules.rule_text import MACROS
from django_dcron.schedules.schedule import Schedule, has_hash
from django_dcron.schedules.timetable import END, MICROSECOND, Timetable
from django_dcron.utils.messages import TranslatableText

OCCURRENCES = 10
CLOCK_CHANGES_SHOWN = 2
"""Most zones have two changes a year."""
YEAR = timedelta(weeks=53)
"""53 weeks: a change on the last Sunday of a month recurs after 52 or 53 weeks."""
SHORT_GAP = timedelta(seconds=10)
"""Shorter gaps between occurrences cause a caution."""
CROWDED_FROM = 40
"""If at least this many other jobs start in the same minute, there is a caution."""

_END_FAILED = re.compile(re.escape(END_FAILED).replace(re.escape("%(error)s"), r"(?P<error>\w+)"))


class CautionCode(StrEnum):
    NEVER_FIRES = "never_fires"
    ENDS_SOON = "ends_soon"
    CLOCK_CHANGE = "clock_change"
    FREQUENT = "frequent"
    CROWDED_MINUTE = "crowded_minute"
    UNNAMED = "unnamed"
    EVERY_DATE_COUNTS = "every_date_counts"


@dataclass(frozen=True, slots=True)
class Caution:
    """A hint about a valid definition that may not be what the user intended."""

    code: CautionCode
    message: str


@dataclass(frozen=True, slots=True)
class Occurrence:
    at: datetime
    """UTC."""
    local: datetime
    """In the schedule's time zone."""
    gap: timedelta | None
    """The time since the previous occurrence; None for the first."""


@dataclass(frozen=True, slots=True)
class Lookahead:
    words: str
    """The schedule in words; empty if it can't be described."""
    zone: str
    occurrences: tuple[Occurrence, ...]
    cautions: tuple[Caution, ...]
    counts_from_saving: bool
    """Whether an interval counts from the time the job is saved.

    The occurrences shift until then.
    """

    @property
    def shortest_gap(self) -> timedelta | None:
        return min(
            (occurrence.gap for occurrence in self.occurrences if occurrence.gap), default=None
        )


def look_ahead(
    job: Job, count: int = OCCURRENCES, *, after: datetime | None = None, scope: Scope = EVERYTHING
) -> Lookahead:
    """Preview the job as if it were enabled.

    ``after`` is an aware time to use instead of now. ``scope`` limits the other jobs that a caution
    may count. The work is bounded, with at most three queries. Raises ``InvalidSchedule``.
    """
    timetable = placement.timetable_of(job)
    schedule = timetable.schedule
    phase = interval_phase(job, timetable)
    found = list_occurrences(timetable, count, after, phase)
    zone = ZoneInfo(schedule.timezone)
    gaps = [None, *(later - earlier for earlier, later in pairwise(found))]
    occurrences = tuple(
        Occurrence(at, at.astimezone(zone), gap) for at, gap in zip(found, gaps, strict=False)
    )
    return Lookahead(
        words=describe_schedule_of(job, schedule),
        zone=schedule.timezone,
        occurrences=occurrences,
        cautions=tuple(_cautions(job, timetable, occurrences, count, scope)),
        counts_from_saving=schedule.interval is not None
        and job.starts_at is None
        and phase is None
        and (job.enabled or job.pk is None),
    )


def describe_schedule(schedule: Schedule) -> str:
    """Describe the schedule in the active language."""
    try:
        return describe(schedule, translation)
    except Exception:  # A schedule without a description must not break the page.
        return ""


def describe_schedule_of(job: Job, schedule: Schedule) -> str:
    """Describe the job's schedule in the active language, or its chain if it has no occurrences."""
    if not only_follows(job, schedule):
        return describe_schedule(schedule)
    texts = {
        ChainCondition.SUCCEEDED: _("After %(job)s succeeds"),
        ChainCondition.FAILED: _("After %(job)s fails"),
        ChainCondition.ENDED: _("After %(job)s ends"),
    }
    if len(job.after) == 1:
        ((label, on),) = job.after.items()
        for condition, text in texts.items():
            if condition == on:
                return text % {"job": label}
    return _("After other jobs")


def only_follows(job: Job, schedule: Schedule) -> bool:
    """Return whether the job runs after other jobs and has no occurrences."""
    # A form may contain other JSON.
    return schedule.is_never and bool(job.after) and isinstance(job.after, dict)


def translate_problem(job: Job, stored: str) -> str:
    """Return the stored ``Cursor.problem`` in the active language.

    The stored text is English. It is translated only if the job's schedule still has the same
    problem, or if it says why a pause can't end.
    """
    if failed := _END_FAILED.fullmatch(stored):
        return TranslatableText(END_FAILED, error=failed["error"]).translate(translation)
    if stored:
        try:
            job.parsed_schedule  # noqa: B018 (reading it parses it)
        except InvalidSchedule as error:
            if str(error) == stored:
                return error.translate(translation)
    return stored


def _cautions(
    job: Job, timetable: Timetable, occurrences: tuple[Occurrence, ...], count: int, scope: Scope
) -> Iterator[Caution]:
    schedule = timetable.schedule
    if schedule.is_never:
        return
    if not occurrences:
        yield Caution(CautionCode.NEVER_FIRES, _("The schedule has no further occurrence."))
        return
    if len(occurrences) < count and schedule.at is None and _ends_after(occurrences[-1], timetable):
        left = len(occurrences)
        text = ngettext(
            "The schedule ends soon: %(left)d occurrence left.",
            "The schedule ends soon: %(left)d occurrences left.",
            left,
        )
        yield Caution(CautionCode.ENDS_SOON, text % {"left": left})
    if has_hash(schedule.text) and not job.name:
        text = _("H depends on the job's name. These times change when you enter the name.")
        yield Caution(CautionCode.UNNAMED, text)
    if schedule.counts_every_date:
        text = _(
            "The calendar excludes no whole dates, so every date counts as a working day, even "
            "weekends."
        )
        yield Caution(CautionCode.EVERY_DATE_COUNTS, text)
    yield from _frequent(schedule, occurrences)
    yield from _clock_changes(timetable, occurrences[0].at)
    yield from _crowded_minute(job, schedule, occurrences[0], scope)


def _ends_after(last: Occurrence, timetable: Timetable) -> bool:
    """Return whether the schedule ends with ``last``.

    It doesn't end if it has occurrences that lie beyond the supported dates.
    """
    following = timetable.schedule.next_after(last.at)
    return following is None or following < END


def _frequent(schedule: Schedule, occurrences: tuple[Occurrence, ...]) -> Iterator[Caution]:
    gaps = [occurrence.gap for occurrence in occurrences if occurrence.gap]
    if not gaps or min(gaps) >= SHORT_GAP:
        return
    seconds = int(min(gaps).total_seconds())
    text = ngettext(
        "Occurrences are only %(seconds)d second apart. Each run is a database row.",
        "Occurrences are only %(seconds)d seconds apart. Each run is a database row.",
        seconds,
    )
    rules = filter(None, (line.wall_clock for line in schedule.lines))
    if any(rule.cron.second.starred for rule in rules):
        text += " " + _(
            "A schedule with six fields starts with the seconds. With five fields, it starts with "
            "the minutes."
        )
    yield Caution(CautionCode.FREQUENT, text % {"seconds": seconds})


def _clock_changes(timetable: Timetable, first: datetime) -> Iterator[Caution]:
    """Yield cautions for clock changes within a year from the first occurrence.

    The first occurrence may itself be affected by a change.
    """
    end = first + YEAR if timetable.ends_at is None else min(first + YEAR, timetable.ends_at)
    for change in islice(
        clock_changes(timetable.schedule, first - MICROSECOND, end), CLOCK_CHANGES_SHOWN
    ):
        yield Caution(CautionCode.CLOCK_CHANGE, _clock_change_text(change))


def _clock_change_text(change: ClockChange) -> str:
    texts = {
        Effect.ONCE_AFTER: _(
            "Clocks in %(zone)s go forward from %(before)s to %(after)s on %(day)s. Occurrences in "
            "between run once, at %(after)s."
        ),
        Effect.NOT_AT_ALL: _(
            "Clocks in %(zone)s go forward from %(before)s to %(after)s on %(day)s. Occurrences in "
            "between don't run."
        ),
        Effect.FIRST_TIME: _(
            "Clocks in %(zone)s go back from %(before)s to %(after)s on %(day)s. Occurrences in "
            "between run only the first time."
        ),
        Effect.BOTH_TIMES: _(
            "Clocks in %(zone)s go back from %(before)s to %(after)s on %(day)s. Occurrences in "
            "between run both times."
        ),
    }
    before, after = change.shown_before, change.shown_after
    clock = "%H:%M" if before.date() == after.date() else "%Y-%m-%d %H:%M"
    return texts[change.effect] % {
        "day": f"{min(before, after):%Y-%m-%d}",
        "zone": change.zone,
        "before": before.strftime(clock),
        "after": after.strftime(clock),
    }


def _crowded_minute(
    job: Job, schedule: Schedule, first: Occurrence, scope: Scope
) -> Iterator[Caution]:
    """Yield a caution if many other jobs start in the minute of the job's next occurrence."""
    if job.jitter >= SPREAD or in_every_minute(schedule):
        return
    others = count_jobs_starting_in(first.at, except_job=job.pk, scope=scope)
    if others < CROWDED_FROM:
        return
    found = {
        "count": others,
        "minute": f"{first.local:%Y-%m-%d %H:%M}",
        "proposal": _with_hash(schedule),
    }
    if found["proposal"]:
        text = _(
            "%(count)s other jobs start in the same minute, %(minute)s. Use “%(proposal)s” to "
            "spread the load: H is a minute that depends on the job's name."
        )
    else:
        text = _(
            "%(count)s other jobs start in the same minute, %(minute)s. Set a jitter to spread "
            "the load."
        )
    yield Caution(CautionCode.CROWDED_MINUTE, text % found)


def _with_hash(schedule: Schedule) -> str:
    """Return the schedule with ``H`` for its minute, or an empty string if that isn't possible."""
    rule = schedule.wall_clock  # None for several lines
    if rule is None or rule.cron.recurrence:
        return ""
    form = hash_form(rule.cron.minute.values)
    words = schedule.text.split()
    prefix = [words.pop(0)] if words[0].startswith(("TZ=", "CRON_TZ=")) else []
    if len(words) == 1:
        words = MACROS[words[0].lower()].split()
    place = 0 if len(words) == 5 else 1
    if not form or has_hash(words[place]):
        return ""
    words[place] = form
    return " ".join([*prefix, *words])
