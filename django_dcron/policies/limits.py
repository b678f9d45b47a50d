"""Shared limits: under which key a run counts, and which places of a limit are free.

A limit has ``max_running`` places for each key. A run needs a place to start, and releases it at
the end of each attempt. Within each interval, at most ``max_started`` runs start.

Invariants:

- A key depends only on the template and the run's arguments.
- Places are numbered from 1. A number is free only if no run has it.
- If the limit has been lowered, runs keep their places until they end. No place is free until fewer
  runs have one than the new limit allows.
- A run keeps its slot while it waits for a place, but has no place while it waits for a slot. A run
  that has a place executes or is about to. So no two runs wait for each other
  (``docs/explanation/decisions.md``).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

LONGEST_KEY = 190
_DIGEST_LENGTH = 32
_FIELD = re.compile(r"\{(?:kwargs\[(\w+)\]|args\[(\d{1,4})\])\}", re.ASCII)


def is_key_template(text: str) -> bool:
    """Return whether all braces of ``text`` belong to ``{kwargs[name]}`` or ``{args[0]}``."""
    return not re.search(r"[{}]", _FIELD.sub("", text))


def limit_key(template: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the key under which a run with these arguments counts.

    A missing argument and null count as an empty text. A long key ends with a hash instead of its
    last characters.
    """

    def value_of(match: re.Match[str]) -> str:
        name, position = match.groups()
        if name is not None:
            return _text(kwargs.get(name))
        return _text(args[int(position)]) if int(position) < len(args) else ""

    key = _FIELD.sub(value_of, template)
    if len(key) <= LONGEST_KEY:
        return key
    digest = hashlib.sha256(key.encode()).hexdigest()[:_DIGEST_LENGTH]
    return f"{key[: LONGEST_KEY - _DIGEST_LENGTH - 1]}~{digest}"


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


@dataclass(frozen=True, slots=True)
class LineFacts:
    """The facts about the runs of one limit and key that decide how many more may start."""

    max_running: int | None
    """None: no limit."""
    max_started: int | None
    """None: no limit."""
    taken: Collection[int]
    """The numbers of the places that runs have."""
    unstarted: int = 0
    """How many of the runs with a place haven't started yet."""
    started: int = 0
    """How many runs have started within the last interval."""


def places_to_give(facts: LineFacts, at_most: int) -> list[int]:
    """Return the numbers of at most ``at_most`` places that may be given now, lowest first."""
    room = at_most
    if facts.max_running is not None:
        room = min(room, facts.max_running - len(facts.taken))
    if facts.max_started is not None:
        room = min(room, facts.max_started - facts.started - facts.unstarted)
    free = (number for number in count(1) if number not in facts.taken)
    return list(islice(free, max(room, 0)))
