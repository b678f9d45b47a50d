"""Find a small part of a plan with which the simulation still fails."""

from __future__ import annotations

import time
from dataclasses import replace

from tests.simulation.counts import Result
from tests.simulation.plan import Plan
from tests.simulation.world import simulate

SHRINK_TIME = 120.0
"""Time limit of a search, in seconds."""


def fails(plan: Plan, numbers: list[int]) -> bool:
    return bool(simulate(only(plan, numbers)).findings)


def only(plan: Plan, numbers: list[int]) -> Plan:
    """Return the plan with only these items."""
    return replace(plan, items=tuple(plan.items[number] for number in numbers))


def shrink(plan: Plan, seconds: float = SHRINK_TIME) -> list[int]:
    """Search for a small set of items with which the plan still fails. Return their numbers.

    The search ends after ``seconds``. Without a limit, the result depends only on the plan. If the
    plan doesn't fail, all items are returned.
    """
    until = time.monotonic() + seconds
    left = list(range(len(plan.items)))
    if not fails(plan, left):
        return left
    size = max(len(left) // 2, 1)
    while left and time.monotonic() < until:
        at, is_smaller = 0, False
        while at < len(left) and time.monotonic() < until:
            fewer = left[:at] + left[at + size :]
            if fails(plan, fewer):
                left, is_smaller = fewer, True
            else:
                at += size
        if size == 1 and not is_smaller:
            break
        size = max(size // 2, 1)
    return left


def relevant_lines(result: Result) -> list[str]:
    """Return the lines of the log that concern the runs and jobs of the findings."""
    text = " ".join(result.findings)
    words = {word.strip("():,") for word in text.split()}
    runs = {word[-6:] for word in words if len(word) == 36 and word.count("-") == 4}
    runs |= {word for word in words if len(word) == 6 and set(word) <= set("0123456789abcdef")}
    names = {word.rpartition("/")[2] for word in words}
    jobs = {name for name in names if name.startswith("job-")}
    jobs |= {f"job {int(word[4:]) + 1}:" for word in jobs}
    wanted = runs or jobs
    return [
        line
        for line in result.log_lines
        if "* " in line or "BROKEN" in line or any(word in line for word in wanted)
    ]
