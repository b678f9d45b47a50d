"""What is counted in one simulation, and summed over many."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class Counts:
    hours: float = 0.0
    """Simulated hours."""
    events: int = 0
    statements: int = 0
    occurrences: int = 0
    runs: int = 0
    starts: int = 0
    lost: int = 0
    doubled: int = 0
    faults: Counter[str] = field(default_factory=Counter)

    def add(self, other: Counts) -> None:
        for name in Counts.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
