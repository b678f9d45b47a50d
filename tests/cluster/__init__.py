"""Scenarios with real processes, each verified by the same strict checker.

``make chaos`` runs them and prints a summary of the occurrences.
"""

import os

SECONDS = float(os.environ.get("DCRON_TEST_SECONDS", "20"))
"""Default duration of a scenario, in seconds."""
