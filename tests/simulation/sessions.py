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
    one(0, 2.0)
    # The ORM makes much garbage. It is collected between simulations.
    gc.collect()
    gc.freeze()
    gc.disable()


def one(seed: int, each: float) -> Result:
    """Simulate one cluster, without a story."""
    from tests.simulation import plan, world

    result = world.simulate(plan.draw(seed, each))
    result.history = None
    gc.collect()
    return result


def results(
    first: int, hours: float, each: float, processes: int, within: float
) -> Iterator[Result]:
    """Yield the results of the seeds from ``first`` on, for ``hours`` in all.

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
            yield one(seed, each)
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
                pending.append(pool.apply_async(one, (following, each)))
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
        while not (result := one(seed, each)).broken and seed < last:
            seed += 1
    return result, (seed - first + 1) * each


def keep(result: Result, commit: str) -> None:
    """Add a result to the totals that the repository keeps."""
    kept, added = read_kept(), Totals()
    added.add_result(result)
    for name, value in vars(added).items():
        if isinstance(value, Counter):
            kept[name] = dict(sorted((Counter(kept.get(name, {})) + value).items()))
        else:
            kept[name] = round(kept.get(name, 0) + value)
    kept |= {
        "next_seed": result.seed + 1,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "commit": commit,
    }
    TOTALS.write_text(json.dumps(kept, indent=2) + "\n")


def kept_totals() -> str:
    """Return the totals that the repository keeps, with the date and commit of the latest."""
    kept = read_kept()
    counts = {name: kept[name] for name in vars(Totals()) if name in kept}
    totals = Totals(**counts | {"faults": Counter(kept.get("faults", {}))})
    return f"{totals}\nuntil {kept.get('date')}, commit {kept.get('commit')}"


def read_kept() -> dict[str, Any]:
    """Return the totals that the repository keeps."""
    kept: dict[str, Any] = json.loads(TOTALS.read_text()) if TOTALS.exists() else {}
    return kept
