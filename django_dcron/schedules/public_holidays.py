"""Look up the public holidays of a country or subdivision in the package ``holidays``.

The package is imported on first use.

Invariants:

- The result depends only on the country, the subdivision, the year and the package's release. It is
  cached.
- A year for which the package has no data has no holidays.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from datetime import date
from functools import lru_cache, partial
from typing import Any

from django_dcron.exceptions import InvalidCalendar
from django_dcron.utils.messages import gettext_noop as _
from django_dcron.utils.suggestions import similar_names

MISSING = _("public holidays need the package “holidays”: pip install django-dcron[holidays]")
_UNKNOWN = _(
    "no public holidays are known for country %(value)s; use an ISO 3166 code such as DE, US or BR"
)
_MISSPELLED = _("no public holidays are known for country %(value)s; did you mean %(near)s?")
_NO_PARTS = _(
    "no public holidays are known for %(value)s; use %(country)s, which has no subdivisions"
)
_NO_PART = _(
    "no public holidays are known for %(value)s (allowed subdivisions of %(country)s: %(allowed)s)"
)


def holidays_in(country: str, part: str) -> partial[frozenset[date]]:
    """Return a function from a year to its holidays; raises ``InvalidCalendar``."""
    known = _known()
    if country not in known:
        if near := similar_names(country, known, most=1):
            raise InvalidCalendar(_MISSPELLED, value=country, near=near[0], code="unknown_country")
        raise InvalidCalendar(_UNKNOWN, value=country, code="unknown_country")
    named = {name.casefold(): name for name in ("", *known[country])}
    if part.casefold() not in named:
        value, parts = f"{country}-{part}", ", ".join(known[country])
        if not parts:
            raise InvalidCalendar(
                _NO_PARTS, value=value, country=country, code="unknown_subdivision"
            )
        raise InvalidCalendar(
            _NO_PART, value=value, country=country, allowed=parts, code="unknown_subdivision"
        )
    return partial(_holidays_of_year, country, named[part.casefold()])


def holiday_name(country: str, part: str, day: date, language: str) -> str:
    """Return the name of a public holiday, or an empty string if the day isn't one.

    ``language``: a code of Django, such as ``de`` or ``zh-hans``. If the package doesn't have the
    name in this language, it is in English, or else in the country's language.
    """
    try:
        return _names_of_year(country, part, day.year, language).get(day, "")
    except Exception:  # a name is an extra; a calendar works without it
        return ""


@lru_cache(maxsize=256)
def _names_of_year(country: str, part: str, year: int, language: str) -> dict[date, str]:
    holidays_in(country, part)  # raises if the place is unknown
    named = {name.casefold(): name for name in ("", *_known()[country])}[part.casefold()]
    supported = _package().country_holidays(country, subdiv=named or None).supported_languages
    found = _package().country_holidays(
        country,
        subdiv=named or None,
        # A holiday may be observed in the year before or after its own.
        years=range(year - 1, year + 2),
        language=_supported_language(language, supported),
    )
    return dict(found.items())


def _supported_language(language: str, supported: Iterable[str]) -> str | None:
    """Return the code of the package for a language of Django, or for English, or None."""
    wanted = language.replace("-", "_").casefold().replace("zh_hans", "zh_cn")
    codes = {code.casefold(): code for code in supported}
    short = wanted.partition("_")[0]
    near = (codes[code] for code in codes if code.partition("_")[0] == short and short != "zh")
    english = (codes[code] for code in codes if code.partition("_")[0] == "en")
    return codes.get(wanted) or next(near, None) or next(english, None)


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
        raise InvalidCalendar(MISSING, code="package_missing") from None
    # The package warns about years with incomplete data. Every schedule looks that far ahead.
    warnings.filterwarnings("ignore", message="Requested Holidays are available only")
    return holidays


@lru_cache(maxsize=1)
def _known() -> dict[str, list[str]]:
    """Return the supported countries with their subdivisions."""
    found: dict[str, list[str]] = _package().list_supported_countries()
    return found


def _holidays_of_year(country: str, part: str, year: int) -> frozenset[date]:
    return _holidays_of_decade(country, part, year // 10)[year % 10]


@lru_cache(maxsize=1024)
def _holidays_of_decade(country: str, part: str, decade: int) -> tuple[frozenset[date], ...]:
    """Return the holidays of each year. The package needs a millisecond for a year alone."""
    years = range(10 * decade, 10 * decade + 10)
    # A holiday may be observed in the year before or after its own.
    nearby_years = range(years[0] - 1, years[-1] + 2)
    found = _package().country_holidays(country, subdiv=part or None, expand=False)
    known = [each for each in nearby_years if found.start_year <= each <= found.end_year]
    found = _package().country_holidays(country, subdiv=part or None, years=known, expand=False)
    return tuple(frozenset(day for day in found if day.year == year) for year in years)
