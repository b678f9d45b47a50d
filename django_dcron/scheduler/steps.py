"""Run the steps of a tick: intervals, contention and activity are handled alike for all steps.

Invariants:

- The steps run in the order of the list.
- A step that another transaction blocks is skipped. The steps after it still run.
- Any other error ends the tick.
- A blocked step is logged once, and once more when it is no longer blocked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from django.db import OperationalError

from django_dcron.db.contention import is_contention
from django_dcron.db.errors import in_one_line

logger = logging.getLogger("django_dcron.scheduler")


class StillLocked(OperationalError):
    """A step skipped rows that another transaction has locked."""


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class TickStep:
    name: str
    do: Callable[[], None]
    when: Callable[[], bool] = _always
    """Returns whether the step may run now. Called when it is the step's turn."""
    every: float = 0.0
    """Seconds between two tries. 0: in each tick."""


class Steps:
    """Runs the steps of the ticks of one node."""

    def __init__(
        self, node: str, monotonic: Callable[[], float], on_activity: Callable[[], None]
    ) -> None:
        self._node = node
        self._monotonic = monotonic
        self._on_activity = on_activity
        """Called before each step, for the watchdog."""
        self._tried_at: dict[str, float] = {}
        """The monotonic time of the last try of each step."""
        self._blocked: set[str] = set()
        """The steps that another transaction blocked at their last try."""

    def run_due(self, steps: Iterable[TickStep]) -> list[OperationalError]:
        """Run the steps that are due. Return the errors of the blocked ones."""
        errors = []
        for step in steps:
            if step.when() and self._is_due(step):
                self._on_activity()
                if error := self.run(step):
                    errors.append(error)
        return errors

    def run(self, step: TickStep) -> OperationalError | None:
        """Run one step. Return the error if another transaction blocked it."""
        try:
            step.do()
        except OperationalError as error:
            if not is_contention(error) and not isinstance(error, StillLocked):
                raise
            if step.name not in self._blocked:
                self._blocked.add(step.name)
                self._log("contention", "step blocked", step, error=in_one_line(error))
            return error
        if step.name in self._blocked:
            self._blocked.discard(step.name)
            self._log("contention_over", "step unblocked", step)
        return None

    def is_blocked(self, name: str) -> bool:
        """Return whether another transaction blocked the step at its last try."""
        return name in self._blocked

    def repeat(self, name: str) -> None:
        """Make the step due in the next tick, regardless of its interval."""
        self._tried_at.pop(name, None)

    def _is_due(self, step: TickStep) -> bool:
        now = self._monotonic()
        if now - self._tried_at.get(step.name, float("-inf")) < step.every:
            return False
        self._tried_at[step.name] = now
        return True

    def _log(self, event: str, message: str, step: TickStep, **facts: str) -> None:
        facts = {"node": self._node, "step": step.name, **facts}
        text = " ".join(f"{name}={value}" for name, value in facts.items())
        logger.info("%s: %s", message, text, extra={"event": event, **facts})
