"""What a rule has found, and the tolerance of the rules that compare clocks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

TOLERANCE = timedelta(milliseconds=250)
"""How much two clocks may disagree: the database's, a node's sample of it, the witnesses'."""


@dataclass(frozen=True)
class Finding:
    rule: str
    """The name of the rule, such as ``lost``."""
    about: str
    """The job, or the run with its job."""
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.about}: {self.message}"
