"""Derive job names from the names in a source."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from django_dcron.contrib.importers.source_contents import SourceEntry

LONGEST = 120
_BRACKETS = re.compile(r"[()\[\]{}<>'\"]+")
_OTHERS = re.compile(r"[^\w.@: -]+")


def with_distinct_names(entries: Iterable[SourceEntry]) -> list[SourceEntry]:
    """Return the entries with valid, unique job names.

    Entries with the same name all get a suffix derived from the entry itself, so a name doesn't
    depend on the order.
    """
    cleaned = [_with_clean_name(entry) for entry in entries]
    times = Counter((entry.namespace, folded(entry.name)) for entry in cleaned)
    return [
        with_unique_name(entry) if times[entry.namespace, folded(entry.name)] > 1 else entry
        for entry in cleaned
    ]


def folded(name: str) -> str:
    """Return the name without case and accents, which MariaDB ignores."""
    plain = unicodedata.normalize("NFKD", name.casefold())
    return "".join(character for character in plain if not unicodedata.combining(character))


def _with_clean_name(entry: SourceEntry) -> SourceEntry:
    name = clean_name(entry.name)
    if name == entry.name or entry.refused:
        return entry
    return replace(entry, name=name, warnings=(f"renamed from {entry.name!r}", *entry.warnings))


def clean_name(name: str) -> str:
    allowed = " ".join(_OTHERS.sub("-", _BRACKETS.sub("", name)).split()).strip("- ") or "job"
    if len(allowed) <= LONGEST:
        return allowed
    return _with_suffix(allowed, name_digest(name))


def name_digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:6]


def with_unique_name(entry: SourceEntry) -> SourceEntry:
    """Return the entry with a suffix that distinguishes its name."""
    return replace(entry, name=_with_suffix(entry.name, entry.suffix or name_digest(entry.origin)))


def _with_suffix(name: str, suffix: str) -> str:
    return f"{name[: LONGEST - len(suffix) - 1].rstrip()}-{suffix}"
