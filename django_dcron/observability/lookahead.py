"""What a definition yields, saved or not: in words, its next occurrences, and what its owner should know about them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

from django.utils import translation
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_dcron import control, definition
from django_dcron.domain.clock_changes import ClockChange, Effect, clock_changes
from django_dcron.domain.schedule import MACROS, Schedule, WallClock, has_hash, parse_schedule
from django_dcron.domain.timetable import INSTANT, Timetable
from django_dcron.exceptions import InvalidSchedule
from django_dcron.models import Job
from django_dcron.observability.load import SPREAD, in_every_minute, starting_in
from django_dcron.observability.scope import EVERYTHING, Scope

OCCURRENCES = 10
CHANGES_TOLD = 2
"""A year has two, as a rule."""
YEAR = timedelta(weeks=53)
"""A change on the last Sunday of a month comes again after 52 weeks or 53."""
CLOSE = timedelta(seconds=10)
"""Occurrences that follow each other sooner are worth a question."""
CROWD = 40
"""So many other jobs in one minute are worth a word."""


class Code(StrEnum):
    NEVER_FIRES = "never_fires"
    ENDS_SOON = "ends_soon"
    CLOCK_CHANGE = "clock_change"
    FREQUENT = "frequent"
    CROWDED_MINUTE = "crowded_minute"
    UNNAMED = "unnamed"


@dataclass(frozen=True, slots=True)
class Caution:
    """Nothing is wrong; it may just not be what was meant."""

    code: Code
    message: str


@dataclass(frozen=True, slots=True)
class Occurrence:
    at: datetime
    """UTC."""
    local: datetime
    """In the zone of the schedule."""
    gap: timedelta | None
    """Since the one before; None for the first."""


@dataclass(frozen=True, slots=True)
class Lookahead:
    words: str
    """The schedule in words; empty if nobody can word it."""
    zone: str
    occurrences: tuple[Occurrence, ...]
    cautions: tuple[Caution, ...]
    counts_from_saving: bool
    """An interval that starts when the job is saved: these occurrences shift until then."""

    @property
    def shortest_gap(self) -> timedelta | None:
        return min((occurrence.gap for occurrence in self.occurrences if occurrence.gap), default=None)


def look_ahead(
    job: Job, count: int = OCCURRENCES, *, after: datetime | None = None, scope: Scope = EVERYTHING
) -> Lookahead:
    """As if the job were enabled; ``after`` an aware time instead of now. ``scope``: the other jobs that a caution may count.
    Bounded work; three queries at most. Raises ``InvalidSchedule``."""
    timetable = definition.timetable_of(job)
    schedule = timetable.schedule
    found = control.preview(job, count, after=after)
    zone = ZoneInfo(schedule.timezone)
    gaps = [None, *(later - earlier for earlier, later in pairwise(found))]
    occurrences = tuple(
        Occurrence(at, at.astimezone(zone), gap) for at, gap in zip(found, gaps, strict=False)
    )
    return Lookahead(
        words=in_words(schedule),
        zone=schedule.timezone,
        occurrences=occurrences,
        cautions=tuple(_cautions(job, timetable, occurrences, count, scope)),
        counts_from_saving=schedule.interval is not None and job.starts_at is None and job.pk is None,
    )


def in_words(schedule: Schedule) -> str:
    """In the active language."""
    try:
        return schedule.describe(translation)
    except Exception:  # a courtesy: a schedule nobody can word must not take a whole page away
        return ""


def problem_in_words(job: Job, stored: str) -> str:
    """What ``Cursor.problem`` says, which is English: in the active language if the job's schedule has that problem still."""
    if stored:
        try:
            job.parsed_schedule  # noqa: B018 (reading it parses it)
        except InvalidSchedule as error:
            if str(error) == stored:
                return error.said(translation)
    return stored


def _cautions(
    job: Job, timetable: Timetable, occurrences: tuple[Occurrence, ...], count: int, scope: Scope
) -> Iterator[Caution]:
    schedule = timetable.schedule
    if schedule.is_never:
        return
    if not occurrences:
        yield Caution(Code.NEVER_FIRES, _("It never fires again."))
        return
    if len(occurrences) < count and schedule.at is None:
        left = len(occurrences)
        text = ngettext(
            "It ends soon: only %(left)d occurrence is left.",
            "It ends soon: only %(left)d occurrences are left.",
            left,
        )
        yield Caution(Code.ENDS_SOON, text % {"left": left})
    if has_hash(schedule.text) and not job.name:
        text = _("H is drawn from the job's name: with the name, these times will change.")
        yield Caution(Code.UNNAMED, text)
    yield from _frequent(schedule, occurrences)
    yield from _clock_changes(timetable, occurrences[0].at)
    yield from _crowded_minute(job, schedule, occurrences[0], scope)


def _frequent(schedule: Schedule, occurrences: tuple[Occurrence, ...]) -> Iterator[Caution]:
    gaps = [occurrence.gap for occurrence in occurrences if occurrence.gap]
    if not gaps or min(gaps) >= CLOSE:
        return
    seconds = int(min(gaps).total_seconds())
    text = ngettext(
        "Occurrences follow each other after only %(seconds)d second; each is a run with its own row.",
        "Occurrences follow each other after only %(seconds)d seconds; each is a run with its own row.",
        seconds,
    )
    if isinstance(schedule.rule, WallClock) and schedule.rule.cron.second.starred:
        text += " " + _("Of six fields the first is the second; five fields begin with the minute.")
    yield Caution(Code.FREQUENT, text % {"seconds": seconds})


def _clock_changes(timetable: Timetable, first: datetime) -> Iterator[Caution]:
    """Within a year from the first occurrence, which may itself be what a change makes of it."""
    end = first + YEAR if timetable.ends_at is None else min(first + YEAR, timetable.ends_at)
    for change in islice(clock_changes(timetable.schedule, first - INSTANT, end), CHANGES_TOLD):
        yield Caution(Code.CLOCK_CHANGE, _told(change, timetable.schedule.timezone))


def _told(change: ClockChange, zone: str) -> str:
    texts = {
        Effect.ONCE_AFTER: _(
            "On %(day)s the clocks of %(zone)s go forward from %(before)s to %(after)s. What falls in between does not "
            "exist that day: it runs once instead, at %(after)s."
        ),
        Effect.NOT_AT_ALL: _(
            "On %(day)s the clocks of %(zone)s go forward from %(before)s to %(after)s. What falls in between does not "
            "exist that day and does not run."
        ),
        Effect.FIRST_TIME: _(
            "On %(day)s the clocks of %(zone)s go back from %(before)s to %(after)s. What falls in between comes twice "
            "that day: it runs the first time only."
        ),
        Effect.BOTH_TIMES: _(
            "On %(day)s the clocks of %(zone)s go back from %(before)s to %(after)s. What falls in between comes twice "
            "that day and runs both times."
        ),
    }
    before, after = change.shown_before, change.shown_after
    clock = "%H:%M" if before.date() == after.date() else "%Y-%m-%d %H:%M"
    return texts[change.effect] % {
        "day": f"{min(before, after):%Y-%m-%d}",
        "zone": zone,
        "before": before.strftime(clock),
        "after": after.strftime(clock),
    }


def _crowded_minute(job: Job, schedule: Schedule, first: Occurrence, scope: Scope) -> Iterator[Caution]:
    """How many other jobs start in the minute of its next occurrence, be it their next one or not."""
    if job.jitter >= SPREAD or in_every_minute(schedule):
        return
    others = starting_in(first.at, but=job.pk, scope=scope)
    if others < CROWD:
        return
    found = {
        "count": others,
        "minute": f"{first.local:%Y-%m-%d %H:%M}",
        "proposal": _with_hash(schedule.text),
    }
    if found["proposal"]:
        text = _(
            "%(count)s other jobs start in the minute of its next occurrence, %(minute)s. “%(proposal)s” gives this job a "
            "minute of its own, drawn from its name."
        )
    else:
        text = _(
            "%(count)s other jobs start in the minute of its next occurrence, %(minute)s. A jitter spreads the runs."
        )
    yield Caution(Code.CROWDED_MINUTE, text % found)


def _with_hash(text: str) -> str:
    """The same schedule with ``H`` for its minute; empty if that is not the thing to do."""
    words = text.split()
    prefix = [words.pop(0)] if words[0].startswith(("TZ=", "CRON_TZ=")) else []
    if len(words) == 1:
        words = MACROS.get(words[0].lower(), words[0]).split()
    place = 0 if len(words) == 5 else 1
    if len(words) < 5:
        return ""
    if words[place].isdecimal():
        words[place] = "H"
    elif words[place].startswith("*/"):
        words[place] = f"H{words[place][1:]}"
    proposal = " ".join([*prefix, *words])
    try:
        parse_schedule(proposal)
    except InvalidSchedule:
        return ""
    return proposal if proposal != text else ""
