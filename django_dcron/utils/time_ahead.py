"""Parse a time of day as the next such time: 18:00."""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta, tzinfo

from django_dcron.utils.durations import MAX_LENGTH

_DAY = timedelta(days=1)
_TIME_OF_DAY = re.compile(
    r"(?P<hour>[01]?[0-9]|2[0-3])(?P<rest>:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?)"
    r"(?P<offset>Z|[+-][0-9]{2}:?[0-9]{2})?"
)


def next_time_of_day(text: str, now: datetime, zone: tzinfo) -> datetime | None:
    """Return the next time after ``now`` at which clocks show ``18:00`` or ``18:00+02:00``.

    Without an offset in ``text``, the clocks are those in ``zone``, and the result has that time
    zone. It isn't converted to UTC, because a conversion would hide that the clocks skip this time.
    Returns None if ``text`` isn't a time of day.
    """
    match = _TIME_OF_DAY.fullmatch(text) if len(text) <= MAX_LENGTH else None
    if match is None:
        return None
    try:
        of_day = time.fromisoformat(f"{match['hour']:0>2}{match['rest']}{match['offset'] or ''}")
    except ValueError:
        return None
    local = now.astimezone(of_day.tzinfo or zone)
    today = datetime.combine(local.date(), of_day, of_day.tzinfo or zone)
    # Clocks that go back show a time twice. If they skip it, the second fold is the earlier one.
    times = (today, today.replace(fold=1), today + _DAY)
    return next(each for each in times if each > now)
