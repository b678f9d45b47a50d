"""A rule about the order in which waiting runs get the slot of their job."""

from __future__ import annotations

from tests.verdict.finding import Finding
from tests.verdict.history import Change, History, grouped
from tests.verdict.occurrences import name_of


def turns(history: History) -> list[Finding]:
    """The slot of a job passes to the waiting run that was due first.

    A run begins to wait while it locks the holder of the slot. So it waits before the change that
    frees the slot, and the process that passes the slot on sees it. Backfilled runs have their own
    order.
    """
    found = []
    relevant = (
        change for change in history.changes if change.trigger != "backfill" or change.frees_slot
    )
    by_number = sorted(relevant, key=lambda change: change.number)
    for job, changes in grouped(by_number, lambda change: change.job).items():
        waiting: dict[str, Change] = {}
        freed = 0
        for change in changes:
            if change.new == "waiting" and not change.limited:
                waiting.setdefault(change.run, change)
            elif (mine := waiting.pop(change.run, None)) and change.takes_slot:
                passed_over = [
                    other.run
                    for other in waiting.values()
                    if other.number < freed and _turn(other) < _turn(mine)
                ]
                if passed_over:
                    message = f"run {change.run} got the slot before {', '.join(passed_over)}"
                    found.append(Finding("turns", name_of(history, job), message))
            if change.frees_slot:
                freed = change.number
    return found


def _turn(change: Change) -> tuple[object, str]:
    return change.due_at, change.run
