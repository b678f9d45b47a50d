"""Run the steps of a tick: intervals, contention and activity are handled alike for all steps.

Invariants:

- The steps run in the order of the list.
- A step that another transaction blocks is skipped. The steps after it still run.
- Any other error ends the tick.
- A blocked step is logged once, again as a warning if it stays blocked, and once more when it is no
  longer blocked.
- A step that has processed all unlocked rows stays blocked only as long as one of the locked rows
  has been locked at each try.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from uuid import UUID

from django.db import OperationalError

from django_dcron.db.contention import is_contention
from django_dcron.db.errors import in_one_line

logger = logging.getLogger("django_dcron.scheduler")


LONG_BLOCKED = 10.0
"""After how many seconds a step counts as blocked for long: its work is late."""
TRIES_UNTIL_LONG = 3
"""How many tries in a row must be blocked. Otherwise, two short locks would look like a long one if
the step runs rarely.
"""


class StillLocked(OperationalError):
    """A step skipped runs that another transaction has locked, and processed the others."""

    def __init__(self, runs: Collection[UUID]) -> None:
        self.runs = frozenset(runs)
        others = f" and {len(self.runs) - 1} more" if len(self.runs) > 1 else ""
        super().__init__(f"another transaction has locked run {min(self.runs)}{others}")


def _always() -> bool:
    return True


@dataclass(slots=True)
class _Block:
    """Another transaction blocks a step. The times are monotonic."""

    since: float
    last_tried_at: float
    error: OperationalError
    """The runs of a ``StillLocked`` have been locked at each try. Other errors block all rows."""
    tries: int = 1
    is_long: bool = False
    """Whether the warning has been logged."""

    @property
    def seconds(self) -> float:
        """How long the step has been blocked, as of its last try."""
        return self.last_tried_at - self.since

    def record_try(self, error: OperationalError, now: float) -> bool:
        """Record another blocked try. Return False if only other runs than before are locked."""
        if isinstance(error, StillLocked):
            if isinstance(self.error, StillLocked):
                runs = self.error.runs & error.runs
                if not runs:
                    return False
                error = StillLocked(runs)
            self.error = error
        self.last_tried_at = now
        self.tries += 1
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
        self._blocked: dict[str, _Block] = {}
        """The steps that another transaction blocked at their last try."""

    def run_due(self, steps: Iterable[TickStep]) -> list[OperationalError]:
        """Run the steps that are due. Return the errors of the blocked ones."""
        errors = []
        for step in steps:
            if not step.when():
                self._end_block(step)  # this node has nothing to do for it any more
            elif self._is_due(step):
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
            self._record_block(step, error)
            return error
        self._end_block(step)
        return None

    def _record_block(self, step: TickStep, error: OperationalError) -> None:
        now, block = self._monotonic(), self._blocked.get(step.name)
        if block is not None and not block.record_try(error, now):
            if not block.is_long:
                self._blocked[step.name] = _Block(now, now, error)
                return
            self._end_block(step)
            block = None
        if block is None:
            self._blocked[step.name] = _Block(now, now, error)
            self._log(logging.INFO, "contention", "step blocked", step, error=in_one_line(error))
        elif (
            block.seconds >= LONG_BLOCKED and block.tries >= TRIES_UNTIL_LONG and not block.is_long
        ):
            block.is_long = True
            self._log(
                logging.WARNING,
                "contention",
                f"step blocked for {block.seconds:.0f} s by another transaction",
                step,
                error=in_one_line(block.error),
            )

    def _end_block(self, step: TickStep) -> None:
        if (block := self._blocked.pop(step.name, None)) is not None:
            level = logging.WARNING if block.is_long else logging.INFO
            self._log(level, "contention_over", "step unblocked", step)

    def is_blocked(self, name: str) -> bool:
        """Return whether another transaction blocked the step at its last try."""
        return name in self._blocked

    def blocked_steps(self) -> dict[str, float]:
        """Return the steps that are blocked for long, and for how many seconds.

        Any thread may call this.
        """
        blocked = dict(self._blocked)  # the thread of the ticks changes it
        return {name: block.seconds for name, block in blocked.items() if block.is_long}

    def repeat(self, name: str) -> None:
        """Make the step due in the next tick, regardless of its interval."""
        self._tried_at.pop(name, None)

    def _is_due(self, step: TickStep) -> bool:
        now = self._monotonic()
        if now - self._tried_at.get(step.name, float("-inf")) < step.every:
            return False
        self._tried_at[step.name] = now
        return True

    def _log(self, level: int, event: str, message: str, step: TickStep, **facts: str) -> None:
        facts = {"node": self._node, "step": step.name, **facts}
        text = " ".join(f"{name}={value}" for name, value in facts.items())
        logger.log(level, "%s: %s", message, text, extra={"event": event, **facts})
