"""Many simulations in several processes, and their totals."""

from __future__ import annotations

import gc
import json
import logging
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import django

from tests.simulation.counts import Result, Totals

TOTALS = Path(__file__).parents[2] / "docs/contributing/simulation-totals.json"
RENAMED = {
    "doubled": "duplicated",
    "freeze": "suspend",
    "freeze_child": "suspend_child",
    "messages_doubled": "messages_duplicated",
}
"""Former names of counts and of kinds of faults. Recorded totals may have them."""


@cache
def prepare() -> None:
    """Set up Django and the database of this operating system process, once."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.simulation.settings"
    django.setup()
    from tests.simulation.servers import server

    server.create()
    logging.disable(logging.CRITICAL)
    # The first simulation fills caches, such as that of the content types. No history may depend on
    # whether they are filled.
    simulate_seed(0, 2.0)
    # The ORM makes much garbage. It is collected between simulations.
    gc.collect()
    gc.freeze()
    gc.disable()


def simulate_seed(seed: int, hours: float) -> Result:
    """Simulate one cluster. The result has no log and no history."""
    from tests.simulation import plan, world

    result = world.simulate(plan.draw(seed, hours))
    result.history = None
    gc.collect()
    return result


def results(
    first: int, hours: float, each: float, processes: int, within: float
) -> Iterator[Result]:
    """Yield the results of the seeds from ``first`` on.

    Each simulation takes ``each`` simulated hours, and all of them about ``hours``.
    Begins no simulation later than ``within`` seconds from now.
    """
    until = time.monotonic() + within
    number = max(round(hours / each), 1)
    seeds = iter(range(first, first + number))
    prepare()
    if processes == 1:
        for seed in seeds:
            if time.monotonic() > until:
                return
            yield simulate_seed(seed, each)
        return
    from tests.simulation.servers import server

    server.before_fork()
    # Each process of the pool has its own copy of the database.
    with multiprocessing.get_context("fork").Pool(processes, server.after_fork) as pool:
        pending: list[Any] = []
        while True:
            while len(pending) <= processes and time.monotonic() < until:
                if (following := next(seeds, None)) is None:
                    break
                pending.append(pool.apply_async(simulate_seed, (following, each)))
            if not pending:
                return
            yield pending.pop(0).get()


def find_broken(name: str, first: int, hours: float, each: float) -> tuple[Result, float]:
    """Simulate with a broken guard until it is found, from the seed ``first`` on.

    Returns the last result and the number of simulated hours.
    """
    prepare()
    from tests.simulation import broken_guards

    with broken_guards.broken(name):
        seed, last = first, first + max(round(hours / each), 1) - 1
        while not (result := simulate_seed(seed, each)).findings and seed < last:
            seed += 1
    return result, (seed - first + 1) * each


def record(result: Result, commit: str) -> None:
    """Add a result to the totals recorded in the repository."""
    recorded, added = read_recorded(), Totals()
    added.add_result(result)
    for name, value in vars(added).items():
        if isinstance(value, Counter):
            recorded[name] = dict(sorted((Counter(recorded.get(name, {})) + value).items()))
        else:
            recorded[name] = round(recorded.get(name, 0) + value)
    recorded |= {
        "next_seed": result.seed + 1,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "commit": commit,
    }
    TOTALS.write_text(json.dumps(recorded, indent=2) + "\n")


def recorded_totals() -> str:
    """Return the totals recorded in the repository, with the latest date and commit."""
    recorded = read_recorded()
    counts = {name: recorded[name] for name in vars(Totals()) if name in recorded}
    totals = Totals(**counts | {"faults": Counter(recorded.get("faults", {}))})
    return f"{totals}\nuntil {recorded.get('date')}, commit {recorded.get('commit')}"


def read_recorded() -> dict[str, Any]:
    """Return the totals recorded in the repository."""
    return with_current_names(json.loads(TOTALS.read_text())) if TOTALS.exists() else {}


def with_current_names(recorded: dict[str, Any]) -> dict[str, Any]:
    """Return the totals with former names replaced, and the counts of both names added."""
    renamed: dict[str, Any] = {}
    for former, value in recorded.items():
        name = RENAMED.get(former, former)
        if isinstance(value, dict):
            renamed[name] = with_current_names(value)
        else:
            renamed[name] = renamed[name] + value if name in renamed else value
    return renamed
