"""Parse one cron field into explicit values, or reject it with a specific message.

This module decides what a crontab line may contain. Nothing is left to croniter's more lenient
parser.

Invariants:

- A ``CronField`` contains only values inside its range. Sunday is always 0.
- Each error names the field, the value and what is allowed.
- ``H`` is replaced by its drawn values before other code sees the field.
"""

import re
from dataclasses import dataclass, field
from typing import NoReturn

from django_dcron.exceptions import InvalidSchedule
from django_dcron.schedules.hashing import hashed_value
from django_dcron.schedules.special_days import (
    LastDay,
    LastWeekday,
    MonthSpecial,
    NearestWeekday,
    NthWeekday,
    NthWorkingDay,
    Special,
)
from django_dcron.utils.messages import TranslatableText
from django_dcron.utils.messages import gettext_noop as _

MAX_WORKING_DAYS = 23
"""The maximum number of days from Monday to Friday in a month."""
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")


@dataclass(frozen=True)
class FieldKind:
    """A field's name, value range and named values.

    ``hash_range`` is the range from which a bare ``H`` draws, or None if ``H`` isn't allowed.
    """

    name: str
    low: int
    high: int
    names: dict[str, int] = field(default_factory=dict)
    hash_range: tuple[int, int] | None = None
    forms: tuple[str, ...] = ()
    """Examples of what the field accepts besides its values."""
    # The end of a step range without an explicit end. It differs from ``high`` only for the
    # weekday, where 7 is an alias of 0.
    top: int = 0
    unit: str = ""
    """The unit of a step in ``@every``; empty for days, months and years."""

    @property
    def allowed(self) -> TranslatableText | str:
        span = f"{self.low}-{self.high}"
        if not self.names:
            return span
        all_names = list(self.names)
        return TranslatableText(
            _("%(numbers)s or %(names)s"), numbers=span, names=f"{all_names[0]}-{all_names[-1]}"
        )

    def refuse(self, template: str, value: str, *, code: str, **values: object) -> NoReturn:
        """Raise ``InvalidSchedule``.

        ``template`` begins with the field's name and the value. It has no full stop, because the
        errors of other fields may follow.
        """
        params: dict[str, object] = {"allowed": self.allowed, **values}
        raise InvalidSchedule(
            template, code=code, field=TranslatableText(self.name), value=value, **params
        )


SECOND = FieldKind(_("second"), 0, 59, hash_range=(0, 59), top=59, unit="s")
MINUTE = FieldKind(_("minute"), 0, 59, hash_range=(0, 59), top=59, unit="m")
HOUR = FieldKind(_("hour"), 0, 23, hash_range=(0, 23), top=23, unit="h")
# As in Jenkins, ``H`` avoids the days that don't occur in every month.
DAY_OF_MONTH = FieldKind(
    _("day of month"), 1, 31, hash_range=(1, 28), top=31, forms=("L", "LW", "15W", "WD#3")
)
MONTH = FieldKind(
    _("month"), 1, 12, {name: n for n, name in enumerate(_MONTHS, 1)}, hash_range=(1, 12), top=12
)
DAY_OF_WEEK = FieldKind(
    _("day of week"), 0, 7, {name: n for n, name in enumerate(_WEEKDAYS)}, hash_range=(0, 6), top=6
)
YEAR = FieldKind(_("year"), 1970, 2099, top=2099)


@dataclass(frozen=True)
class CronField:
    """A parsed field.

    ``starred``: the text starts with ``*`` or is ``?``. ``resolved``: the text with each ``H``
    replaced by its drawn values.
    """

    kind: FieldKind
    resolved: str
    starred: bool
    values: tuple[int, ...]
    specials: tuple[Special, ...] = ()

    @property
    def everything(self) -> bool:
        """Whether the field allows each value of its range."""
        return len(self.values) == self.kind.top - self.kind.low + 1


def parse_field(kind: FieldKind, text: str, hash_key: str = "") -> CronField:
    """Parse one upper-cased field; raises ``InvalidSchedule``."""
    if text == "?":
        if kind not in (DAY_OF_MONTH, DAY_OF_WEEK):
            kind.refuse(
                _("%(field)s: %(value)s is only valid in the day fields (allowed: *, %(allowed)s)"),
                "?",
                code="day_fields_only",
            )
        return CronField(kind, "*", True, tuple(range(kind.low, kind.top + 1)))
    values: set[int] = set()
    specials: list[Special] = []
    resolved = []
    for item in text.split(","):
        if not item:
            kind.refuse(
                _("%(field)s: the list %(value)s has an empty item (allowed: %(allowed)s)"),
                repr(text),
                code="empty_item",
            )
        special = _parse_special(kind, item)
        if special is not None:
            specials.append(special)
        else:
            item = _draw(kind, item, hash_key) if item[0] == "H" else item
            values.update(_values(kind, item))
        resolved.append(item)
    return CronField(
        kind,
        ",".join(resolved),
        text[0] == "*",
        tuple(sorted(values)),
        tuple(dict.fromkeys(specials)),
    )


def _values(kind: FieldKind, item: str) -> set[int]:
    """Return the values of ``*``, ``a`` or ``a-b``, each with or without ``/step``."""
    span, slash, step_text = item.partition("/")
    step = _step(kind, item, step_text) if slash else 1
    if span == "*":
        low, high = kind.low, kind.top
    elif "-" in span:
        low, high = _range(kind, span)
    elif kind is DAY_OF_WEEK and item == "L":
        low = high = 6  # As in Quartz, the last day of the week is Saturday.
    else:
        low = _number(kind, span, item)
        high = max(low, kind.top) if slash else low
    values = range(low, high + 1, step)
    return {value % 7 for value in values} if kind is DAY_OF_WEEK else set(values)


_REVERSED = _(
    "%(field)s: the range %(value)s is reversed; put the lower value first (allowed: %(allowed)s)"
)
_REVERSED_SUNDAY = _(
    "%(field)s: the range %(value)s is reversed; write Sunday as 7 at the end of a range "
    "(allowed: %(allowed)s)"
)


def _range(kind: FieldKind, span: str) -> tuple[int, int]:
    low_text, _dash, high_text = span.partition("-")
    low, high = _number(kind, low_text, span), _number(kind, high_text, span)
    if high_text == "SUN" and low > 0:
        high = 7
    if low > high:
        kind.refuse(
            _REVERSED_SUNDAY if kind is DAY_OF_WEEK and high == 0 else _REVERSED,
            span,
            code="reversed_range",
        )
    return low, high


_NO_VALUE = _("%(field)s: %(value)s is not valid (allowed: %(allowed)s)")
_NO_VALUE_IN = _("%(field)s: %(value)s in %(item)s is not valid (allowed: %(allowed)s)")


def _number(kind: FieldKind, text: str, item: str) -> int:
    if text in kind.names:
        return kind.names[text]
    if not re.fullmatch("[0-9]+", text):
        alone = text == item
        forms = {"allowed": ", ".join([str(kind.allowed), *kind.forms])} if kind.forms else {}
        kind.refuse(
            _NO_VALUE if alone else _NO_VALUE_IN,
            repr(text),
            item=repr(item),
            code="invalid_value",
            **(forms if alone else {}),
        )
    return _check_bounds(kind, text, kind.low, kind.high)


def _check_bounds(kind: FieldKind, text: str, low: int, high: int) -> int:
    value = int(text)
    if not low <= value <= high:
        allowed = kind.allowed if (low, high) == (kind.low, kind.high) else f"{low}-{high}"
        kind.refuse(
            _("%(field)s: %(value)s is out of range (allowed: %(allowed)s)"),
            text,
            allowed=allowed,
            code="out_of_range",
        )
    return value


def _step(kind: FieldKind, item: str, text: str, width: int | None = None) -> int:
    """Return the step.

    ``width`` is the number of values to draw from. As in Jenkins, a step of ``H`` can't be larger.
    """
    # The largest useful step: the field's largest value, or for the year the width of its range.
    most = kind.high - kind.low if kind is YEAR else kind.high
    most = most if width is None else min(most, width)
    if not re.fullmatch("[0-9]+", text) or not 1 <= int(text) <= most:
        if kind.unit and re.fullmatch(r"\*/[0-9]{1,5}", item) and int(text) > most:
            kind.refuse(
                _(
                    "%(field)s: the step %(step)s in %(value)s is not valid (allowed: "
                    "1-%(most)d; for a fixed interval, use %(every)s)"
                ),
                repr(item),
                step=repr(text),
                most=most,
                every=f"@every {text}{kind.unit}",
                code="invalid_step",
            )
        kind.refuse(
            _("%(field)s: the step %(step)s in %(value)s is not valid (allowed: 1-%(most)d)"),
            repr(item),
            step=repr(text),
            most=most,
            code="invalid_step",
        )
    return int(text)


_HASH = re.compile(r"H(?:\(([0-9]+)-([0-9]+)\))?(/.*)?")


def _draw(kind: FieldKind, item: str, key: str) -> str:
    """Replace ``H``, ``H(a-b)``, ``H/n`` or ``H(a-b)/n`` by the drawn value or stepped range."""
    match = _HASH.fullmatch(item)
    if kind.hash_range is None:
        kind.refuse(
            _(
                "%(field)s: %(value)s is not valid, because this field doesn't accept H "
                "(allowed: %(allowed)s)"
            ),
            repr(item),
            code="hash_not_allowed",
        )
    if match is None:
        kind.refuse(
            _("%(field)s: %(value)s is not valid (allowed: %(allowed)s, %(forms)s)"),
            repr(item),
            forms="H, H(a-b), H/n, H(a-b)/n",
            code="invalid_hash",
        )
    low, high = kind.hash_range
    if match[1]:
        low, high = _range(kind, f"{match[1]}-{match[2]}")
    if not match[3]:
        return str(hashed_value(kind.name, low, high, key))
    step = _step(kind, item, match[3][1:], width=high - low + 1)
    first = hashed_value(kind.name, low, low + step - 1, key)
    return f"{first}-{high}/{step}"


def _parse_special(kind: FieldKind, item: str) -> Special | None:
    if kind is DAY_OF_MONTH:
        return _month_special(kind, item)
    if kind is DAY_OF_WEEK:
        return _week_special(kind, item)
    return None


def _month_special(kind: FieldKind, item: str) -> MonthSpecial | None:
    if item == "L":
        return LastDay()
    if item == "LW":
        return LastWeekday()
    if match := re.fullmatch("L-([0-9]+)", item):
        return LastDay(_check_bounds(kind, match[1], 1, 30))
    if match := re.fullmatch("([0-9]+)W", item):
        return NearestWeekday(_check_bounds(kind, match[1], 1, 31))
    if match := re.fullmatch("WD#([0-9]+)", item):
        return NthWorkingDay(_check_bounds(kind, match[1], 1, MAX_WORKING_DAYS))
    if match := re.fullmatch("WD#L(?:-([0-9]+))?", item):
        return NthWorkingDay(-1 - _check_bounds(kind, match[1] or "0", 0, MAX_WORKING_DAYS - 1))
    if match := re.fullmatch("WD-?([0-9]+|L(?:-[0-9]+)?)", item):
        kind.refuse(
            _("%(field)s: %(value)s is not valid (did you mean %(near)s?)"),
            repr(item),
            near=repr(f"WD#{match[1]}"),
            code="invalid_value",
        )
    return None


def _week_special(kind: FieldKind, item: str) -> NthWeekday | None:
    if match := re.fullmatch("([0-9A-Z]+)L", item):
        return NthWeekday(_number(kind, match[1], item) % 7, None)
    if match := re.fullmatch("([0-9A-Z]+)#([0-9]+)", item):
        weekday = _number(kind, match[1], item) % 7
        if not 1 <= int(match[2]) <= 5:
            kind.refuse(
                _(
                    "%(field)s: %(value)s asks for weekday number %(number)s of the month "
                    "(allowed: #1 to #5)"
                ),
                repr(item),
                number=match[2],
                code="invalid_weekday_number",
            )
        return NthWeekday(weekday, int(match[2]))
    return None
