"""Scenarios with real processes, all decided by one checker. `make chaos` runs them and prints what became of the occurrences."""

import os

SECONDS = float(os.environ.get("DCRON_TEST_SECONDS", "20"))
"""How long a scenario lasts that has no length of its own."""
