"""The verdict: all rules applied to a history, and its totals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tests.verdict import accounts, executions, limits, occurrences, queues
from tests.verdict.finding import Finding
from tests.verdict.history import History

RULES: tuple[Callable[[History], list[Finding]], ...] = (
    occurrences.not_judged,
    occurrences.lost,
    occurrences.duplicated,
    occurrences.off_schedule,
    occurrences.behind,
    occurrences.unfinished,
    occurrences.misfires,
    executions.starts,
    executions.attempts,
    executions.retries,
    executions.late_starts,
    executions.order,
    executions.deletions,
    executions.overlaps,
    executions.fences,
    queues.turns,
    limits.limits,
    accounts.chains,
    accounts.statistics,
)
SHOWN = 50


@dataclass(frozen=True)
class Totals:
    jobs: int
    occurrences: int
    """The number of occurrences that the schedules yield in the window."""
    runs: int
    """The number of runs in the window, including those that no schedule created."""
    attempts: int
    """The number of recorded attempts of these runs."""
    starts: int
    """The number of witnessed starts of these runs."""
    lost: int
    duplicated: int
    """The number of occurrences with two rows, and of starts beyond the first of an attempt."""
    faults: int
    """The number of injected faults, if the history records them."""


@dataclass(frozen=True)
class Verdict:
    totals: Totals
    findings: tuple[Finding, ...]

    def __str__(self) -> str:
        counts = ", ".join(f"{name} {number}" for name, number in vars(self.totals).items())
        listed = [str(finding) for finding in self.findings[:SHOWN]]
        if len(self.findings) > SHOWN:
            listed.append(f"and {len(self.findings) - SHOWN} more")
        return "\n".join([f"{counts}, findings {len(self.findings)}", *listed])


def judge(history: History) -> Verdict:
    """Apply all rules."""
    findings = [finding for rule in RULES for finding in rule(history)]
    return Verdict(_totals(history, Counter(finding.rule for finding in findings)), tuple(findings))


def _totals(history: History, found: Counter[str]) -> Totals:
    runs = {run.id for run in history.runs if history.after < run.scheduled_at <= history.until}
    starts = Counter((start.run, start.attempt) for start in history.starts if start.run in runs)
    all_starts = Counter((start.run, start.attempt) for start in history.starts)
    return Totals(
        jobs=len(history.jobs),
        occurrences=sum(len(each.instants) for each in occurrences.expectations(history)),
        runs=len(runs),
        attempts=sum(attempt.run in runs for attempt in history.attempts),
        starts=starts.total(),
        lost=found["lost"],
        duplicated=found["duplicated"] + all_starts.total() - len(all_starts),
        faults=sum(history.faults.values()),
    )
