"""What a subcommand writes: lines and tables for people, or one JSON document for programs.

Invariants:

- With ``--json`` nothing but the one document goes to the standard output, in ASCII; errors go to the other.
- What comes from people, from logs or from the database cannot steer the terminal: its control characters are shown, not sent.
- A table is fitted to the terminal by rich, if that is installed, and only on a terminal that is wide enough for it (or with
  ``--force-color``), not with ``--no-color``. Anywhere else nothing is cut or wrapped: a row is a line, so that ``grep`` and ``awk``
  see it whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal
from unicodedata import combining, east_asian_width

from django.core.management.base import BaseCommand, CommandParser
from django.utils import timezone

from django_dcron.domain.lifecycle import State
from django_dcron.management.dcron.plain_text import printable
from django_dcron.observability import wording

if TYPE_CHECKING:
    from rich.console import Console

EMPTY = "-"
GAP = "  "
LEAST = 16
"""Columns of a terminal for a text that wraps."""

GOOD, BAD, ODD, QUIET, STRONG = "good", "bad", "odd", "quiet", "strong"
"""What a text is to look like, where there are colours."""
DJANGO_STYLES = {GOOD: "SUCCESS", BAD: "ERROR", ODD: "WARNING", STRONG: "HTTP_INFO"}
RICH_STYLES = {GOOD: "green", BAD: "bold red", ODD: "yellow", QUIET: "dim", STRONG: "bold"}

STATE_STYLES: dict[str, str] = {
    State.SUCCEEDED: GOOD,
    State.FAILED: BAD,
    State.MISSED: ODD,
    State.SKIPPED: ODD,
    State.CANCELLED: ODD,
    State.RUNNING: STRONG,
}


@dataclass(frozen=True, slots=True)
class Styled:
    text: str
    style: str


Cell = str | int | Styled | None


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    right: bool = False
    """Numbers and durations, which compare by their ends."""
    wraps: bool = False
    """Free text, which goes on in the next line where a terminal is narrow. Of a table one column at least should."""


def add_json(parser: CommandParser) -> None:
    parser.add_argument("--json", action="store_true", help="write one JSON document, for programs")


class Output:
    def __init__(self, command: BaseCommand, options: dict[str, Any]) -> None:
        self._command = command
        self.is_json = bool(options.get("json"))
        self.is_terminal = bool(options.get("force_color")) or command.stdout.isatty()
        plain = self.is_json or options.get("no_color") or not self.is_terminal
        self.console = None if plain else self._rich_console()
        """rich's, where it is installed and there is a terminal: for tables, progress bars and live output."""

    def _rich_console(self) -> Console | None:
        try:
            from rich.console import Console
        except ImportError:
            return None

        class ConsoleOfOurs(Console):
            def on_broken_pipe(self) -> None:
                """rich would end the process with 1; how it ends is for the command to say."""
                raise BrokenPipeError

        stream: Any = self._command.stdout._out  # rich asks it for its encoding
        return ConsoleOfOurs(
            file=stream,
            force_terminal=True,
            highlight=False,
            markup=False,
            emoji=False,
        )

    def line(self, text: str = "", style: str = "") -> None:
        """One line or more; of ``text`` nothing is taken for a command to the terminal."""
        self._command.stdout.write(self._styled(printable(text), style))

    def flush(self) -> None:
        """For whoever reads along, through a pipe."""
        self._command.stdout.flush()

    def json(self, document: dict[str, Any]) -> None:
        self._command.stdout.write(json.dumps(document, indent=2, default=_encoded))

    def fields(self, pairs: Iterable[tuple[str, Cell]]) -> None:
        """Labels and values, those without a value left out."""
        shown = [(printable(label), cell) for label, cell in pairs if _text(cell) != ""]
        width = max((_width(label) for label, _ in shown), default=0)
        for label, cell in shown:
            first, *rest = _text(cell).split("\n")
            self._command.stdout.write(f"{_padded(label, width)}{GAP}{self._styled(first, _style(cell))}")
            for each in rest:
                self._command.stdout.write(f"{' ' * width}{GAP}{each}")

    def table(self, columns: Sequence[Column | str], rows: Iterable[Sequence[Cell]]) -> None:
        heads = [Column(column) if isinstance(column, str) else column for column in columns]
        heads = [replace(head, title=printable(head.title)) for head in heads]
        lines = list(rows)
        if self.console is not None and _fits(heads, lines, self.console.width):
            self._draw(self.console, heads, lines)
        else:
            self._align(heads, lines)

    def _draw(self, console: Console, heads: Sequence[Column], rows: Iterable[Sequence[Cell]]) -> None:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, padding=(0, len(GAP), 0, 0), header_style="bold")
        for head in heads:
            justify: Literal["left", "right"] = "right" if head.right else "left"
            table.add_column(head.title, justify=justify, overflow="fold", no_wrap=not head.wraps)
        for row in rows:
            table.add_row(*(Text(_text(cell), RICH_STYLES.get(_style(cell), "")) for cell in row))
        self._command.stdout.flush()
        console.print(table)

    def _align(self, heads: Sequence[Column], rows: Iterable[Sequence[Cell]]) -> None:
        lines = [[Styled(head.title, STRONG) for head in heads], *rows]
        widths = [max(_width(_in_one_line(line[place])) for line in lines) for place in range(len(heads))]
        for line in lines:
            cells = [
                _padded(_in_one_line(cell), width, right=head.right)
                for cell, width, head in zip(line, widths, heads, strict=True)
            ]
            last = len(cells) - 1 - next((n for n, cell in enumerate(reversed(cells)) if cell.strip()), 0)
            cells = [*cells[:last], cells[last].rstrip()]
            styled = [self._styled(text, _style(cell)) for text, cell in zip(cells, line, strict=False)]
            self._command.stdout.write(GAP.join(styled))

    def _styled(self, text: str, style: str) -> str:
        role = DJANGO_STYLES.get(style)
        if role is None or not self.is_terminal:
            return text
        return str(getattr(self._command.style, role)(text))


def iso(instant: datetime | None) -> str | None:
    """For programs: UTC, with a ``Z``."""
    if instant is None:
        return None
    return instant.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


def seconds(length: timedelta | None) -> float | None:
    """For programs."""
    return None if length is None else length.total_seconds()


def moment(instant: datetime | None, zone: Any = None) -> str:
    """For people: in the site's time zone, or another, which it names."""
    return EMPTY if instant is None else wording.moment(instant, zone or timezone.get_current_timezone())


def span(length: timedelta | None) -> str:
    """For people: 12 ms, 3.4 s, 2m 03s, 1h 02m, 3d 4h."""
    return EMPTY if length is None else wording.span(length)


def distance(instant: datetime | None, now: datetime) -> str:
    """For people: ``in 2m 03s``, ``3d 4h ago``."""
    if instant is None:
        return EMPTY
    return f"in {span(instant - now)}" if instant > now else f"{span(now - instant)} ago"


def state(name: str) -> Styled:
    """A run's state, or an attempt's outcome, in its colour."""
    outcome = State.FAILED if name in ("timed_out", "lost") else name
    return Styled(name.replace("_", " ") or EMPTY, STATE_STYLES.get(outcome, ""))


def _encoded(value: Any) -> Any:
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, timedelta):
        return seconds(value)
    return str(value)


def _fits(heads: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int) -> bool:
    """Whether what must not wrap has its place, and what may has enough to be read."""
    needed = len(GAP) * (len(heads) - 1)
    for place, head in enumerate(heads):
        widest = max(_width(head.title), *(_width(_text(row[place])) for row in rows), 0)
        needed += min(widest, LEAST) if head.wraps else widest
    return needed <= width


def _text(cell: Cell) -> str:
    return printable(str(cell.text if isinstance(cell, Styled) else "" if cell is None else cell))


def _in_one_line(cell: Cell) -> str:
    return " ".join(_text(cell).splitlines())


def _style(cell: Cell) -> str:
    return cell.style if isinstance(cell, Styled) else ""


def _padded(text: str, width: int, *, right: bool = False) -> str:
    blank = " " * (width - _width(text))
    return blank + text if right else text + blank


def _width(text: str) -> int:
    """In columns of a terminal."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)
