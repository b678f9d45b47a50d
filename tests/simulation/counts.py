"""Counts of one simulation, and their sums over many simulations."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.verdict.history import History


@dataclass(kw_only=True)
class Counts:
    hours: float = 0.0
    """Simulated hours."""
    events: int = 0
    statements: int = 0
    single_statement_starts: int = 0
    """Statements that read a run and start it if it is ordinary. Only PostgreSQL has them."""
    occurrences: int = 0
    runs: int = 0
    starts: int = 0
    lost: int = 0
    duplicated: int = 0
    faults: Counter[str] = field(default_factory=Counter)

    def add(self, other: Counts) -> None:
        for name in Counts.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(kw_only=True)
class Result(Counts):
    """The counts and findings of one simulation."""

    seed: int
    digest: str = ""
    findings: list[str] = field(default_factory=list)
    log_lines: list[str] = field(default_factory=list)
    history: History | None = None


@dataclass(kw_only=True)
class Totals(Counts):
    """The counts of many simulations."""

    failures: int = 0
    """Number of simulations with findings."""

    def add_result(self, result: Result) -> None:
        self.add(result)
        self.failures += bool(result.findings)

    def __str__(self) -> str:
        counted = {name: value for name, value in vars(self).items() if name != "faults"}
        counts = ", ".join(f"{name} {value:,.0f}" for name, value in counted.items())
        faults = ", ".join(f"{kind} {number:,}" for kind, number in sorted(self.faults.items()))
        return f"{counts}\nfaults {self.faults.total():,}: {faults}"
