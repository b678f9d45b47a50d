"""Show progress: a bar on a terminal with rich, else a line every few seconds.

A command whose results go to standard output shows its progress on standard error.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from django_dcron.management.dcron.output import RICH_STYLES, Output
from django_dcron.utils.control_characters import escape_control_characters

if TYPE_CHECKING:
    from rich.progress import Progress

LINE_EVERY = 5.0
"""In seconds."""


class ProgressLines:
    """A line on standard error every few seconds, until ``total`` is reached."""

    def __init__(self, output: Output, verb: str, total: int) -> None:
        self._output, self._verb, self._total = output, verb, total
        self._line_at = time.monotonic()
        self._is_shown = False

    def show(self, done: int) -> None:
        """Show the progress, unless the whole command takes less than a few seconds."""
        now, is_last = time.monotonic(), done == self._total
        if now - self._line_at >= LINE_EVERY or (is_last and self._is_shown):
            self._line_at, self._is_shown = now, True
            self._output.progress(f"{self._verb}: {done} of {self._total}")


class ProgressBar:
    """A progress display that appears once there is progress.

    Other output during that time must go through ``line``.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self._bar: Progress | None = None
        self._shown: tuple[int, int | None, str] | None = None
        self._line_at = float("-inf")

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def line(self, text: str, style: str = "") -> None:
        if self._output.is_json:
            return
        if self._bar is None:
            self._output.line(text, style)
            self._output.flush()
        else:
            self._bar.console.print(
                escape_control_characters(text), style=RICH_STYLES.get(style), soft_wrap=True
            )

    def show(self, done: int, total: int | None, note: str = "") -> None:
        if self._output.is_json or self._shown == (done, total, note):
            return
        self._shown = (done, total, note)
        if self._output.console is not None:
            self._draw(done, total, note)
        elif time.monotonic() - self._line_at >= LINE_EVERY or done == total:
            self._line_at = time.monotonic()
            of = f" of {total}" if total is not None else ""
            self._output.line(f"progress: {done}{of} {note}".rstrip())
            self._output.flush()

    def _draw(self, done: int, total: int | None, note: str) -> None:
        state: dict[str, Any] = {
            "description": escape_control_characters(note),
            "completed": done,
            "total": total,
        }
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], **state)
            return
        self._bar = _make_bar(self._output.console)
        self._bar.add_task(**state)
        self._bar.start()


def _make_bar(console: Any) -> Progress:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    words = TextColumn("{task.description}", markup=False)
    return Progress(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), words, console=console)
