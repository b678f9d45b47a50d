"""Select jobs by namespace or part of their name; by default all jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class JobSelection:
    namespace: str = ""
    """Empty for all namespaces."""
    name: str = ""
    """A part of the name, case-insensitive. Empty for all jobs."""

    def lookups(self, job: str = "") -> dict[str, Any]:
        """Return the lookups for ``filter()``.

        ``job`` is the lookup prefix of the job, or of another row that has its names.
        """
        found: dict[str, Any] = {}
        if self.namespace:
            found[f"{job}namespace"] = self.namespace
        if self.name:
            found[f"{job}name__icontains"] = self.name
        return found
