"""Derive job names from the names in a source."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from django_dcron.contrib.importers.found import Found

LONGEST = 120
_BRACKETS = re.compile(r"[()\[\]{}<>'\"]+")
_OTHERS = re.compile(r"[^\w.@: -]+")


def distinct(found: Iterable[Found]) -> list[Found]:
    """Return the entries with valid, unique job names.

    Entries with the same name all get a suffix derived from the entry itself, so a name doesn't
    depend on the order.
    """
    cleaned = [_with_clean_name(each) for each in found]
    times = Counter((each.namespace, _folded(each.name)) for each in cleaned)
    return [
        with_unique_name(each) if times[each.namespace, _folded(each.name)] > 1 else each
        for each in cleaned
    ]


def _folded(name: str) -> str:
    """Return the name without case and accents, which MariaDB ignores."""
    plain = unicodedata.normalize("NFKD", name.casefold())
    return "".join(each for each in plain if not unicodedata.combining(each))


def _with_clean_name(each: Found) -> Found:
    name = clean(each.name)
    if name == each.name:
        return each
    return replace(each, name=name, warnings=(f"renamed from {each.name!r}", *each.warnings))


def clean(name: str) -> str:
    allowed = " ".join(_OTHERS.sub("-", _BRACKETS.sub("", name)).split()).strip("- ") or "job"
    if len(allowed) <= LONGEST:
        return allowed
    return _with_suffix(allowed, digest(name))


def digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:6]


def with_unique_name(each: Found) -> Found:
    """Return the entry with a suffix that distinguishes its name."""
    return replace(each, name=_with_suffix(each.name, each.suffix or digest(each.origin)))


def _with_suffix(name: str, suffix: str) -> str:
    return f"{name[: LONGEST - len(suffix) - 1].rstrip()}-{suffix}"
