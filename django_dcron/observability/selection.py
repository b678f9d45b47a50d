"""Which jobs are looked at: those of a namespace, or with a part of a name; all of them unless told otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Selection:
    namespace: str = ""
    """Empty: all."""
    name: str = ""
    """A part of the name, in whatever case. Empty: all."""

    def lookups(self, job: str = "") -> dict[str, Any]:
        """For ``filter``. ``job``: the lookup that leads to the job, or to another row that has its names."""
        found: dict[str, Any] = {}
        if self.namespace:
            found[f"{job}namespace"] = self.namespace
        if self.name:
            found[f"{job}name__icontains"] = self.name
        return found
