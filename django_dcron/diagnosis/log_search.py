"""Search the captured logs of runs for a text, newest runs first.

Invariants:

- A search reads at most ``RUNS_READ`` runs and about ``CHARACTERS_READ`` characters of logs, and
  finds at most ``MAX_MATCHES`` runs. It searches all attempts of a run or none.
- A further search continues after the oldest run that was searched. No run is searched twice, and
  none is omitted.
- Only logs within the scope are read, so nobody finds a run by a log that they may not see.
- Python compares the texts: case doesn't matter in any language, ``%`` and ``_`` are plain
  characters, and all databases find the same runs.
- No query joins, and each is bounded. About ``BATCH_CHARACTERS`` characters of logs are in memory
  at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Func, IntegerField, Q, QuerySet
from django.db.models.functions import Right

from django_dcron.diagnosis.scope import Scope
from django_dcron.models import Run
from django_dcron.utils.batches import in_batches

RUNS_READ = 5_000
CHARACTERS_READ = 6_000_000
MAX_MATCHES = 500
"""As many as the rows to which an action on a list applies in one request."""
CHUNK_SIZE = 3_000
"""The number of runs whose logs one query measures."""
BATCH_CHARACTERS = 3_000_000
LOG_CHARACTERS_READ = 100_000
"""The number of characters at the end of a log that are searched, as the page of a run shows."""
SHOWN_BEFORE, SHOWN_AFTER = 60, 160


class RunPosition(NamedTuple):
    """The position of a run in the order of the list."""

    scheduled_at: datetime
    run_id: UUID


@dataclass(frozen=True, slots=True)
class LogMatch:
    """The first line that contains the text, in the latest attempt whose log contains it."""

    attempt_id: int
    attempt: int
    """The number of the attempt."""
    before: str
    text: str
    """The text as the log has it."""
    after: str


@dataclass(slots=True)
class LogSearch:
    matches: dict[UUID, LogMatch] = field(default_factory=dict)
    searched: int = 0
    """The number of runs that were searched, also those without a log."""
    newest: RunPosition | None = None
    oldest: RunPosition | None = None
    """The first and the last run that were searched."""
    more: bool = False
    """Whether there are older runs that weren't searched."""


class _LogSize(Func):
    """The length of the log, which PostgreSQL knows without reading it.

    In bytes, or in characters on SQLite, so the limits in characters are approximate.
    """

    function = "OCTET_LENGTH"
    output_field = IntegerField()

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, function="LENGTH", **context)


def runs_older_than(runs: QuerySet[Run], position: RunPosition) -> QuerySet[Run]:
    """Return the runs after ``position`` in the order of the list.

    The separate bound on ``scheduled_at`` lets databases seek the index.
    """
    same_time = Q(scheduled_at=position.scheduled_at, pk__lt=position.run_id)
    older = Q(scheduled_at__lt=position.scheduled_at) | same_time
    return runs.filter(older, scheduled_at__lte=position.scheduled_at)


def search_logs(runs: QuerySet[Run], text: str, scope: Scope) -> LogSearch:
    """Search the newest of ``runs`` for ``text``, which isn't empty."""
    keys = runs.order_by("-scheduled_at", "-pk").values_list("scheduled_at", "pk")
    newest = [RunPosition(*each) for each in keys[: RUNS_READ + 1]]
    search = LogSearch()
    wanted, characters = text.casefold(), 0
    for batch, size in _batches(newest[:RUNS_READ], scope):
        _record(search, batch, _matches_in(batch, wanted, scope) if size else {})
        characters += size
        if characters >= CHARACTERS_READ or len(search.matches) >= MAX_MATCHES:
            break
    search.more = search.searched < len(newest)
    return search


def _record(search: LogSearch, batch: list[RunPosition], found: dict[UUID, LogMatch]) -> None:
    """Add the runs of the batch to the search, in order and up to the last possible match."""
    for run in batch:
        search.searched += 1
        search.newest = search.newest or run
        search.oldest = run
        if run.run_id in found:
            search.matches[run.run_id] = found[run.run_id]
            if len(search.matches) >= MAX_MATCHES:
                return


def _batches(newest: list[RunPosition], scope: Scope) -> Iterator[tuple[list[RunPosition], int]]:
    """Yield the runs in order, in batches with the size of their logs."""
    for chunk in in_batches(newest, CHUNK_SIZE):
        sizes = dict.fromkeys((each.run_id for each in chunk), 0)
        attempts = scope.attempts.filter(run__in=list(sizes)).order_by()
        for run_id, size in attempts.annotate(size=_LogSize("log")).values_list("run", "size"):
            sizes[run_id] += min(size, LOG_CHARACTERS_READ)
        yield from batches_of(((each, sizes[each.run_id]) for each in chunk), BATCH_CHARACTERS)


def batches_of(
    sized: Iterable[tuple[RunPosition, int]], limit: int
) -> Iterator[tuple[list[RunPosition], int]]:
    """Divide the runs into batches. A batch ends with the run that makes it reach ``limit``."""
    batch: list[RunPosition] = []
    total = 0
    for run, size in sized:
        batch.append(run)
        total += size
        if total >= limit:
            yield batch, total
            batch, total = [], 0
    if batch:
        yield batch, total


def _matches_in(batch: list[RunPosition], wanted: str, scope: Scope) -> dict[UUID, LogMatch]:
    attempts = scope.attempts.filter(run__in=[each.run_id for each in batch]).exclude(log="")
    rows = attempts.order_by().values_list("run", "pk", "number", Right("log", LOG_CHARACTERS_READ))
    matches: dict[UUID, LogMatch] = {}
    for run_id, attempt_id, number, log in rows:
        earlier = matches.get(run_id)
        if earlier is None or earlier.attempt < number:
            found = find_in_lines(log, wanted)
            if found is not None:
                matches[run_id] = LogMatch(attempt_id, number, *found)
    return matches


def find_in_lines(text: str, wanted: str) -> tuple[str, str, str] | None:
    """Return the first line that contains ``wanted``: before, the found text, and after.

    ``wanted`` is case-folded. Long lines are cut around the found text.
    """
    if wanted not in text.casefold():
        return None
    for line in text.splitlines():
        folded = line.casefold()
        start = folded.find(wanted)
        if start >= 0:
            end = start + len(wanted)
            if len(folded) != len(line):  # some characters fold to several
                start, end = _positions_in(line, start, end)
            return _around(line, start, end)
    return None


def _positions_in(line: str, start: int, end: int) -> tuple[int, int]:
    """Return the positions of the characters whose folded text is ``start`` to ``end``."""
    folded, first = 0, None
    for position, character in enumerate(line):
        folded += len(character.casefold())
        if first is None and folded > start:
            first = position
        if folded >= end:
            return first or 0, position + 1
    return first or 0, len(line)


def _around(line: str, start: int, end: int) -> tuple[str, str, str]:
    before, after = line[:start].lstrip(), line[end:].rstrip()
    if len(before) > SHOWN_BEFORE:
        before = "…" + before[-SHOWN_BEFORE:]
    if len(after) > SHOWN_AFTER:
        after = after[:SHOWN_AFTER] + "…"
    return before, line[start:end], after
