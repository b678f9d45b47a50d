"""Compile cron text into a matcher on naive local time, which can be searched in both directions.

``DayRule`` finds the day. A bisection of the sorted hours, minutes and seconds finds the time of
day.

Invariants:

- A compiled expression matches at least one day and one time of day. A search finds nothing only
  past the horizon, or if a calendar excludes all of its days (see ``exclusion``).
- ``at_or_after`` and ``at_or_before`` are pure mirror images of each other, on naive datetimes in
  whole seconds.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, time

from django_dcron.exceptions import InvalidSchedule
from django_dcron.schedules.days import DAY, FIRST_DAY, LAST_DAY, DayRule, Days
from django_dcron.schedules.fields import (
    DAY_OF_MONTH,
    DAY_OF_WEEK,
    HOUR,
    MINUTE,
    MONTH,
    SECOND,
    YEAR,
    CronField,
    FieldKind,
    parse_field,
)
from django_dcron.schedules.recurrence import Recurrence
from django_dcron.schedules.recurrence_text import parse_recurrence
from django_dcron.schedules.sentences import (
    find_unknown_word,
    schedule_of_sentence,
    single_time_error,
    suggest_single_time,
    with_weekdays,
)
from django_dcron.utils.messages import TranslatableText
from django_dcron.utils.messages import gettext_noop as _

_KINDS: tuple[FieldKind, ...] = (SECOND, MINUTE, HOUR, DAY_OF_MONTH, MONTH, DAY_OF_WEEK, YEAR)
_ONE_FIELD = _(
    "Schedule %(value)s has %(count)d field. Use 5 fields, 6 (seconds first) or 7 (seconds "
    "first, year last), or a macro such as @hourly, @daily, @every 1h30m, @at "
    "2026-12-01T09:00 or @rrule (every second week)."
)
_SENTENCE = _("Schedule %(value)s is a sentence. Write it as %(schedule)s.")
_UNKNOWN_SENTENCE = _(
    "Schedule %(value)s isn't valid. Use cron fields, such as 30 9 * * MON-FRI for “every weekday "
    "at 9:30”, or a macro such as @hourly."
)
_SEVERAL = _("%(problem)s; %(others)s")
_SIX_FIELDS = _("%(problem)s. Six fields begin with the seconds.")
_WORKING_DAYS = _(
    "Schedule %(value)s doesn't say which days are holidays. Write it as %(schedule)s, and set the "
    "calendar of the job to exclude holidays."
)
_UNKNOWN_WORD = _(
    "Schedule %(value)s contains the unknown word %(word)s. Set the time zone and the calendar of "
    "excluded days in separate fields. For other schedules, use cron fields, such as 30 9 * * "
    "MON-FRI."
)
_FIELDS = _(
    "Schedule %(value)s has %(count)d fields. Use 5 fields, 6 (seconds first) or 7 "
    "(seconds first, year last), or a macro such as @hourly, @daily, @every 1h30m, @at "
    "2026-12-01T09:00 or @rrule (every second week)."
)


@dataclass(frozen=True, eq=False)
class Cron:
    """A compiled cron expression; ``year`` is None if the text has no year field."""

    second: CronField
    minute: CronField
    hour: CronField
    day_of_month: CronField
    month: CronField
    day_of_week: CronField
    year: CronField | None
    days: Days
    recurrence: Recurrence | None = None
    """The rule of an ``@rrule``, which determines ``days`` instead of the fields.

    The fields for days and months then only describe the rule. If they can't express it, they are
    ``*``.
    """

    @property
    def fixed(self) -> bool:
        """Whether no time field starts with ``*``, as in a fixed-time job of Vixie cron."""
        return not (self.second.starred or self.minute.starred or self.hour.starred)

    def at_or_after(self, local: datetime) -> datetime | None:
        """Return the first match from ``local`` on, or None past the horizon."""
        day = local.date()
        at = self._time_from(local.hour, local.minute, local.second)
        if at is not None and self.days.on(day):
            return datetime.combine(day, at)
        later = self.days.at_or_after(day + DAY) if day <= LAST_DAY else None
        first = time(self.hour.values[0], self.minute.values[0], self.second.values[0])
        return None if later is None else datetime.combine(later, first)

    def at_or_before(self, local: datetime) -> datetime | None:
        """Return the last match up to ``local``, or None past the horizon."""
        day = local.date()
        at = self._time_up_to(local.hour, local.minute, local.second)
        if at is not None and self.days.on(day):
            return datetime.combine(day, at)
        earlier = self.days.at_or_before(day - DAY) if day >= FIRST_DAY else None
        last = time(self.hour.values[-1], self.minute.values[-1], self.second.values[-1])
        return None if earlier is None else datetime.combine(earlier, last)

    def has_time_in(self, begin: int, end: int) -> bool:
        """Return whether a time of day matches in ``[begin, end)``, in seconds of the day."""
        found = self._time_from(begin // 3600, begin // 60 % 60, begin % 60)
        return found is not None and found.hour * 3600 + found.minute * 60 + found.second < end

    def _time_from(self, hour: int, minute: int, second: int) -> time | None:
        """Return the first matching time of day from the given time on."""
        hours, minutes, seconds = self.hour.values, self.minute.values, self.second.values
        h = bisect_left(hours, hour)
        if h < len(hours) and hours[h] == hour:
            m = bisect_left(minutes, minute)
            if m < len(minutes) and minutes[m] == minute:
                s = bisect_left(seconds, second)
                if s < len(seconds):
                    return time(hour, minute, seconds[s])
                m += 1
            if m < len(minutes):
                return time(hour, minutes[m], seconds[0])
            h += 1
        return time(hours[h], minutes[0], seconds[0]) if h < len(hours) else None

    def _time_up_to(self, hour: int, minute: int, second: int) -> time | None:
        """Return the last matching time of day up to the given time. Mirrors ``_time_from``."""
        hours, minutes, seconds = self.hour.values, self.minute.values, self.second.values
        h = bisect_right(hours, hour) - 1
        if h >= 0 and hours[h] == hour:
            m = bisect_right(minutes, minute) - 1
            if m >= 0 and minutes[m] == minute:
                s = bisect_right(seconds, second) - 1
                if s >= 0:
                    return time(hour, minute, seconds[s])
                m -= 1
            if m >= 0:
                return time(hour, minutes[m], seconds[-1])
            h -= 1
        return time(hours[h], minutes[-1], seconds[-1]) if h >= 0 else None


def parse_cron(text: str, hash_key: str = "") -> Cron:
    """Compile five, six (seconds first) or seven (and year last) fields.

    Raises ``InvalidSchedule``.
    """
    fields: list[CronField] = []
    errors: list[InvalidSchedule] = []
    for kind, item in _texts(text):
        try:
            fields.append(parse_field(kind, item, hash_key))
        except InvalidSchedule as error:
            errors.append(error)
    if errors:
        raise _error_of_fields(errors, begins_with_seconds=len(text.split()) == 6)
    second, minute, hour, day_of_month, month, day_of_week = fields[:6]
    year = fields[6] if len(fields) == 7 else None
    days = DayRule(day_of_month, day_of_week, month, year)
    if not days.possible:
        raise InvalidSchedule(
            _(
                "Schedule %(value)s never matches a date. Use a day, month, weekday and "
                "year that occur together."
            ),
            value=repr(text),
            code="never_matches",
        )
    return Cron(second, minute, hour, day_of_month, month, day_of_week, year, days)


def _error_of_fields(
    errors: Sequence[InvalidSchedule], *, begins_with_seconds: bool
) -> InvalidSchedule:
    """Return one error that names all invalid fields. Its code and values are the first one's."""
    problem = errors[-1].text
    for error in reversed(errors[:-1]):
        problem = TranslatableText(_SEVERAL, problem=error.text, others=problem)
    if begins_with_seconds:
        problem = TranslatableText(_SIX_FIELDS, problem=problem)
    first = errors[0]
    return InvalidSchedule(problem.template, code=first.code, **(first.params | problem.values))


def compile_recurrence(text: str) -> Cron:
    """Compile the start and the recurrence rule of an ``@rrule``; raises ``InvalidSchedule``."""
    rule = parse_recurrence(text)
    month_days, months, weekdays = rule.days.as_fields
    return Cron(
        second=parse_field(SECOND, rule.second),
        minute=parse_field(MINUTE, rule.minute),
        hour=parse_field(HOUR, rule.hour),
        day_of_month=parse_field(DAY_OF_MONTH, month_days),
        month=parse_field(MONTH, months),
        day_of_week=parse_field(DAY_OF_WEEK, weekdays),
        year=None,
        days=rule.days,
        recurrence=rule.days,
    )


def draw_fields(text: str, hash_key: str) -> str:
    """Return the expression, seconds first, with each ``H`` replaced by its drawn values.

    Raises ``InvalidSchedule``.
    """
    return " ".join(
        parse_field(kind, item, hash_key).resolved if "H" in item else item
        for kind, item in _texts(text)
    )


def _texts(text: str) -> list[tuple[FieldKind, str]]:
    """Return the kind and text of each field, seconds first. Raises ``InvalidSchedule``."""
    texts = text.upper().split()
    begins_with_word = len(texts) > 1 and len(texts[0]) > 1 and texts[0].rstrip(",").isalpha()
    looks_like_sentence = begins_with_word and "*" not in text
    has_fields = 5 <= len(texts) <= 7
    value = repr(text)
    if (looks_like_sentence or not has_fields) and (schedule := schedule_of_sentence(text)):
        raise InvalidSchedule(_SENTENCE, value=value, schedule=repr(schedule), code="sentence")
    if (looks_like_sentence or not has_fields) and (schedule := suggest_single_time(text)):
        raise single_time_error(text, schedule)
    if looks_like_sentence and (schedule := schedule_of_sentence(with_weekdays(text))):
        raise InvalidSchedule(
            _WORKING_DAYS, value=value, schedule=repr(schedule), code="working_days"
        )
    if looks_like_sentence and (word := find_unknown_word(text)):
        raise InvalidSchedule(_UNKNOWN_WORD, value=value, word=repr(word), code="unknown_word")
    if looks_like_sentence:
        raise InvalidSchedule(_UNKNOWN_SENTENCE, value=value, code="unknown_sentence")
    if not has_fields:
        raise InvalidSchedule(
            _ONE_FIELD if len(texts) == 1 else _FIELDS,
            value=value,
            count=len(texts),
            code="field_count",
        )
    if len(texts) == 5:
        texts.insert(0, "0")
    return list(zip(_KINDS, texts, strict=False))
