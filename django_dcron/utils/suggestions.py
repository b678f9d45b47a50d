"""Suggest the names that a misspelled name probably means."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher
from heapq import nlargest

from django_dcron.utils.messages import TranslatableText, any_of

SIMILAR = 0.75
"""The lowest similarity of a suggestion, from 0 to 1."""
MARGIN = 0.05
"""A name is suggested only if its similarity is within this margin of the best one's."""
SIMILAR_LAST_PART = 0.6
"""The lowest similarity of the last parts, such as ``poll`` in ``shop.cron.poll``.

Otherwise, all names of a long module would be similar.
"""
SIMILAR_AFTER_HYPHEN = 0.8
"""The lowest similarity of names such as ``import-orders`` to ``orders``.

That of a name with one typo, such as ``order``, is higher.
"""
LONGEST = 80
"""The number of characters that are compared, to limit the time."""
SHORTEST_PART = 3
PART_MARKS = "./:"
"""The characters that separate the parts of a name, apart from the hyphen."""


def similar_names(
    name: str, known: Iterable[str], *, most: int = 3, least: float = SIMILAR
) -> list[str]:
    """Return the known names that ``name`` may mean, the likeliest first.

    A known name also counts as similar if it begins with ``name``, or if its last part equals or
    resembles ``name``: ``Berlin`` and ``Berln`` suggest ``Europe/Berlin``, and ``beat`` suggests
    ``django-celery-beat``.
    """
    word = name[:LONGEST].casefold()
    matcher = SequenceMatcher[str](autojunk=False)
    matcher.set_seq2(word)
    rated = ((_similarity(matcher, word, each, least), each) for each in sorted(set(known)))
    found = [(rating, each) for rating, each in rated if rating]
    best = nlargest(most, found, key=lambda pair: pair[0])
    return [each for rating, each in best if rating > best[0][0] - MARGIN]


def _similarity(matcher: SequenceMatcher[str], word: str, known: str, least: float) -> float:
    """Return the similarity of a known name to ``word``; 0 if it is below ``least``."""
    other = known[:LONGEST].casefold()
    is_long = len(word) >= SHORTEST_PART
    ends = tuple(f"{mark}{word}" for mark in PART_MARKS)
    if is_long and (other.startswith(word) or other.endswith(ends)):
        return 1.0
    matcher.set_seq1(other)
    if is_long and other.endswith(f"-{word}"):
        return max(matcher.ratio(), SIMILAR_AFTER_HYPHEN)
    ratio = _ratio(matcher, least)
    if ratio:
        last_parts = SequenceMatcher(None, _last_part(word), _last_part(other), autojunk=False)
        ratio = ratio if last_parts.ratio() >= SIMILAR_LAST_PART else 0.0
    if is_long and _last_part(word) == word:
        matcher.set_seq1(_last_part(other))
        ratio = max(ratio, _ratio(matcher, least))
    return ratio


def _ratio(matcher: SequenceMatcher[str], least: float) -> float:
    """Return the ratio of the matcher's texts; 0 if it is below ``least``."""
    if matcher.real_quick_ratio() < least or matcher.quick_ratio() < least:
        return 0.0
    ratio = matcher.ratio()
    return ratio if ratio >= least else 0.0


def _last_part(name: str) -> str:
    return re.split(f"[{PART_MARKS}]", name)[-1]


def nearest(name: str, known: Iterable[str], least: float = SIMILAR) -> TranslatableText | str:
    """Return up to three similar names as ``'a', 'b' or 'c'``; empty if there are none."""
    near = similar_names(name, known, least=least)
    return any_of([repr(each) for each in near]) if near else ""


def did_you_mean(name: str, known: Iterable[str], least: float = SIMILAR) -> str:
    """Return ``" Did you mean 'a', 'b' or 'c'?"``; empty if no name is similar."""
    near = nearest(name, known, least)
    return f" Did you mean {near}?" if near else ""
