"""Find regular expressions that may take superlinear time in a backtracking matcher.

The pattern becomes an automaton with one state per character position (Glushkov's construction). A
matcher backtracks superlinearly only if the automaton can read one text in several ways within its
loops:

- exponentially, if a state returns to itself by two paths that read the same text;
- polynomially, if a loop is followed by another loop, and both loops and the path between them read
  the same text.

Lookarounds and anchors count as empty, so some harmless patterns are reported as well. Only
``match`` and ``fullmatch`` are covered: ``search`` also tries every start position, which the
automaton doesn't model.
"""

import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

MAX_COPIES = 16
"""A repeat with a higher limit counts as unlimited."""
PROBES = (
    "".join(map(chr, range(256)))
    + "\u017fK\u0130\u0131\u0660\u1680\u2028\u3000\uff10\uff1a中\ud800\U0001f600"
)
"""Characters that stand for all others, in addition to those in the pattern."""


@dataclass
class Part:
    """A part of the automaton: first and last positions, and whether it matches the empty text."""

    nullable: bool = True
    first: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)


class Automaton:
    def __init__(self, pattern: "re.Pattern[str]"):
        self._alphabet = sorted({*PROBES, *_letters(pattern.pattern)})
        self.accepts: list[frozenset[str]] = []
        """The characters that each position reads."""
        self.edges: Counter[tuple[int, int]] = Counter()
        """Number of ways from one position to the next."""
        tree = _parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE & ~re.DEBUG)
        self._sequence(tree, pattern.flags)
        self._next: dict[int, list[int]] = {here: [] for here in range(len(self.accepts))}
        for here, there in self.edges:
            self._next[here].append(there)
        self._reach = {here: self._reachable(here) for here in self._next}

    def ambiguity(self) -> str:
        """Return ``"exponential"``, ``"polynomial"`` or an empty string."""
        loops = [here for here in self._next if here in self._reach[here]]
        if any(self._exponential(here) for here in loops):
            return "exponential"
        pairs = [
            (one, other)
            for one in loops
            for other in loops
            if one != other and other in self._reach[one]
        ]
        return "polynomial" if any(self._polynomial(*pair) for pair in pairs) else ""

    def _exponential(self, here: int) -> bool:
        loop = self._loop(here)
        if any(
            count > 1 for (one, other), count in self.edges.items() if one in loop and other in loop
        ):
            return True
        seen, waiting = {(here, here, False)}, [(here, here, False)]
        while waiting:
            one, other, apart = waiting.pop()
            for left in self._next[one]:
                for right in self._next[other]:
                    found = (left, right, apart or left != right)
                    if found == (here, here, True):
                        return True
                    if {left, right} <= loop and found not in seen and self._common(left, right):
                        seen.add(found)
                        waiting.append(found)
        return False

    def _polynomial(self, here: int, there: int) -> bool:
        """Return whether one text can be read along three paths.

        They lead from ``here`` to ``here``, from ``here`` to ``there``, and from ``there`` to
        ``there``.
        """
        begins, ends = self._loop(here), self._loop(there)
        seen, waiting = {(here, here, there)}, [(here, here, there)]
        while waiting:
            one, two, three = waiting.pop()
            for first in begins.intersection(self._next[one]):
                for second in self._next[two]:
                    for third in ends.intersection(self._next[three]):
                        found = (first, second, third)
                        if found in seen or not self._common(*found):
                            continue
                        if found == (here, there, there):
                            return True
                        seen.add(found)
                        waiting.append(found)
        return False

    def _common(self, *positions: int) -> frozenset[str]:
        return frozenset.intersection(*(self.accepts[position] for position in positions))

    def _loop(self, here: int) -> set[int]:
        return {there for there in self._reach[here] if here in self._reach[there]}

    def _reachable(self, here: int) -> set[int]:
        seen: set[int] = set()
        waiting = [here]
        while waiting:
            for there in self._next[waiting.pop()]:
                if there not in seen:
                    seen.add(there)
                    waiting.append(there)
        return seen

    # --- From the parsed pattern to positions ---

    def _sequence(self, items: Any, flags: int) -> Part:
        whole = Part()
        for code, value in items:
            whole = self._joined(whole, self._item(code, value, flags))
        return whole

    def _item(self, code: Any, value: Any, flags: int) -> Part:
        if code in (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN):
            self.accepts.append(self._characters(code, value, flags))
            position = len(self.accepts) - 1
            return Part(False, [position], [position])
        if code is op.SUBPATTERN:
            _group, add, remove, items = value
            return self._sequence(items, (flags | add) & ~remove)
        if code is op.BRANCH:
            parts = [self._sequence(items, flags) for items in value[1]]
            return Part(
                any(part.nullable for part in parts),
                [each for part in parts for each in part.first],
                [each for part in parts for each in part.last],
            )
        if code in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
            return self._repeat(*value, flags)
        if code is op.ATOMIC_GROUP:
            return self._sequence(value, flags)
        if code in (op.AT, op.ASSERT, op.ASSERT_NOT):
            return Part()
        raise NotImplementedError(f"{code} is not supported")

    def _repeat(self, least: int, most: int, items: Any, flags: int) -> Part:
        unlimited = most > MAX_COPIES
        copies = max(min(least, MAX_COPIES), 1) if unlimited else most
        whole = Part()
        for number in range(1, copies + 1):
            part = self._sequence(items, flags)
            if unlimited and number == copies:
                self.edges.update((end, begin) for end in part.last for begin in part.first)
            if number > least:
                part.nullable = True
            whole = self._joined(whole, part)
        return whole

    def _joined(self, one: Part, other: Part) -> Part:
        self.edges.update((end, begin) for end in one.last for begin in other.first)
        return Part(
            one.nullable and other.nullable,
            one.first + (other.first if one.nullable else []),
            other.last + (one.last if other.nullable else []),
        )

    def _characters(self, code: Any, value: Any, flags: int) -> frozenset[str]:
        """Return the characters of the alphabet that ``re`` itself matches."""
        one = _parser.SubPattern(_parser.State(), [(code, value)])
        one.state.flags = flags
        compiled = re._compiler.compile(one, flags)  # type: ignore[attr-defined]
        return frozenset(char for char in self._alphabet if compiled.fullmatch(char))


def _letters(text: str) -> set[str]:
    return {each for char in text for each in (char, char.lower(), char.upper()) if len(each) == 1}


def ambiguity(pattern: "str | re.Pattern[str]") -> str:
    """Return how a backtracking matcher may slow down on ``pattern``.

    The result is ``"exponential"``, ``"polynomial"``, or an empty string if neither is possible.
    """
    return Automaton(re.compile(pattern)).ambiguity()


if __name__ == "__main__":
    print(ambiguity(sys.argv[1]) or "linear")  # noqa: T201
