"""One cron field: its text turned into explicit values, or refused with a message that says why.

Everything a crontab line may say is decided here and nothing is left to the engine's own, laxer parser.
Invariants:
- a `Field` holds only values inside its range; Sunday is always 0;
- whatever is refused names the field, the value and what is allowed;
- `H` is replaced by its drawn values before anything else sees the field.
"""

import re
from dataclasses import dataclass, field
from typing import NoReturn

from django_dcron.domain.hashing import hashed_value
from django_dcron.domain.special_days import (
    LastDay,
    LastWeekday,
    MonthSpecial,
    NearestWeekday,
    NthWeekday,
    Special,
)
from django_dcron.exceptions import InvalidSchedule
from django_dcron.phrases import Phrase
from django_dcron.phrases import gettext_noop as _

_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")


@dataclass(frozen=True)
class FieldKind:
    """Name, value range and spelled-out values of a field; `hashes` is the range a bare `H` draws from, if it may."""

    name: str
    low: int
    high: int
    names: dict[str, int] = field(default_factory=dict)
    hashes: tuple[int, int] | None = None
    # What a step starting at a value runs to; differs from `high` only for the weekday, where 7 is another name for 0.
    top: int = 0

    @property
    def allowed(self) -> Phrase | str:
        span = f"{self.low}-{self.high}"
        if not self.names:
            return span
        spelled = list(self.names)
        return Phrase(_("%(numbers)s or %(names)s"), numbers=span, names=f"{spelled[0]}-{spelled[-1]}")

    def refuse(self, template: str, value: str, **values: object) -> NoReturn:
        """``template`` begins with the field's name and the value."""
        raise InvalidSchedule(
            template, field=Phrase(self.name), value=value, **{"allowed": self.allowed, **values}
        )


SECOND = FieldKind(_("second"), 0, 59, hashes=(0, 59), top=59)
MINUTE = FieldKind(_("minute"), 0, 59, hashes=(0, 59), top=59)
HOUR = FieldKind(_("hour"), 0, 23, hashes=(0, 23), top=23)
# As in Jenkins, H avoids the days that not every month has.
DAY_OF_MONTH = FieldKind(_("day of month"), 1, 31, hashes=(1, 28), top=31)
MONTH = FieldKind(_("month"), 1, 12, {name: n for n, name in enumerate(_MONTHS, 1)}, hashes=(1, 12), top=12)
DAY_OF_WEEK = FieldKind(
    _("day of week"), 0, 7, {name: n for n, name in enumerate(_WEEKDAYS)}, hashes=(0, 6), top=6
)
YEAR = FieldKind(_("year"), 1970, 2099, top=2099)


@dataclass(frozen=True)
class Field:
    """A parsed field. `starred`: its text starts with `*` or is `?`. `resolved`: the text with every `H` drawn."""

    kind: FieldKind
    resolved: str
    starred: bool
    values: tuple[int, ...]
    specials: tuple[Special, ...] = ()

    @property
    def everything(self) -> bool:
        return len(self.values) == self.kind.top - self.kind.low + 1


def parse_field(kind: FieldKind, text: str, hash_key: str = "") -> Field:
    """Parse one upper-cased field; raises `InvalidSchedule`."""
    if text == "?":
        if kind not in (DAY_OF_MONTH, DAY_OF_WEEK):
            kind.refuse(_("%(field)s: %(value)s is for the day fields only (allowed %(allowed)s or *)"), "?")
        return Field(kind, "*", True, tuple(range(kind.low, kind.top + 1)))
    values: set[int] = set()
    specials: list[Special] = []
    resolved = []
    for item in text.split(","):
        if not item:
            kind.refuse(
                _("%(field)s: %(value)s has an empty item in its list (allowed %(allowed)s)"), repr(text)
            )
        special = _special(kind, item)
        if special is not None:
            specials.append(special)
        else:
            item = _draw(kind, item, hash_key) if item[0] == "H" else item
            values.update(_values(kind, item))
        resolved.append(item)
    return Field(
        kind, ",".join(resolved), text[0] == "*", tuple(sorted(values)), tuple(dict.fromkeys(specials))
    )


def _values(kind: FieldKind, item: str) -> set[int]:
    """`*`, `a`, `a-b`, each with or without `/step`."""
    span, slash, step_text = item.partition("/")
    step = _step(kind, item, step_text) if slash else 1
    if span == "*":
        low, high = kind.low, kind.top
    elif "-" in span:
        low, high = _range(kind, span)
    elif kind is DAY_OF_WEEK and item == "L":
        low = high = 6  # Quartz: the last day of the week is Saturday
    else:
        low = _number(kind, span, item)
        high = max(low, kind.top) if slash else low
    values = range(low, high + 1, step)
    return {value % 7 for value in values} if kind is DAY_OF_WEEK else set(values)


_REVERSED = _("%(field)s: %(value)s is a reversed range (allowed %(allowed)s, lower value first)")
_REVERSED_SUNDAY = _(
    "%(field)s: %(value)s is a reversed range (write 7 for a Sunday at the end) (allowed %(allowed)s, lower value first)"
)


def _range(kind: FieldKind, span: str) -> tuple[int, int]:
    low_text, _dash, high_text = span.partition("-")
    low, high = _number(kind, low_text, span), _number(kind, high_text, span)
    if high_text == "SUN" and low > 0:
        high = 7
    if low > high:
        kind.refuse(_REVERSED_SUNDAY if kind is DAY_OF_WEEK and high == 0 else _REVERSED, span)
    return low, high


_NO_VALUE = _("%(field)s: %(value)s is not a value of this field (allowed %(allowed)s)")
_NO_VALUE_IN = _("%(field)s: %(value)s in %(item)s is not a value of this field (allowed %(allowed)s)")


def _number(kind: FieldKind, text: str, item: str) -> int:
    if text in kind.names:
        return kind.names[text]
    if not re.fullmatch("[0-9]+", text):
        kind.refuse(_NO_VALUE if text == item else _NO_VALUE_IN, repr(text), item=repr(item))
    return _bounded(kind, text, kind.low, kind.high)


def _bounded(kind: FieldKind, text: str, low: int, high: int) -> int:
    value = int(text)
    if not low <= value <= high:
        allowed = kind.allowed if (low, high) == (kind.low, kind.high) else f"{low}-{high}"
        kind.refuse(_("%(field)s: %(value)s is out of range (allowed %(allowed)s)"), text, allowed=allowed)
    return value


def _step(kind: FieldKind, item: str, text: str, width: int | None = None) -> int:
    """The step. ``width``: how many values there are to draw from; no step of `H` may be larger, as in Jenkins."""
    # The greatest step that means anything: the greatest value, or for the year the width of its range.
    most = kind.high - kind.low if kind is YEAR else kind.high
    most = most if width is None else min(most, width)
    if not re.fullmatch("[0-9]+", text) or not 1 <= int(text) <= most:
        kind.refuse(
            _("%(field)s: %(value)s has a step of %(step)s (allowed steps 1-%(most)d)"),
            repr(item),
            step=text or Phrase(_("nothing")),
            most=most,
        )
    return int(text)


_HASH = re.compile(r"H(?:\(([0-9]+)-([0-9]+)\))?(/.*)?")


def _draw(kind: FieldKind, item: str, key: str) -> str:
    """Replace `H`, `H(a-b)`, `H/n`, `H(a-b)/n` by the value or the stepped range it stands for."""
    match = _HASH.fullmatch(item)
    if kind.hashes is None:
        kind.refuse(
            _("%(field)s: %(value)s is not a value of this field (allowed %(allowed)s; no H in this field)"),
            repr(item),
        )
    if match is None:
        kind.refuse(
            _("%(field)s: %(value)s is not a value of this field (allowed %(allowed)s; %(forms)s)"),
            repr(item),
            forms="H, H(a-b), H/n, H(a-b)/n",
        )
    low, high = kind.hashes
    if match[1]:
        low, high = _range(kind, f"{match[1]}-{match[2]}")
    if not match[3]:
        return str(hashed_value(kind.name, low, high, key))
    step = _step(kind, item, match[3][1:], width=high - low + 1)
    first = hashed_value(kind.name, low, low + step - 1, key)
    return f"{first}-{high}/{step}"


def _special(kind: FieldKind, item: str) -> Special | None:
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
        return LastDay(_bounded(kind, match[1], 1, 30))
    if match := re.fullmatch("([0-9]+)W", item):
        return NearestWeekday(_bounded(kind, match[1], 1, 31))
    return None


def _week_special(kind: FieldKind, item: str) -> NthWeekday | None:
    if match := re.fullmatch("([0-9A-Z]+)L", item):
        return NthWeekday(_number(kind, match[1], item) % 7, None)
    if match := re.fullmatch("([0-9A-Z]+)#([0-9]+)", item):
        weekday = _number(kind, match[1], item) % 7
        if not 1 <= int(match[2]) <= 5:
            kind.refuse(
                _("%(field)s: %(value)s asks for weekday number %(number)s of a month (allowed #1-#5)"),
                repr(item),
                number=match[2],
            )
        return NthWeekday(weekday, int(match[2]))
    return None
