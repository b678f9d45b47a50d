"""A history: what a cluster was asked to do and what it did, as plain data and as JSON.

The JSON has the fields of ``History``: lists of objects with the fields of the other classes. Times
are ISO 8601 in UTC. Durations are seconds.
"""

from __future__ import annotations

import gzip
import json
import types
import typing
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

FORMAT = 1
"""The number of the JSON format. A reader refuses any other."""

FINAL = frozenset({"succeeded", "failed", "skipped", "missed", "cancelled"})
"""The states in which a run has ended."""


@dataclass(frozen=True)
class Job:
    """The definition of a job, with the position of its cursor."""

    id: int
    name: str
    """``name``, or ``namespace/name`` outside the namespace ``default``."""
    schedule: str
    timezone: str
    since: datetime
    """Instant from which this definition holds. Earlier occurrences aren't expected."""
    enabled: bool = True
    deleted_at: datetime | None = None
    """When the job was deleted. Its occurrences aren't expected, because it has no cursor."""
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    calendar: str | None = None
    """The text of the job's calendar."""
    calendar_policy: str = "skip"
    witnessed: bool = True
    """Whether the job's code appends each start to the witness log."""
    next_at: datetime | None = None
    """The cursor: the next occurrence that has no run yet."""
    previous_at: datetime | None = None
    """The cursor: the latest occurrence that has one."""
    problem: str = ""
    """Why no node schedules the job. Empty if there is no problem."""
    misfire_policy: str = "run_latest"
    misfire_grace: timedelta = timedelta(seconds=60)
    catchup_limit: int = 100
    start_deadline: timedelta | None = None
    overlap_policy: str = "skip"
    limited: bool = False
    """Whether the job has a limit, so that its runs may wait for those of other jobs."""
    max_attempts: int = 1
    retry_backoff: timedelta = timedelta(seconds=10)
    retry_backoff_factor: float = 2.0
    retry_backoff_max: timedelta = timedelta(hours=1)
    retry_jitter: float = 0.1
    keep_for: timedelta | None = None
    """How long runs are kept that haven't failed. None: forever."""
    keep_runs: int | None = None
    """How many ended runs are kept. None: all."""


@dataclass(frozen=True)
class Link:
    """``job`` runs after each run of ``after`` that ends as ``on`` says."""

    job: int
    after: int
    on: str
    """``succeeded``, ``failed`` or ``ended``."""


@dataclass(frozen=True)
class Run:
    id: str
    job: int
    scheduled_at: datetime
    trigger: str
    state: str
    attempt: int
    due_at: datetime
    claimed_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    missed_before: int = 0
    missed_from: datetime | None = None
    idempotency_key: str | None = None
    slot: str | None = None
    reason: str = ""


@dataclass(frozen=True)
class Attempt:
    run: str
    number: int
    started_at: datetime
    finished_at: datetime | None = None
    due_at: datetime | None = None
    outcome: str = ""
    exception_class: str = ""
    late_outcome: str = ""
    """The outcome that its worker reported after the attempt was closed with another one."""
    fence: int | None = None
    """The fencing token. None if it isn't known."""


@dataclass(frozen=True)
class Start:
    """A start that the job's own code witnessed."""

    run: str
    attempt: int
    job: str
    scheduled_at: datetime
    began_at: datetime
    process: str
    ended_at: datetime | None = None
    """When the code ended. None if its process died first."""


@dataclass(frozen=True)
class Change:
    """A change of a run's state, attempt or slot, as a trigger of the database has recorded it."""

    number: int
    """Its place in the order of the changes."""
    run: str
    job: int
    old: str
    """The state before. ``absent`` if the run is new."""
    new: str
    due_at: datetime
    trigger: str
    attempts: int = 0
    """By how much the number of the attempt grows."""
    frees_slot: bool = False
    """Whether the run gives up the slot of its job."""
    takes_slot: bool = False
    """Whether the run gets the slot. A run that waits for its limit, or for a retry, keeps it."""
    limited: bool = False
    """Whether the run waits for its limit instead of the slot, or has a place in the limit."""
    at: datetime | None = None
    """The time of the change by the database's clock."""
    limit: str = ""
    """The limit of the run's job at that time. Empty: none."""
    key: str = ""
    """The key under which the run counts in the limit, by its arguments at that time."""


@dataclass(frozen=True)
class Limit:
    """A definition of a limit. It holds until the next one of the same name."""

    number: int
    """Its place in the order of the changes."""
    name: str
    key: str = ""
    """The template of the keys under which runs count separately."""
    max_running: int | None = None
    max_started: int | None = None
    interval: timedelta | None = None


@dataclass(frozen=True)
class Counters:
    """The statistics of a job: how many of its runs ended in which state."""

    job: int
    succeeded: int = 0
    failed: int = 0
    skipped: int = 0
    missed: int = 0
    cancelled: int = 0
    consecutive_failures: int = 0
    late_successes: int = 0
    """How many of its attempts succeeded after they were closed with another outcome."""


@dataclass(frozen=True, eq=False)  # hashed by identity, so that rules can share computations
class History:
    after: datetime
    """The window in which occurrences are expected begins after this instant."""
    until: datetime
    """The window ends with this instant. No process wrote any more when the history was read."""
    jobs: list[Job] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    counters: list[Counters] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    """Empty if no trigger has recorded them."""
    limits: list[Limit] = field(default_factory=list)
    """The definitions of limits, recorded with the changes."""
    faults: dict[str, int] = field(default_factory=dict)
    """How often each kind of fault was injected. The verdict doesn't depend on it."""
    about: dict[str, str] = field(default_factory=dict)
    """Where the history comes from, such as the scenario, the date and the commit."""

    @cached_property
    def job_by_id(self) -> dict[int, Job]:
        return {job.id: job for job in self.jobs}

    @cached_property
    def run_by_id(self) -> dict[str, Run]:
        return {run.id: run for run in self.runs}

    @cached_property
    def runs_by_job(self) -> dict[int, list[Run]]:
        return grouped(sorted(self.runs, key=lambda run: run.scheduled_at), lambda run: run.job)

    @cached_property
    def attempts_by_run(self) -> dict[str, list[Attempt]]:
        return grouped(
            sorted(self.attempts, key=lambda attempt: attempt.number), lambda attempt: attempt.run
        )

    @cached_property
    def starts_by_run(self) -> dict[str, list[Start]]:
        return grouped(
            sorted(self.starts, key=lambda start: start.began_at), lambda start: start.run
        )

    @cached_property
    def attempt_by_key(self) -> dict[tuple[str, int], Attempt]:
        return {(attempt.run, attempt.number): attempt for attempt in self.attempts}

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, default=_plain, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> History:
        """Read a history. Raises ``ValueError`` if it has another format."""
        read = json.loads(text)
        if read.pop("format", None) != FORMAT:
            raise ValueError(f"not a history of format {FORMAT}")
        return _read(cls, read)  # type: ignore[no-any-return]

    def write(self, path: Path) -> None:
        path.write_text(self.to_json())

    @classmethod
    def read(cls, path: Path) -> History:
        """Read a file. It may be compressed: ``.gz``."""
        content = path.read_bytes()
        return cls.from_json(gzip.decompress(content) if path.suffix == ".gz" else content)


Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return the items by key, in the given order. A key without items has an empty list."""
    groups: defaultdict[Key, list[Item]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return groups


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    raise TypeError(type(value).__name__)


_hints = cache(typing.get_type_hints)


def _read(kind: Any, value: Any) -> Any:
    """Return the value of a field of this type, read from JSON."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        return None if value is None else _read(arguments[0], value)
    if origin is list:
        return [_read(arguments[0], item) for item in value]
    if kind is datetime:
        return datetime.fromisoformat(value)
    if kind is timedelta:
        return timedelta(seconds=value)
    if isinstance(kind, type) and hasattr(kind, "__dataclass_fields__"):
        hints = _hints(kind)
        unknown = value.keys() - {each.name for each in fields(kind)}
        if unknown:
            raise ValueError(f"{kind.__name__} has no {', '.join(sorted(unknown))}")
        return kind(**{name: _read(hints[name], item) for name, item in value.items()})
    return value
