"""Recognize a process that runs tests."""

from __future__ import annotations

import sys


def is_test() -> bool:
    """Return whether tests run in this process."""
    utils = sys.modules.get("django.test.utils")
    # Django's own mark of a test environment, which every test runner sets up.
    return "pytest" in sys.modules or hasattr(getattr(utils, "_TestState", None), "saved_data")
