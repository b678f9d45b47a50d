"""Complete the runs that beat has stored with the messages that workers have received from it.

Beat stores no runs of a static schedule, and django-celery-beat stores the last run of a row up to
three minutes later. The running workers know at once which tasks they have received from beat.

Invariants:

- A message names only its task. It belongs to an entry only if no other entry has this task.
- An entry has at most one time. Otherwise, one run would count twice, as stored and as received.
- A message may have waited in its queue. So a stored time counts instead of a message that workers
  received shortly afterwards. Without stored times, the report doesn't list a message that was
  received too late as a difference.
- Workers forget their messages when they restart. If only messages are known, a missing run
  therefore proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime

from django_dcron.contrib.importers import celery_beat, celery_config
from django_dcron.contrib.importers.source_contents import (
    WRITE_DELAY,
    SourceEntry,
    SourceProblem,
    SourceRuns,
)
from django_dcron.contrib.importers.sources import SCHEDULERS
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.models import Job


def runs_to_compare(source: str, entries: Iterable[SourceEntry], since: datetime) -> SourceRuns:
    """Return the runs of the entries since ``since``. Raises ``SourceProblem``."""
    origins = {entry.key: entry.origin for entry in entries}
    if source == celery_config.SOURCE:
        nothing_stored = SourceRuns({}, complete=False, missing_means_not_run=False)
        keys = celery_config.entries_by_task()
        return _with_received(nothing_stored, origins, keys, _received_from_beat(), since)
    stored = SCHEDULERS[source].runs_since(since)
    if source == celery_beat.SOURCE:
        with suppress(SourceProblem):  # the stored runs suffice
            keys = celery_beat.entries_by_task()
            return _with_received(stored, origins, keys, _received_from_beat(), since)
    return stored


def _received_from_beat() -> dict[str, datetime]:
    """Return when a worker last received each task from beat. Raises ``SourceProblem``."""
    ages = celery_config.sent_by_beat()
    now = database_now(alias_for(Job))  # read after the replies, because the ages end there
    return {task: now - age for task, age in ages.items()}


def _with_received(
    stored: SourceRuns,
    origins: Mapping[str, str],
    keys_by_task: Mapping[str, set[str]],
    received: Mapping[str, datetime],
    since: datetime,
) -> SourceRuns:
    """Add the times at which the tasks were ``received``.

    ``origins``: the origin of each entry, by the entry's key.
    """
    times = {origin: list(known) for origin, known in stored.times.items()}
    for task, at in received.items():
        keys = keys_by_task.get(task, set())
        if len(keys) == 1 and at >= since and (origin := origins.get(*keys)):
            stored_at = max(times.get(origin, ()), default=None)
            if stored_at is None or at - stored_at > WRITE_DELAY:
                times[origin] = [at]
    shared_tasks = {
        origins[key]: task
        for task, keys in keys_by_task.items()
        if len(keys) > 1 and not stored.missing_means_not_run
        for key in keys
        if key in origins
    }
    return SourceRuns(
        times,
        stored.complete,
        stored.unread,
        shared_tasks,
        missing_means_not_run=stored.missing_means_not_run,
    )
