"""The names of jobs, made from what their sources call them."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from django_dcron.moving.found import Found

LONGEST = 120
_BRACKETS = re.compile(r"[()\[\]{}<>'\"]+")
_OTHERS = re.compile(r"[^\w.@: -]+")


def distinct(found: Iterable[Found]) -> list[Found]:
    """The same entries with names that jobs may have, each another. Where several would have one name, all get a suffix made
    from what they are: so a name does not depend on the order."""
    cleaned = [_cleaned(each) for each in found]
    times = Counter((each.namespace, each.name.casefold()) for each in cleaned)
    return [
        _told_apart(each) if times[each.namespace, each.name.casefold()] > 1 else each for each in cleaned
    ]


def _cleaned(each: Found) -> Found:
    name = clean(each.name)
    if name == each.name:
        return each
    return replace(each, name=name, warnings=(f"there it is called {each.name!r}", *each.warnings))


def clean(name: str) -> str:
    allowed = " ".join(_OTHERS.sub("-", _BRACKETS.sub("", name)).split()).strip("-") or "job"
    if len(allowed) <= LONGEST:
        return allowed
    return _with_suffix(allowed, digest(name))


def digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:6]


def _told_apart(each: Found) -> Found:
    return replace(each, name=_with_suffix(each.name, each.suffix or digest(each.origin)))


def _with_suffix(name: str, suffix: str) -> str:
    return f"{name[: LONGEST - len(suffix) - 1].rstrip()}-{suffix}"
