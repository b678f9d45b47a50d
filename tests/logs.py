"""Find log records by their event and the values in them, so that tests don't depend on wording."""

from typing import Any

import pytest


def events(caplog: pytest.LogCaptureFixture, *wanted: str) -> list[str]:
    """Return the events of the captured records, or those among ``wanted``, in order."""
    found = [vars(record)["event"] for record in caplog.records if "event" in vars(record)]
    return [event for event in found if not wanted or event in wanted]


def logged(
    caplog: pytest.LogCaptureFixture, event: str, *values: object, **extras: Any
) -> list[str]:
    """Return the messages of an event that contain all ``values`` and whose record has ``extras``.

    ``values`` are facts such as names, numbers and the texts of third-party errors.
    """
    return [
        record.getMessage()
        for record in caplog.records
        if vars(record).get("event") == event
        and extras.items() <= vars(record).items()
        and all(str(value) in record.getMessage() for value in values)
    ]
