"""Change the code that prevents lost and duplicate runs, and check that the tests notice.

For each part, the program mutates the part's files in an order that depends on the seed. For each
mutant it runs the tests that reach the mutated code. It prints the survivors and a table, and exits
with 1 if the tests of a part kill less than ``--least`` percent of its mutants.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.mutation.equivalent import EQUIVALENT
from tests.mutation.mutants import Mutant, mutants_of, shuffled
from tests.mutation.parts import PARTS, Part
from tests.mutation.processes import Died, TimedOut, directory_for_servers, forked
from tests.mutation.sessions import CannotSwap, FreshSession, WarmSession

KILLED, SURVIVED, TIMED_OUT = "killed", "survived", "timed out"
STARTUP = 60.0
"""Seconds of processor time that a fresh session may need before its first test."""
PRELOADED = (
    "celery.app.base",
    "django.db.models",
    "hypothesis.strategies",
    "kombu.transport.redis",
    "redis",
)
"""Packages that each fresh session would otherwise import again."""
ARGUMENTS = (
    *("-q", "-p", "no:cacheprovider"),
    *("-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"),
    *("-W", "ignore:This process .* is multi-threaded:DeprecationWarning"),
)


@dataclass
class Tally:
    part: str
    found: int = 0
    """Number of all mutants. Only the sample has been checked for equivalent ones."""
    verdicts: list[tuple[str, str, str]] = field(default_factory=list)
    """Outcome, mutant, and the name of the failed test."""
    seconds: float = 0
    problem: str = ""

    def count(self, outcome: str | None = None) -> int:
        return sum(outcome in (None, verdict[0]) for verdict in self.verdicts)

    @property
    def percentage(self) -> float:
        return 100 * (1 - self.count(SURVIVED) / self.count()) if self.verdicts else 0.0


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the servers must end, too
    os.environ["DCRON_TEST_DERANDOMIZE"] = "1"
    os.environ.pop("DCRON_TEST_DEPTH", None)  # many mutants, but few examples for each
    for name in PRELOADED:
        import_module(name)
    chosen = [part for part in PARTS if part.name in (options.part or [part.name])]
    began, tallies = time.monotonic(), []
    for number, part in enumerate(chosen):
        left = options.minutes * 60 - (time.monotonic() - began)
        tallies.append(_Trial(part, options, left / (len(chosen) - number)).run())
    _print_survivors(tallies)
    _print_table(tallies)
    if options.results:
        options.results.write_text(json.dumps([vars(tally) for tally in tallies], indent=1))
    return int(any(tally.problem or tally.percentage < options.least for tally in tallies))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument(
        "--part",
        action="append",
        choices=[part.name for part in PARTS],
        help="part to check (default: all); can be repeated",
    )
    parser.add_argument(
        "--sample", type=int, default=200, help="mutants for each part (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="random seed of the sample (default: %(default)s)"
    )
    parser.add_argument(
        "--least",
        type=float,
        default=90,
        help="percentage of mutants that the tests must kill (default: %(default)s)",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=24 * 60,
        help="time limit for all parts together, in minutes",
    )
    parser.add_argument(
        "--match", default="", help="only mutants whose description contains this text"
    )
    parser.add_argument(
        "--verbose", action="store_true", help="print which test killed each mutant"
    )
    parser.add_argument("--results", type=Path, help="write the results as JSON")
    return parser.parse_args()


def _print_survivors(tallies: list[Tally]) -> None:
    for tally in tallies:
        print(f"\n{tally.part}: {tally.problem or f'{tally.count(SURVIVED)} survived'}")
        for outcome, mutant, _ in tally.verdicts:
            if outcome == SURVIVED:
                print(f"  {mutant}")


def _print_table(tallies: list[Tally]) -> None:
    print(
        "\n| part | mutants | tried | killed | timed out | survived | killed or timed out | time |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for tally in tallies:
        counts = (tally.count(), tally.count(KILLED), tally.count(TIMED_OUT), tally.count(SURVIVED))
        cells = (
            tally.part,
            tally.found,
            *counts,
            f"{tally.percentage:.1f} %",
            f"{tally.seconds:.0f} s",
        )
        print("|", " | ".join(map(str, cells)), "|")


class _Trial:
    """The trial of one part: a warm session for all mutants, then fresh ones for some."""

    def __init__(self, part: Part, options: argparse.Namespace, seconds: float) -> None:
        self._part = part
        self._options = options
        self._began = time.monotonic()
        self._seconds = seconds
        self._tally = Tally(part.name)
        self._sample: list[Mutant] = []
        self._console = os.fdopen(os.dup(1), "w", buffering=1)  # a session captures its output

    def run(self) -> Tally:
        os.environ["DCRON_TEST_DATABASE"] = self._part.database
        self._sample = self._draw_sample()
        self._say(f"{self._part.name}: {len(self._sample)} of {self._tally.found} mutants")
        with directory_for_servers():
            try:
                tried = forked(self._in_session)
            except Died:
                tried = {"problem": "the session ended early", "verdicts": []}
        self._tally.problem = tried["problem"]
        for mutant, (outcome, killer, tests, limit) in zip(
            self._sample, tried["verdicts"], strict=False
        ):
            if outcome is None:
                if self._out_of_time(1):
                    continue
                outcome, killer = self._try_in_fresh_session(mutant, tests, limit)
            self._note(mutant, outcome, killer)
        self._tally.seconds = time.monotonic() - self._began
        return self._tally

    def _draw_sample(self) -> list[Mutant]:
        everything = [mutant for path in self._part.paths for mutant in mutants_of(path)]
        self._tally.found = len(everything)
        equivalent = {each[:4] for each in EQUIVALENT}
        drawn: dict[str, Mutant] = {}
        for mutant in shuffled(everything, self._options.seed):
            if len(drawn) == self._options.sample:
                break
            name = str(mutant.source.path), mutant.function, *mutant.change
            if mutant.valid and name not in equivalent and self._options.match in str(mutant):
                drawn.setdefault(mutant.text, mutant)
        return list(drawn.values())

    def _out_of_time(self, share: float) -> bool:
        return time.monotonic() - self._began > share * self._seconds

    def _in_session(self) -> dict[str, Any]:
        answer: dict[str, Any] = {"problem": "", "verdicts": []}

        def work(warm: WarmSession) -> None:
            clean = warm.run_clean()
            self._say(f"  {len(clean.seconds)} tests, {sum(clean.seconds.values()):.0f} s")
            if clean.failed:
                answer["problem"] = (
                    f"these tests fail without a mutation: {', '.join(clean.failed)}"
                )
                return
            for mutant in self._sample:
                if self._out_of_time(0.6):
                    break
                verdict = self._try_in_warm_session(warm, mutant)
                answer["verdicts"].append(verdict)
                if verdict[0] == SURVIVED:
                    self._say(f"  survived: {mutant}")

        ready = "tests/mutation/ready.py"
        warm = WarmSession(self._part.paths, work)
        code = pytest.main([*ARGUMENTS, ready, *self._part.tests], plugins=[warm])
        if code and not answer["problem"]:
            answer["problem"] = f"pytest ended with {int(code)}"
        return answer

    def _try_in_warm_session(
        self, warm: WarmSession, mutant: Mutant
    ) -> tuple[str | None, str, list[str], float]:
        """Try the mutant in the warm session.

        Return the outcome (None if a fresh session must decide), the killing test, and the tests
        and seconds for a fresh session.
        """
        tests = warm.tests_of(mutant)
        if not tests:
            return SURVIVED, "no test reaches it", [], 0
        outcome, killer = None, ""
        try:
            if killer := warm.kill(mutant, tests) or "":
                outcome = KILLED
            elif not warm.matters_at_import(mutant):
                outcome, killer = SURVIVED, f"{len(tests)} tests reach it"
        except CannotSwap:
            pass
        except TimedOut:
            outcome = TIMED_OUT
        except Died:
            outcome, killer = KILLED, "(the process died)"
        return outcome, killer, tests, warm.limit(tests)

    def _try_in_fresh_session(
        self, mutant: Mutant, tests: list[str], limit: float
    ) -> tuple[str, str]:
        os.environ["DCRON_TEST_DATABASE"] = (
            "sqlite"  # a database server would take longer to start than the tests to run
        )
        arguments = [*ARGUMENTS, *self._part.tests]
        with directory_for_servers():
            try:
                killer = forked(
                    lambda: FreshSession(mutant, tests).kill(arguments), limit + STARTUP
                )
            except TimedOut:
                return TIMED_OUT, ""
            except Died:
                return KILLED, "(the process died)"
        return (KILLED, killer) if killer else (SURVIVED, f"{len(tests)} tests reach it")

    def _note(self, mutant: Mutant, outcome: str, killer: str) -> None:
        self._tally.verdicts.append((outcome, str(mutant), killer))
        if self._options.verbose:
            self._say(f"  {outcome}: {mutant}\n    {killer}")

    def _say(self, text: str) -> None:
        print(text, file=self._console)


if __name__ == "__main__":
    sys.exit(main())
