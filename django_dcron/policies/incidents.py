"""Decide which failures belong to the same incident, and what a failure or a success changes.

An incident is a group of failures of one job with the same exception and the same message.

Invariants:

- Messages are the same if they differ only in numbers, addresses, UUIDs or hashes.
- If the last attempt of a run requests a retry, its message says that the retry was refused. This
  part isn't compared, so the attempt belongs to the same incident as the earlier ones.
- A failure opens a resolved incident again. The incident counts as returning from then on.
- A success of the job resolves its open and acknowledged incidents, but not its muted ones.
- A muted incident stays muted, regardless of later failures and successes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from hashlib import sha256
from uuid import UUID

from django_dcron.policies.retry import without_refused_retry

MESSAGE_LIMIT = 500
"""Characters of a message that are compared and kept."""
TREND_HOURS = 14 * 24
"""The hours that a trend covers."""
HOUR = timedelta(hours=1)

_VARIABLE = re.compile(
    r"0x[0-9a-fA-F]+"
    r"|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
    r"|\b(?=[a-f]*[0-9])[0-9a-f]{16,}\b"
    r"|[0-9]+"
)
"""Addresses, UUIDs, hashes and numbers, which differ between occurrences of the same error."""


class IncidentState(StrEnum):
    """The state of an incident. Members are strings."""

    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    MUTED = "muted"
    RESOLVED = "resolved"


RESOLVED_BY_SUCCESS = frozenset({IncidentState.OPEN, IncidentState.ACKNOWLEDGED})
"""The states that a success of the job ends."""

STATES_BEFORE = {
    IncidentState.ACKNOWLEDGED: frozenset({IncidentState.OPEN}),
    IncidentState.MUTED: frozenset(IncidentState) - {IncidentState.MUTED},
    IncidentState.RESOLVED: frozenset(IncidentState) - {IncidentState.RESOLVED},
    IncidentState.OPEN: frozenset(IncidentState) - {IncidentState.OPEN},
}
"""For each state, the states from which a user may change an incident to it."""

Trend = list[list[int]]
"""Pairs of an hour, counted from 1970, and its number of failures. The oldest comes first."""


@dataclass(frozen=True, slots=True)
class FailureFacts:
    """One failed attempt, or one run that failed without an attempt."""

    job_id: int
    exception_class: str
    message: str
    at: datetime
    run_id: UUID | None = None
    attempt_id: int | None = None

    @property
    def first_line(self) -> str:
        return message_line(self.message)

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.exception_class, self.first_line)


def message_line(message: str) -> str:
    """Return the first line of the message, without the text about a refused retry."""
    return next(iter(without_refused_retry(message.strip()).splitlines()), "")[:MESSAGE_LIMIT]


def normalize_message(message: str) -> str:
    """Return the message without the parts that differ between occurrences of the same error."""
    return _VARIABLE.sub("#", message)


def fingerprint(exception_class: str, message: str) -> str:
    """Return the key of a failure. Failures of a job with the same key are one incident."""
    text = f"{exception_class}\0{normalize_message(message)}"
    return sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]


def hour_of(at: datetime) -> int:
    return int(at.astimezone(UTC).timestamp() // HOUR.total_seconds())


def extended_trend(trend: Trend, failures: Iterable[datetime]) -> Trend:
    """Return the trend with these failures, without the hours that are too old."""
    counts: dict[int, int] = {pair[0]: pair[1] for pair in trend}
    for at in failures:
        hour = hour_of(at)
        counts[hour] = counts.get(hour, 0) + 1
    oldest = max(counts, default=0) - TREND_HOURS
    return [[hour, counts[hour]] for hour in sorted(counts) if hour > oldest]


def trend_in_steps(trend: Trend, now: datetime, hours: int, steps: int) -> list[int]:
    """Return the failures in each of ``steps`` steps of ``hours`` hours until now, oldest first."""
    counts = [0] * steps
    for hour, count in trend:
        step = steps - 1 - (hour_of(now) - hour) // hours
        if 0 <= step < steps:
            counts[step] += count
    return counts
