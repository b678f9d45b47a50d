"""The public holidays of a country, or of a part of it, as dates: what the package ``holidays`` knows, imported when first asked.

Invariant: the answer depends on country, part, year and the package's release alone, and is kept; a year that the package knows
nothing of has no holidays.
"""

from __future__ import annotations

import warnings
from datetime import date
from difflib import get_close_matches
from functools import lru_cache, partial
from typing import Any

from django_dcron.exceptions import InvalidCalendar
from django_dcron.phrases import gettext_noop as _

MISSING = _("public holidays need the package “holidays”: pip install django-dcron[holidays]")
_UNKNOWN = _(
    "%(value)s is no country whose holidays are known (allowed: ISO 3166 codes such as DE, US or BR)"
)
_MISSPELLED = _(
    "%(value)s is no country whose holidays are known (allowed: ISO 3166 codes such as DE, US or BR; did you mean %(near)s?)"
)
_NO_PARTS = _("%(value)s: no parts of %(country)s are known (allowed: %(country)s)")
_NO_PART = _("%(value)s is no part of %(country)s whose holidays are known (allowed: %(allowed)s)")


def holidays_in(country: str, part: str) -> partial[frozenset[date]]:
    """Of each year. Raises ``InvalidCalendar``."""
    known = _known()
    if country not in known:
        if near := get_close_matches(country, known, n=1):
            raise InvalidCalendar(_MISSPELLED, value=country, near=near[0])
        raise InvalidCalendar(_UNKNOWN, value=country)
    named = {name.casefold(): name for name in ("", *known[country])}
    if part.casefold() not in named:
        value, parts = f"{country}-{part}", ", ".join(known[country])
        if not parts:
            raise InvalidCalendar(_NO_PARTS, value=value, country=country)
        raise InvalidCalendar(_NO_PART, value=value, country=country, allowed=parts)
    return partial(_of_year, country, named[part.casefold()])


def is_installed() -> bool:
    try:
        _package()
    except InvalidCalendar:
        return False
    return True


def _package() -> Any:
    try:
        import holidays
    except ImportError:
        raise InvalidCalendar(MISSING) from None
    # Said of years in which some holidays are not known yet: every schedule looks that far ahead.
    warnings.filterwarnings("ignore", message="Requested Holidays are available only")
    return holidays


@lru_cache(maxsize=1)
def _known() -> dict[str, list[str]]:
    """The countries, and the parts of each."""
    found: dict[str, list[str]] = _package().list_supported_countries()
    return found


@lru_cache(maxsize=4096)
def _of_year(country: str, part: str, year: int) -> frozenset[date]:
    # A holiday may be observed in the year before or after its own.
    found = _package().country_holidays(country, subdiv=part or None, expand=False)
    years = [each for each in (year - 1, year, year + 1) if found.start_year <= each <= found.end_year]
    found = _package().country_holidays(country, subdiv=part or None, years=years, expand=False)
    return frozenset(day for day in found if day.year == year)
