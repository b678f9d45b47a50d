"""A rule about limits: how many runs of the same key execute at once or start within an interval.

The changes of runs tell when a run starts and ends, because a transaction that starts or ends a run
locks the limit. The times of attempts don't: an attempt's start is the time at which its worker has
read the run.

Invariants:

- A run counts from its start to the end of its attempt, under the key that its arguments yield.
- A run gets its place when it starts, or earlier if it waits. So if the limit is lowered after a
  run began to wait, the definitions since then are considered, and the highest one applies.
- If the interval is set or lengthened, only the starts since then count.
- If a run's key has changed since its attempt was created, the run isn't judged: its worker may
  have read the old arguments.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from tests.verdict.finding import TOLERANCE, Finding
from tests.verdict.history import FINAL, Change, History, Limit

Line = tuple[str, str]
"""The name of a limit, and a key."""

PLACEHOLDER = re.compile(r"\{(kwargs|args)\[(\w+)\]\}", re.ASCII)


def limits(history: History) -> list[Finding]:
    """No more runs execute, and no more start within an interval, than a limit allows for a key."""
    lines, found = LimitLines(), []
    events: list[Limit | Change] = [*history.limits, *history.changes]
    for event in sorted(events, key=lambda event: event.number):
        if isinstance(event, Limit):
            lines.define(event)
            continue
        about = f"run {event.run}"
        found += [Finding("limits", about, message) for message in lines.change(event)]
    return found


def key_of(template: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the key of a run with these arguments. It isn't shortened as the package does it."""

    def text_of(found: re.Match[str]) -> str:
        kind, name = found.groups()
        if kind == "kwargs":
            value = kwargs.get(name)
        else:
            value = args[int(name)] if int(name) < len(args) else None
        if value is None or isinstance(value, str):
            return value or ""
        return json.dumps(value, sort_keys=True)

    return PLACEHOLDER.sub(text_of, template)


class LimitLines:
    """Follows the runs of each limit and key, change by change."""

    def __init__(self) -> None:
        self._definitions: defaultdict[str, list[Limit]] = defaultdict(list)
        self._waits: dict[str, Change] = {}
        """When each run began to wait for its limit, if it hasn't started since then."""
        self._seen: defaultdict[str, set[Line]] = defaultdict(set)
        """The lines of each run's next attempt, as far as its changes tell."""
        self._lines: dict[str, Line] = {}
        """The line of each run that executes."""
        self._running: defaultdict[Line, dict[str, int]] = defaultdict(dict)
        """The runs that execute, and the earliest change at which each may have got its place."""
        self._starts: defaultdict[Line, list[Change]] = defaultdict(list)

    def define(self, limit: Limit) -> None:
        self._definitions[limit.name].append(limit)

    def change(self, change: Change) -> list[str]:
        """Follow the next change. Return what is wrong after it."""
        if change.old == "running" and (line := self._lines.pop(change.run, None)):
            del self._running[line][change.run]
        self._seen[change.run].add((change.limit, change.key))
        if change.new == "waiting" and change.limited:
            self._waits[change.run] = change
        elif change.new in FINAL:
            self._waits.pop(change.run, None)
            del self._seen[change.run]
        elif change.new == "running":
            seen = self._seen.pop(change.run)
            if change.old != "running":
                return self._start(change, self._waits.pop(change.run, None), seen)
        return []

    def _start(self, start: Change, wait: Change | None, seen: set[Line]) -> list[str]:
        line = start.limit, start.key
        if not start.limit or seen != {line}:
            return []
        self._lines[start.run] = line
        self._running[line][start.run] = start.number if wait is None else wait.number
        self._starts[line].append(start)
        if start.limit not in self._definitions:
            return [f"limit {start.limit} has no definition"]
        problems = self._too_many_running(line), self._too_many_started(line, start)
        return [problem for problem in problems if problem]

    def _too_many_running(self, line: Line) -> str:
        """Return what is wrong if more runs execute than allowed when the last one got its place.

        At that time, all the others had theirs.
        """
        running, definitions = self._running[line], self._definitions[line[0]]
        since = max(running.values())
        earlier = [each for each in definitions if each.number < since]
        later = [each for each in definitions if each.number > since]
        maxima = [each.max_running for each in (*earlier[-1:], *later)]
        highest = max((each for each in maxima if each is not None), default=0)
        if None in maxima or len(running) <= highest:
            return ""
        return f"{len(running)} of {highest} running: {_name(line)}"

    def _too_many_started(self, line: Line, start: Change) -> str:
        definitions = self._definitions[line[0]]
        limit = definitions[-1]
        if limit.max_started is None or limit.interval is None or start.at is None:
            return ""
        since, begin = _counted_since(definitions), start.at - limit.interval + TOLERANCE
        recent = [
            each
            for each in self._starts[line]
            if each.number > since and each.at is not None and each.at > begin
        ]
        if len(recent) <= limit.max_started:
            return ""
        within = f"{limit.interval}: {_name(line)}"
        return f"{len(recent)} of {limit.max_started} started within {within}"


def _counted_since(definitions: Sequence[Limit]) -> int:
    """Return the number of the latest definition that set or lengthened the interval."""
    shortest, since = definitions[-1].interval, definitions[-1].number
    for each in reversed(definitions):
        if each.interval is None or shortest is None or each.interval < shortest:
            break
        shortest, since = each.interval, each.number
    return since


def _name(line: Line) -> str:
    return " ".join(filter(None, ("limit", *line)))
