"""Simulate clusters, and check each history.

python -m tests.simulation --hours 1000            with a random first seed
python -m tests.simulation --replay SEED           print what happens with one seed
python -m tests.simulation --hours 1000 --resume   add to the totals in the repository
python -m tests.simulation --totals                print the totals in the repository
python -m tests.simulation --database postgresql   on a real server instead of SQLite
"""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING

from tests.simulation import sessions
from tests.simulation.counts import Result, Totals

if TYPE_CHECKING:
    from tests.simulation.plan import Plan

os.environ["DJANGO_SETTINGS_MODULE"] = "tests.simulation.settings"
HOURS_PER_SIMULATION = 24.0
"""Hours of each simulation."""


def main() -> int:
    given = _parser().parse_args()
    os.environ["DCRON_SIMULATION_DATABASE"] = given.database
    if given.totals:
        print(sessions.recorded_totals())
        return 0
    if given.replay is not None:
        return _replay(given)
    if given.broken is not None:
        return _find_broken(given)
    return _simulate(given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tests.simulation", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--hours", type=float, default=100.0, help="simulated hours in all")
    parser.add_argument("--seed", type=int, help="the first seed; each simulation has its own")
    parser.add_argument(
        "--each", type=float, default=HOURS_PER_SIMULATION, help="hours of one simulation"
    )
    parser.add_argument(
        "--database",
        choices=("sqlite", "postgresql"),
        default="sqlite",
        help="PostgreSQL runs as a real server, with a connection for each simulated process",
    )
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument(
        "--within",
        type=float,
        default=float("inf"),
        help="start no simulation later than this, in seconds",
    )
    parser.add_argument("--resume", action="store_true", help="add to the recorded totals")
    parser.add_argument("--totals", action="store_true", help="print the recorded totals")
    parser.add_argument("--replay", type=int, metavar="SEED", help="print the events of this seed")
    parser.add_argument(
        "--only", help="in a replay: simulate only these items of the plan, such as 3,17"
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="in a replay: print all events, not only those of the findings",
    )
    parser.add_argument(
        "--shrink",
        action="store_true",
        help="in a replay: remove items of the plan while a simulation still fails",
    )
    parser.add_argument(
        "--broken", help="break these guards, such as NAME,NAME or all, one at a time"
    )
    return parser


def _simulate(given: argparse.Namespace) -> int:
    first = given.seed if given.seed is not None else secrets.randbelow(10**9)
    if given.resume:
        first = sessions.read_recorded().get("next_seed", 1)
    print(f"seed {first}", flush=True)
    began, totals = time.monotonic(), Totals()
    failed: list[Result] = []
    digest = ""
    for result in sessions.results(first, given.hours, given.each, given.processes, given.within):
        totals.add_result(result)
        digest = result.digest
        if given.resume and not result.findings:
            sessions.record(result, _commit())
        if result.findings:
            failed.append(result)
            print(f"seed {result.seed} fails: {result.findings[0]}", flush=True)
            break
    seconds, busy = time.monotonic() - began, sum(os.times()[:4])
    print(f"{totals}\n{seconds:.0f} s, {busy:.0f} s of processor time, history {digest}")
    if failed:
        _explain(failed[0], given)
        return 1
    if given.resume:
        print(f"recorded hours: {sessions.read_recorded()['hours']:,}")
    return 0


def _find_broken(given: argparse.Namespace) -> int:
    """Print, for each broken guard, the hours and the seed that were needed to find it."""
    sessions.prepare()
    from tests.simulation.broken_guards import GUARDS, POSTGRESQL_GUARDS

    guards = GUARDS if given.database == "sqlite" else POSTGRESQL_GUARDS
    missed = 0
    for name in guards if given.broken == "all" else given.broken.split(","):
        result, hours = sessions.find_broken(name, given.seed or 1, given.hours, given.each)
        found = result.findings[0].splitlines()[0] if result.findings else "NOT FOUND"
        missed += not result.findings
        print(f"| `{name}` | {hours:g} | {result.seed} | {found} |", flush=True)
    return int(missed > 0)


def _explain(result: Result, given: argparse.Namespace) -> None:
    sessions.prepare()
    from tests.simulation import plan, shrinking

    drawn = plan.draw(result.seed, given.each)
    print("", "To replay it:", _command(drawn, shrinking.shrink(drawn), given), sep="\n")


def _command(drawn: Plan, items: list[int], given: argparse.Namespace) -> str:
    command = f"python -m tests.simulation --replay {drawn.seed} --each {given.each:g}"
    if len(items) < len(drawn.items):
        command += f" --only '{','.join(map(str, items))}'"
    if given.database != "sqlite":
        command += f" --database {given.database}"
    return f"{command} --broken {given.broken}" if given.broken else command


def _replay(given: argparse.Namespace) -> int:
    import logging

    sessions.prepare()
    logging.disable(logging.NOTSET)
    logging.getLogger("django_dcron").setLevel(logging.INFO)
    logging.getLogger("django_dcron").propagate = False
    from tests.simulation import plan, shrinking, world
    from tests.simulation.broken_guards import broken

    drawn = plan.draw(given.replay, given.each)
    if given.only is not None:
        drawn = shrinking.only(drawn, [int(number) for number in given.only.split(",") if number])
    with broken(given.broken) if given.broken else nullcontext():
        if given.shrink:
            left = shrinking.shrink(drawn, float("inf"))
            print(_command(drawn, left, given))
            drawn = shrinking.only(drawn, left)
        result = world.simulate(drawn, with_log=True)
    is_shortened = result.findings and not given.all
    print("\n".join(shrinking.relevant_lines(result) if is_shortened else result.log_lines))
    print(f"history {result.digest}, findings {len(result.findings)}", *result.findings, sep="\n")
    return int(bool(result.findings))


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
