"""Describe a schedule in words: "At 03:30, on the last Friday of the month (Europe/Berlin)".

The text is for display only. It is composed of whole parts, so that a translation can reorder
them:

- No part depends on the part after it.
- Texts that another language may express differently have separate msgids or contexts, even if
  they are the same in English.
"""

from collections.abc import Iterable
from datetime import UTC, timedelta
from zoneinfo import ZoneInfo

from django_dcron.schedules.calendar import ExclusionPolicy
from django_dcron.schedules.cron import Cron
from django_dcron.schedules.fields import CronField
from django_dcron.schedules.number_ranges import consecutive_ranges, number_ranges
from django_dcron.schedules.recurrence import Recurrence
from django_dcron.schedules.rules import Every, Once
from django_dcron.schedules.schedule import Schedule
from django_dcron.schedules.special_days import (
    LastDay,
    LastWeekday,
    MonthSpecial,
    NearestWeekday,
    NthWeekday,
    NthWorkingDay,
)
from django_dcron.schedules.time_in_words import time_of_day
from django_dcron.utils.messages import ENGLISH, Language, all_of, any_of, join_words
from django_dcron.utils.messages import gettext_noop as _

_TOGETHER = {
    ("time",): "%(time)s",
    ("time", "days"): _("%(time)s, %(days)s"),
    ("time", "months"): _("%(time)s, %(months)s"),
    ("time", "years"): _("%(time)s, %(years)s"),
    ("time", "days", "months"): _("%(time)s, %(days)s, %(months)s"),
    ("time", "days", "years"): _("%(time)s, %(days)s, %(years)s"),
    ("time", "months", "years"): _("%(time)s, %(months)s, %(years)s"),
    ("time", "days", "months", "years"): _("%(time)s, %(days)s, %(months)s, %(years)s"),
}


_EXCLUDING = {
    ExclusionPolicy.SKIP: _("%(schedule)s, except on dates that the calendar excludes"),
    ExclusionPolicy.NEXT_DAY: _("%(schedule)s, moved to the next date that the calendar allows"),
    ExclusionPolicy.WINDOW_END: _(
        "%(schedule)s; at times that the calendar excludes, once when they end"
    ),
}
_EXCLUDING_TIMES = _("%(schedule)s, except at times that the calendar excludes")


def describe(schedule: Schedule, language: Language = ENGLISH) -> str:
    """Describe a schedule, with its time zone unless that is UTC or irrelevant."""
    lines = schedule.without_calendar.lines
    alike = all(line.timezone == schedule.timezone for line in lines)
    text, *others = (
        _line(line, language) if alike else _with_zone(_line(line, language), line, language)
        for line in lines
    )
    for line in others:
        text = language.gettext("%(lines)s; also: %(line)s") % {"lines": text, "line": line}
    if schedule.interval or schedule.is_never:
        return text
    if schedule.calendar is not None:
        is_skip = schedule.exclusion is ExclusionPolicy.SKIP
        times = _EXCLUDING_TIMES if is_skip and schedule.calendar.has_times else None
        text = language.gettext(times or _EXCLUDING[schedule.exclusion]) % {"schedule": text}
    return _with_zone(text, schedule, language) if alike else text


def _line(line: Schedule, language: Language) -> str:
    """Describe one line, without its time zone."""
    rule = line.rule
    if isinstance(rule, Every):
        return language.gettext("Every %(duration)s") % {
            "duration": _duration(rule.interval, language)
        }
    if isinstance(rule, Once):
        local = rule.at.replace(tzinfo=UTC).astimezone(ZoneInfo(line.timezone))
        clock = f"{local:%H:%M:%S}" if local.second else f"{local:%H:%M}"
        return language.gettext("Once, on %(date)s at %(time)s") % {
            "date": f"{local:%Y-%m-%d}",
            "time": clock,
        }
    fields = line.wall_clock
    return _cron(fields.cron, language) if fields else language.gettext("Only on demand")


def _with_zone(text: str, schedule: Schedule, language: Language) -> str:
    if schedule.timezone in ("UTC", "Etc/UTC"):
        return text
    return language.gettext("%(schedule)s (%(zone)s)") % {
        "schedule": text,
        "zone": schedule.timezone,
    }


def _cron(cron: Cron, language: Language) -> str:
    rule = cron.recurrence
    parts = {
        "time": time_of_day(cron, language),
        "days": _days(cron, language) if rule is None else _period(rule, cron, language),
        "months": _months(cron.month, language),
        "years": _years(cron.year, language),
    }
    present = {name: words for name, words in parts.items() if words}
    text = language.gettext(_TOGETHER[tuple(present)]) % present
    text = text[0].upper() + text[1:]
    if rule is None:
        return text
    return language.gettext("%(schedule)s, counted from %(date)s") % {
        "schedule": text,
        "date": rule.start.isoformat(),
    }


def _period(rule: Recurrence, cron: Cron, language: Language) -> str:
    """Return the period of a recurrence rule and its days: every 2 weeks on Friday."""
    count = rule.interval
    texts = {
        "DAILY": language.ngettext("every day", "every %(count)d days", count),
        "WEEKLY": language.ngettext("every week", "every %(count)d weeks", count),
        "MONTHLY": language.ngettext("every month", "every %(count)d months", count),
        "YEARLY": language.ngettext("every year", "every %(count)d years", count),
    }
    period = texts[rule.frequency] % {"count": count}
    if not rule.is_expressed:
        template = language.gettext("%(period)s by the rule %(rule)s")
        return template % {"period": period, "rule": rule.text}
    if not (days := _days(cron, language)):
        return period
    return language.gettext("%(period)s %(days)s") % {"period": period, "days": days}


def _days(cron: Cron, language: Language) -> str:
    by_month = _month_days(cron.day_of_month, language)
    must_match_both = cron.day_of_month.starred or cron.day_of_week.starred
    if cron.day_of_month.everything or cron.day_of_week.everything:
        if not must_match_both:
            return ""  # the field that covers everything is enough for a match
        return by_month or _weekdays(cron.day_of_week, language)
    if must_match_both:
        return language.gettext("%(month_days)s, only if it is %(weekdays)s") % {
            "month_days": by_month,
            "weekdays": _weekday_condition(cron.day_of_week, language),
        }
    return language.gettext("%(month_days)s, and also %(weekdays)s") % {
        "month_days": by_month,
        "weekdays": _weekdays(cron.day_of_week, language),
    }


def _month_days(field: CronField, language: Language) -> str:
    if field.everything:
        return ""
    found = consecutive_ranges(field.values)
    if len(found) == 1 and len(field.values) > 2 and not field.specials:
        first, last = found[0][0], found[0][-1]
        text = language.gettext("on days %(first)d to %(last)d of the month")
        return text % {"first": first, "last": last}
    plain = []
    if found:
        one, several = (
            language.gettext("%(day)d"),
            language.gettext("%(first_day)d to %(last_day)d"),
        )
        days = all_of(
            number_ranges(found, one, several, ("day", "first_day", "last_day"))
        ).translate(language)
        text = language.ngettext("day %(days)s", "days %(days)s", len(field.values))
        plain = [text % {"days": days}]
    special = [
        _month_day(item, language) for item in field.specials if not isinstance(item, NthWeekday)
    ]
    return language.gettext("on %(days)s of the month") % {
        "days": all_of(plain + special).translate(language)
    }


def _month_day(item: MonthSpecial, language: Language) -> str:
    match item:
        case LastDay(0):
            return language.gettext("the last day")
        case LastDay(before):
            text = language.ngettext(
                "the day %(count)d day before the last day",
                "the day %(count)d days before the last day",
                before,
            )
            return text % {"count": before}
        case LastWeekday():
            return language.gettext("the last weekday (Monday to Friday)")
        case NthWorkingDay(-1):
            return language.gettext("the last working day")
        case NthWorkingDay(nth) if nth < 0:
            text = language.ngettext(
                "the working day that is %(count)d working day before the last one",
                "the working day that is %(count)d working days before the last one",
                -1 - nth,
            )
            return text % {"count": -1 - nth}
        case NthWorkingDay(nth):
            return language.gettext("working day %(number)d") % {"number": nth}
        case NearestWeekday(day):
            return language.gettext("the weekday (Monday to Friday) nearest to day %(day)d") % {
                "day": day
            }


def _weekdays(field: CronField, language: Language) -> str:
    """Return the days of every week on which the schedule falls."""
    if field.everything:
        return ""
    names = (
        language.pgettext("on each", "Monday"),
        language.pgettext("on each", "Tuesday"),
        language.pgettext("on each", "Wednesday"),
        language.pgettext("on each", "Thursday"),
        language.pgettext("on each", "Friday"),
        language.pgettext("on each", "Saturday"),
        language.pgettext("on each", "Sunday"),
    )
    text = language.pgettext("on each", "%(first)s to %(last)s")
    words = _format_names(_from_monday(field.values), names, text)
    for item in field.specials:
        if isinstance(item, NthWeekday):
            if item.nth is None:
                text = language.pgettext("on", "the last %(weekday)s of the month")
            else:
                text = language.pgettext("on", "the %(nth)s %(weekday)s of the month")
            words.append(_nth(item, text, language))
    is_range = len(words) == 1 and len(field.values) > 1
    template = (
        language.pgettext("a range of weekdays", "%(weekdays)s")
        if is_range
        else language.gettext("on %(weekdays)s")
    )
    return template % {"weekdays": all_of(words).translate(language)}


def _weekday_condition(field: CronField, language: Language) -> str:
    """Return the weekday condition for a day of the month."""
    words = _format_names(
        _from_monday(field.values),
        _weekday_names(language),
        language.gettext("%(first)s to %(last)s"),
    )
    for item in field.specials:
        if isinstance(item, NthWeekday):
            if item.nth is None:
                text = language.pgettext("it is", "the last %(weekday)s of the month")
            else:
                text = language.pgettext("it is", "the %(nth)s %(weekday)s of the month")
            words.append(_nth(item, text, language))
    return any_of(words).translate(language)


def _nth(item: NthWeekday, text: str, language: Language) -> str:
    nths = (_("1st"), _("2nd"), _("3rd"), _("4th"), _("5th"))
    weekday = _weekday_names(language)[(item.weekday - 1) % 7]
    return text % {"weekday": weekday, "nth": language.gettext(nths[(item.nth or 1) - 1])}


def _from_monday(values: Iterable[int]) -> list[int]:
    """Number the weekdays from Monday (0), so that Friday to Sunday is one range."""
    return sorted((value - 1) % 7 for value in values)


def _weekday_names(language: Language) -> tuple[str, ...]:
    # The separate context keeps these msgids apart from those of Django and of the pages.
    return (
        language.pgettext("in a schedule", "Monday"),
        language.pgettext("in a schedule", "Tuesday"),
        language.pgettext("in a schedule", "Wednesday"),
        language.pgettext("in a schedule", "Thursday"),
        language.pgettext("in a schedule", "Friday"),
        language.pgettext("in a schedule", "Saturday"),
        language.pgettext("in a schedule", "Sunday"),
    )


def _months(field: CronField, language: Language) -> str:
    if field.everything:
        return ""
    names = (
        "",
        language.pgettext("in a schedule", "January"),
        language.pgettext("in a schedule", "February"),
        language.pgettext("in a schedule", "March"),
        language.pgettext("in a schedule", "April"),
        language.pgettext("in a schedule", "May"),
        language.pgettext("in a schedule", "June"),
        language.pgettext("in a schedule", "July"),
        language.pgettext("in a schedule", "August"),
        language.pgettext("in a schedule", "September"),
        language.pgettext("in a schedule", "October"),
        language.pgettext("in a schedule", "November"),
        language.pgettext("in a schedule", "December"),
    )
    if len(field.values) > 2 and len(consecutive_ranges(field.values)) == 1:
        text = language.gettext("in %(first)s to %(last)s")
        return text % {"first": names[field.values[0]], "last": names[field.values[-1]]}
    words = _format_names(field.values, names, language.gettext("%(first)s to %(last)s"))
    return language.gettext("in %(months)s") % {"months": all_of(words).translate(language)}


def _format_names(values: Iterable[int], names: tuple[str, ...], text: str) -> list[str]:
    """Return the values' names; ``text`` is the template for three or more consecutive values."""
    words: list[str] = []
    for run in consecutive_ranges(values):
        shown = [names[value] for value in run]
        words += [text % {"first": shown[0], "last": shown[-1]}] if len(shown) > 2 else shown
    return words


def _years(field: CronField | None, language: Language) -> str:
    if field is None or field.resolved == "*":
        return ""
    text = language.ngettext("in %(years)s", "in %(years)s", len(field.values))
    one, several = "%(number)d", language.gettext("%(from_number)d to %(to_number)d")
    words = number_ranges(
        consecutive_ranges(field.values), one, several, ("number", "from_number", "to_number")
    )
    return text % {"years": all_of(words).translate(language)}


def _duration(interval: timedelta, language: Language) -> str:
    minutes, seconds = divmod(interval // timedelta(seconds=1), 60)
    hours, minutes = divmod(minutes, 60)
    words = [
        language.ngettext("%(count)d hour", "%(count)d hours", hours) % {"count": hours}
        if hours
        else "",
        language.ngettext("%(count)d minute", "%(count)d minutes", minutes) % {"count": minutes}
        if minutes
        else "",
        language.ngettext("%(count)d second", "%(count)d seconds", seconds) % {"count": seconds}
        if seconds
        else "",
    ]
    return join_words(
        [word for word in words if word],
        language.pgettext("of a duration", ", "),
        language.pgettext("of a duration", "%(others)s and %(last)s"),
    )
