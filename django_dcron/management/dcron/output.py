"""Write a subcommand's output: lines and tables for people, or one JSON document for programs.

Invariants:

- With ``--json``, standard output contains only the document, in ASCII. Errors go to standard
  error.
- Text from users, logs or the database can't control the terminal: its control characters are
  escaped.
- On a terminal, or with ``--force-color``, rich draws tables if it is installed and they fit.
- Otherwise, and with ``--no-color``, nothing is cut or wrapped: each row is one line, so that
  ``grep`` and ``awk`` work.
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

from django_dcron.policies.lifecycle import State
from django_dcron.utils import time_format
from django_dcron.utils.control_characters import escape_control_characters

if TYPE_CHECKING:
    from rich.console import Console

EMPTY = "-"
GAP = "  "
MIN_COLUMN_WIDTH = 16
"""The minimum width of a wrapped column, in terminal columns."""

GOOD, BAD, WARNING, QUIET, STRONG = "good", "bad", "warning", "quiet", "strong"
"""The styles of text, where colors are available."""
DJANGO_STYLES = {GOOD: "SUCCESS", BAD: "ERROR", WARNING: "WARNING", STRONG: "HTTP_INFO"}
RICH_STYLES = {GOOD: "green", BAD: "bold red", WARNING: "yellow", QUIET: "dim", STRONG: "bold"}

STATE_STYLES: dict[str, str] = {
    State.SUCCEEDED: GOOD,
    State.FAILED: BAD,
    State.MISSED: WARNING,
    State.SKIPPED: WARNING,
    State.CANCELLED: WARNING,
    State.RUNNING: STRONG,
}


@dataclass(frozen=True, slots=True)
class StyledText:
    text: str
    style: str


Cell = str | int | StyledText | None


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    right: bool = False
    """Align right: for numbers and durations."""
    wraps: bool = False
    """Wrap free text on a narrow terminal. Each table should have at least one such column."""


def add_json(parser: CommandParser) -> None:
    parser.add_argument("--json", action="store_true", help="output JSON")


class Output:
    def __init__(self, command: BaseCommand, options: dict[str, Any]) -> None:
        self._command = command
        self.is_json = bool(options.get("json"))
        self.is_terminal = bool(options.get("force_color")) or command.stdout.isatty()
        plain = self.is_json or options.get("no_color") or not self.is_terminal
        self.console = None if plain else self._rich_console()
        """rich's console, for tables, progress bars and live output.

        It is None without rich, without a terminal, and with ``--json`` or ``--no-color``.
        """

    def _rich_console(self) -> Console | None:
        try:
            from rich.console import Console
        except ImportError:
            return None

        class PipeConsole(Console):
            def on_broken_pipe(self) -> None:
                """Keep the command's exit code; rich would exit with 1."""
                raise BrokenPipeError

        stream: Any = self._command.stdout._out  # rich reads the stream's encoding
        return PipeConsole(
            file=stream,
            force_terminal=True,
            highlight=False,
            markup=False,
            emoji=False,
        )

    def line(self, text: str = "", style: str = "") -> None:
        """Write one or more lines of text, with control characters escaped."""
        self._command.stdout.write(self._style_text(escape_control_characters(text), style))

    def progress(self, text: str) -> None:
        """Write a line to standard error, also with ``--json``."""
        self._command.stderr.write(escape_control_characters(text), style_func=lambda line: line)
        self._command.stderr.flush()

    def flush(self) -> None:
        """Flush the output for a reader on a pipe."""
        self._command.stdout.flush()

    def json(self, document: dict[str, Any]) -> None:
        self._command.stdout.write(json.dumps(document, indent=2, default=_encode_json))

    def fields(self, pairs: Iterable[tuple[str, Cell]]) -> None:
        """Write labels and values, without empty values."""
        shown = [
            (escape_control_characters(label), cell) for label, cell in pairs if _text(cell) != ""
        ]
        width = max((_width(label) for label, _ in shown), default=0)
        for label, cell in shown:
            first, *rest = _text(cell).split("\n")
            self._command.stdout.write(
                f"{_pad(label, width)}{GAP}{self._style_text(first, _style(cell))}"
            )
            for each in rest:
                self._command.stdout.write(f"{' ' * width}{GAP}{each}")

    def table(self, columns: Sequence[Column | str], rows: Iterable[Sequence[Cell]]) -> None:
        titled = [Column(column) if isinstance(column, str) else column for column in columns]
        titled = [replace(head, title=escape_control_characters(head.title)) for head in titled]
        lines = list(rows)
        if self.console is not None and _fits(titled, lines, self.console.width):
            self._draw(self.console, titled, lines)
        else:
            self._align(titled, lines)

    def _draw(
        self, console: Console, titled: Sequence[Column], rows: Iterable[Sequence[Cell]]
    ) -> None:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, padding=(0, len(GAP), 0, 0), header_style="bold")
        for head in titled:
            justify: Literal["left", "right"] = "right" if head.right else "left"
            table.add_column(head.title, justify=justify, overflow="fold", no_wrap=not head.wraps)
        for row in rows:
            table.add_row(*(Text(_text(cell), RICH_STYLES.get(_style(cell), "")) for cell in row))
        self._command.stdout.flush()
        console.print(table)

    def _align(self, titled: Sequence[Column], rows: Iterable[Sequence[Cell]]) -> None:
        lines = [[StyledText(head.title, STRONG) for head in titled], *rows]
        widths = [
            max(_width(_in_one_line(line[place])) for line in lines) for place in range(len(titled))
        ]
        for line in lines:
            cells = [
                _pad(_in_one_line(cell), width, right=head.right)
                for cell, width, head in zip(line, widths, titled, strict=True)
            ]
            while len(cells) > 1 and not cells[-1].strip():
                cells.pop()
            cells[-1] = cells[-1].rstrip()
            styled = [
                self._style_text(text, _style(cell))
                for text, cell in zip(cells, line, strict=False)
            ]
            self._command.stdout.write(GAP.join(styled))

    def _style_text(self, text: str, style: str) -> str:
        role = DJANGO_STYLES.get(style)
        if role is None or not self.is_terminal:
            return text
        return str(getattr(self._command.style, role)(text))


def iso(instant: datetime | None) -> str | None:
    """Format a time for programs: UTC, with a ``Z``."""
    if instant is None:
        return None
    return instant.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


def seconds(length: timedelta | None) -> float | None:
    """Return a duration in seconds, for programs."""
    return None if length is None else length.total_seconds()


def cautions_document(cautions: Iterable[str]) -> list[dict[str, str]]:
    """Return the cautions about a successful action, for a JSON document."""
    return [{"message": caution} for caution in cautions]


def time_text(instant: datetime | None, zone: Any = None) -> str:
    """Format a time for people, in the site's or the given time zone, which it names."""
    if instant is None:
        return EMPTY
    return time_format.format_time(instant, zone or timezone.get_current_timezone())


def site_time_text(instant: datetime) -> str:
    """Format a time for a table, in the site's time zone, with its offset.

    The options for times accept this text. Its offset takes precedence over their time zone.
    """
    return timezone.localtime(instant).isoformat(sep=" ", timespec="seconds")


def duration_text(length: timedelta | None) -> str:
    """Format a duration for people: 12 ms, 3.4 s, 2m 03s, 1h 02m, 3d 4h."""
    return EMPTY if length is None else time_format.format_duration(length)


def relative_time_text(instant: datetime | None, now: datetime) -> str:
    """Format a relative time for people: ``in 2m 03s``, ``3 days ago``."""
    if instant is None:
        return EMPTY
    if instant > now:
        return f"in {duration_text(instant - now)}"
    return str(time_format.format_time_ago(now - instant))


def styled_state(name: str) -> StyledText:
    """Return a run's state or an attempt's outcome in its color."""
    outcome = State.FAILED if name in ("timed_out", "lost") else name
    return StyledText(name.replace("_", " ") or EMPTY, STATE_STYLES.get(outcome, ""))


def _encode_json(value: Any) -> Any:
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, timedelta):
        return seconds(value)
    return str(value)


def _fits(titled: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int) -> bool:
    """Return whether the columns fit into ``width``.

    A wrapped column needs ``MIN_COLUMN_WIDTH`` or its full width, whichever is less.
    """
    needed = len(GAP) * (len(titled) - 1)
    for place, head in enumerate(titled):
        widest = max(_width(head.title), *(_width(_text(row[place])) for row in rows), 0)
        needed += min(widest, MIN_COLUMN_WIDTH) if head.wraps else widest
    return needed <= width


def _text(cell: Cell) -> str:
    text = cell.text if isinstance(cell, StyledText) else cell
    return "" if text is None else escape_control_characters(str(text))


def _in_one_line(cell: Cell) -> str:
    return " ".join(_text(cell).splitlines())


def _style(cell: Cell) -> str:
    return cell.style if isinstance(cell, StyledText) else ""


def _pad(text: str, width: int, *, right: bool = False) -> str:
    blank = " " * (width - _width(text))
    return blank + text if right else text + blank


def _width(text: str) -> int:
    """Return the width in terminal columns."""
    if text.isascii():
        return len(text)
    return sum(map(_char_width, text))


def _char_width(char: str) -> int:
    if combining(char):
        return 0
    return 2 if east_asian_width(char) in "WF" else 1
