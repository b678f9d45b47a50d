"""The progress that an attempt reports."""

from __future__ import annotations

from dataclasses import dataclass

from django_dcron.models import Attempt


@dataclass(frozen=True, slots=True)
class Progress:
    done: int | None
    total: int | None
    note: str
    is_running: bool
    """Whether the attempt is still running."""

    @property
    def percent(self) -> int | None:
        """The percentage, rounded down, so that 100 means that all work is done.

        None if the attempt hasn't reported a total.
        """
        if self.done is None or not self.total:
            return None
        return min(100 * self.done // self.total, 100)


def progress_of(attempt: Attempt) -> Progress | None:
    """Return None if the attempt has reported no progress."""
    if attempt.progress_done is None and not attempt.progress_note:
        return None
    is_running = not attempt.outcome
    return Progress(
        attempt.progress_done, attempt.progress_total, attempt.progress_note, is_running
    )
