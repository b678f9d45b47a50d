"""Describe a cron schedule's time of day: "every 15 minutes, between 08:00 and 18:45"."""

import re
from typing import NamedTuple

from django_dcron.schedules.cron import Cron
from django_dcron.schedules.fields import CronField
from django_dcron.schedules.number_ranges import consecutive_ranges, number_ranges
from django_dcron.utils.messages import Language, all_of
from django_dcron.utils.messages import gettext_noop as _

_TOGETHER = {
    ("seconds",): "%(seconds)s",
    ("minutes",): "%(minutes)s",
    ("hours",): "%(hours)s",
    ("seconds", "minutes"): _("%(seconds)s, %(minutes)s"),
    ("seconds", "hours"): _("%(seconds)s, %(hours)s"),
    ("minutes", "hours"): _("%(minutes)s, %(hours)s"),
    ("seconds", "minutes", "hours"): _("%(seconds)s, %(minutes)s, %(hours)s"),
}
ON_ZERO = (0,)
LISTED_TIMES = 4
"""With several minutes, up to this many times are listed individually."""


class Step(NamedTuple):
    """A step from ``first`` to the field's end."""

    first: int
    step: int


def time_of_day(cron: Cron, language: Language) -> str:
    second, minute, hour = cron.second, cron.minute, cron.hour
    if len(second.values) == 1 and _lists_each_time(minute, hour):
        return _exactly(cron, language)
    if second.values == ON_ZERO and len(hour.values) == 1 and _in_a_row(minute):
        between = {"first": _clock(hour, minute.values[0]), "last": _clock(hour, minute.values[-1])}
        return language.gettext("every minute between %(first)s and %(last)s") % between
    parts = {
        "seconds": _seconds(second, language),
        "minutes": _minutes(cron, language),
        "hours": _hours(cron, language),
    }
    present = {name: words for name, words in parts.items() if words}
    return language.gettext(_TOGETHER[tuple(present)]) % present


def _lists_each_time(minute: CronField, hour: CronField) -> bool:
    """Return whether to list each time: the times are few and have no shorter description."""
    few = len(minute.values) == 1 or len(minute.values) * len(hour.values) <= LISTED_TIMES
    return few and all(
        _step(field) is None and all(len(run) < 3 for run in consecutive_ranges(field.values))
        for field in (minute, hour)
    )


def _exactly(cron: Cron, language: Language) -> str:
    (second,) = cron.second.values
    times = [
        f"{hour:02}:{minute:02}:{second:02}" if second else f"{hour:02}:{minute:02}"
        for hour in cron.hour.values
        for minute in cron.minute.values
    ]
    return language.gettext("at %(times)s") % {"times": all_of(times).translate(language)}


def _clock(hour: CronField, minute: int) -> str:
    return f"{hour.values[0]:02}:{minute:02}"


def _in_a_row(field: CronField) -> bool:
    return (
        len(field.values) > 2
        and len(consecutive_ranges(field.values)) == 1
        and not field.everything
    )


def _step(field: CronField) -> Step | None:
    match = re.fullmatch(r"(?:\*|\d+)/(\d+)", field.resolved)
    if match is None or len(field.values) < 2 or int(match[1]) == 1:
        return None
    found = Step(field.values[0], int(match[1]))
    # Every 40 minutes would be wrong: the last step of the hour has 20 minutes.
    is_uneven = (field.kind.top + 1) % found.step != 0
    return None if found.first == 0 and is_uneven else found


def _seconds(field: CronField, language: Language) -> str:
    if field.values == ON_ZERO:
        return ""
    if field.everything:
        return language.gettext("every second")
    if step := _step(field):
        if not step.first:
            return language.gettext("every %(step)d seconds") % step._asdict()
        text = language.ngettext(
            "every %(step)d seconds, starting at %(first)d second past the minute",
            "every %(step)d seconds, starting at %(first)d seconds past the minute",
            step.first,
        )
        return text % step._asdict()
    if _in_a_row(field):
        text = language.gettext("seconds %(first)d through %(last)d past the minute")
        return text % {"first": field.values[0], "last": field.values[-1]}
    if len(field.values) == 1:
        (second,) = field.values
        text = language.ngettext(
            "at %(second)d second past the minute", "at %(second)d seconds past the minute", second
        )
        return text % {"second": second}
    return language.gettext("at %(seconds)s seconds past the minute") % {
        "seconds": _values(field, language)
    }


def _minutes(cron: Cron, language: Language) -> str:
    field = cron.minute
    # A text for the seconds implies every minute.
    if field.everything:
        return language.gettext("every minute") if cron.second.values == ON_ZERO else ""
    if field.values == cron.second.values == ON_ZERO:
        return "" if cron.hour.everything or _step(cron.hour) else language.gettext("on the hour")
    if step := _step(field):
        if not step.first:
            return language.gettext("every %(step)d minutes") % step._asdict()
        text = language.ngettext(
            "every %(step)d minutes, starting at %(first)d minute past the hour",
            "every %(step)d minutes, starting at %(first)d minutes past the hour",
            step.first,
        )
        return text % step._asdict()
    if _in_a_row(field):
        text = language.gettext("minutes %(first)d through %(last)d past the hour")
        return text % {"first": field.values[0], "last": field.values[-1]}
    if len(field.values) == 1:
        (minute,) = field.values
        text = language.ngettext(
            "at %(minute)d minute past the hour", "at %(minute)d minutes past the hour", minute
        )
        return text % {"minute": minute}
    return language.gettext("at %(minutes)s minutes past the hour") % {
        "minutes": _values(field, language)
    }


def _hours(cron: Cron, language: Language) -> str:
    field = cron.hour
    if field.everything:
        only_hours = cron.minute.values == cron.second.values == ON_ZERO
        return language.gettext("every hour") if only_hours else ""
    if step := _step(field):
        if not step.first:
            return language.gettext("every %(step)d hours") % step._asdict()
        text = language.gettext("every %(step)d hours, starting at %(time)s")
        return text % {"step": step.step, "time": f"{step.first:02}:00"}
    if len(consecutive_ranges(field.values)) > 1:
        return language.gettext("during the hours %(hours)s") % {"hours": _values(field, language)}
    minutes = cron.minute.values
    text = language.gettext("between %(first)s and %(last)s")
    return text % {
        "first": f"{field.values[0]:02}:{minutes[0]:02}",
        "last": f"{field.values[-1]:02}:{minutes[-1]:02}",
    }


def _values(field: CronField, language: Language) -> str:
    several = language.gettext("%(from_number)d to %(to_number)d")
    words = number_ranges(
        consecutive_ranges(field.values),
        "%(number)d",
        several,
        ("number", "from_number", "to_number"),
    )
    return all_of(words).translate(language)
