"""Compare every message in beat's log with every run of django-dcron.

The log names all messages, whereas beat's tables keep only the latest. The comparison is
independent of ``django_dcron.contrib.importers.report`` and stricter: each occurrence has exactly
one message and one run.

Two differences are known and explained:

- If a crontab starts at one of its occurrences, beat sends it from the next one on, or once beat
  reads its rows again.
- A late beat doesn't send the last occurrence of a crontab that ends soon after it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

LATE = timedelta(seconds=60)
AT_ITS_START = "beat skips an occurrence at the start of a crontab"
PAST_ITS_END = "beat was late, and the row had ended before it was sent"
SENT = re.compile(
    r"^\[(\S+ \S+?): INFO/\w+\] Scheduler: Sending due task (.*) \(([\w.]+)\)$", re.MULTILINE
)


@dataclass(slots=True)
class Compared:
    same: int = 0
    messages_only: list[datetime] = field(default_factory=list)
    """Messages from beat without a run."""
    runs_only: list[datetime] = field(default_factory=list)
    """Runs without a message from beat within ``LATE``."""
    lateness: list[timedelta] = field(default_factory=list)
    """Beat's delay after each matched occurrence.

    It is empty for intervals, whose phases differ.
    """
    start: datetime | None = None
    """The start of a crontab that has one."""
    end: datetime | None = None

    def differences(self) -> Iterator[tuple[str, datetime, str]]:
        """Yield the kind, the time and the reason (or "") of each unmatched message or run."""
        for kind, alone in (("message", self.messages_only), ("run", self.runs_only)):
            for at in alone:
                yield kind, at, self._reason(kind, at)

    def _reason(self, kind: str, at: datetime) -> str:
        if self.start is not None and self.start <= at < self.start + LATE:
            return AT_ITS_START
        if self.end is not None and kind == "run" and at < self.end <= at + LATE:
            return PAST_ITS_END
        return ""

    @property
    def is_clean(self) -> bool:
        """Return whether every difference has a known reason."""
        return all(why for _, _, why in self.differences())


def by_row(
    names: Mapping[str, str], log: str, begin: datetime, end: datetime
) -> dict[str, Compared]:
    """Return the comparison of each row, by its name.

    ``names`` maps the names of rows to the names of their jobs.
    """
    from django_celery_beat.models import PeriodicTask

    from django_dcron.models import Job, Run
    from django_dcron.policies.lifecycle import Trigger

    messages, runs = sent(log), defaultdict(list)
    scheduled = Run.objects.filter(trigger=Trigger.SCHEDULE).order_by("scheduled_at")
    for job_id, at in scheduled.values_list("job_id", "scheduled_at"):
        runs[job_id].append(at)
    jobs = {job.name: job for job in Job.objects.all()}
    crontabs = PeriodicTask.objects.filter(crontab__isnull=False)
    edges = {row: edge for row, *edge in crontabs.values_list("name", "start_time", "expires")}
    found = {}
    for row, name in names.items():
        job = jobs[name]
        both = (runs[job.pk], messages.get(row, []))
        length = job.parsed_schedule.interval
        found[row] = (
            compare_interval(length, *both, begin, end) if length else compare(*both, begin, end)
        )
        found[row].start, found[row].end = edges.get(row, (None, None))
    return found


def sent(log: str) -> dict[str, list[datetime]]:
    """Return the times of beat's messages in order, by row name.

    The process that wrote the log ran in UTC.
    """
    found = defaultdict(list)
    for when, name, _task in SENT.findall(log):
        found[name].append(datetime.strptime(when, "%Y-%m-%d %H:%M:%S,%f").replace(tzinfo=UTC))
    return found


def compare(
    runs: Sequence[datetime], messages: Sequence[datetime], begin: datetime, end: datetime
) -> Compared:
    """Compare instants that should be the same.

    All instants of both sides are paired in order. Only those from ``begin`` to ``end`` count.
    """
    result, runs, messages = Compared(), list(runs), list(messages)
    while runs or messages:
        if runs and messages and runs[0] <= messages[0] <= runs[0] + LATE:
            at, sent_at = runs.pop(0), messages.pop(0)
            if begin <= at < end:
                result.same += 1
                result.lateness.append(sent_at - at)
        elif not runs or (messages and messages[0] < runs[0]):
            if begin <= (sent_at := messages.pop(0)) < end:
                result.messages_only.append(sent_at)
        elif begin <= (at := runs.pop(0)) < end:
            result.runs_only.append(at)
    return result


def compare_interval(
    length: timedelta,
    runs: Sequence[datetime],
    messages: Sequence[datetime],
    begin: datetime,
    end: datetime,
) -> Compared:
    """Compare the instants of an interval, whose phase differs between both sides.

    Each run needs a message within an interval, and each message a run.
    """
    result = Compared()
    for each, others, alone in (
        (runs, messages, result.runs_only),
        (messages, runs, result.messages_only),
    ):
        for at in each:
            # Near the edges, the matching instant may be outside the window.
            if not begin + length <= at < end - length:
                continue
            if any(abs(at - other) <= length + LATE for other in others):
                result.same += each is runs
            else:
                alone.append(at)
    return result
