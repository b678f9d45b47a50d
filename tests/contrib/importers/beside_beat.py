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
    there: list[datetime] = field(default_factory=list)
    """Messages from beat without a run."""
    here: list[datetime] = field(default_factory=list)
    """Runs without a message from beat within ``LATE``."""
    lateness: list[timedelta] = field(default_factory=list)
    """Beat's delay after each matched occurrence.

    It is empty for intervals, whose phases differ.
    """
    start: datetime | None = None
    """The start of a crontab that has one."""
    end: datetime | None = None

    def differences(self) -> Iterator[tuple[str, datetime, str]]:
        """Yield the side, the time and the known reason of each difference, or "" as the reason."""
        for where, alone in (("there", self.there), ("here", self.here)):
            for at in alone:
                yield where, at, self._reason(where, at)

    def _reason(self, where: str, at: datetime) -> str:
        if self.start is not None and self.start <= at < self.start + LATE:
            return AT_ITS_START
        if self.end is not None and where == "here" and at < self.end <= at + LATE:
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

    theirs, ours = sent(log), defaultdict(list)
    runs = Run.objects.filter(trigger=Trigger.SCHEDULE).order_by("scheduled_at")
    for job_id, at in runs.values_list("job_id", "scheduled_at"):
        ours[job_id].append(at)
    jobs = {job.name: job for job in Job.objects.all()}
    crontabs = PeriodicTask.objects.filter(crontab__isnull=False)
    edges = {row: both for row, *both in crontabs.values_list("name", "start_time", "expires")}
    found = {}
    for row, name in names.items():
        job = jobs[name]
        both = (ours[job.pk], theirs.get(row, []))
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
    ours: Sequence[datetime], theirs: Sequence[datetime], begin: datetime, end: datetime
) -> Compared:
    """Compare instants that should be the same.

    All instants of both sides are paired in order. Only those from ``begin`` to ``end`` count.
    """
    result, mine, other = Compared(), list(ours), list(theirs)
    while mine or other:
        if mine and other and mine[0] <= other[0] <= mine[0] + LATE:
            at, came = mine.pop(0), other.pop(0)
            if begin <= at < end:
                result.same += 1
                result.lateness.append(came - at)
        elif not mine or (other and other[0] < mine[0]):
            if begin <= (came := other.pop(0)) < end:
                result.there.append(came)
        elif begin <= (at := mine.pop(0)) < end:
            result.here.append(at)
    return result


def compare_interval(
    length: timedelta,
    ours: Sequence[datetime],
    theirs: Sequence[datetime],
    begin: datetime,
    end: datetime,
) -> Compared:
    """Compare the instants of an interval, whose phase differs between both sides.

    Each run needs a message within an interval, and each message a run.
    """
    result = Compared()
    for each, others, alone in ((ours, theirs, result.here), (theirs, ours, result.there)):
        for at in each:
            # Near the edges, the matching instant may be outside the window.
            if not begin + length <= at < end - length:
                continue
            if any(abs(at - other) <= length + LATE for other in others):
                result.same += each is ours
            else:
                alone.append(at)
    return result
