"""Every message of beat's held against every run of ours: by its log, which names all, where its tables keep the latest alone.

Independent of ``django_dcron.moving.report``, and stricter: of one occurrence there is one message and one run, no more. Two habits of
beat's are known: a crontab that begins at one of its own occurrences is sent from the next one on, or when beat reads its rows anew; and
of one that ends soon after an occurrence beat, when it is late, does not send that.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

LATE = timedelta(seconds=60)
AT_ITS_START = "beat's own: it does not send a crontab at its start, but at the occurrence after it"
PAST_ITS_END = "beat's own: it was late, and the row had ended when it came to it"
SENT = re.compile(r"^\[(\S+ \S+?): INFO/\w+\] Scheduler: Sending due task (.*) \(([\w.]+)\)$", re.MULTILINE)


@dataclass(slots=True)
class Compared:
    same: int = 0
    there: list[datetime] = field(default_factory=list)
    """Sent there, and none here."""
    here: list[datetime] = field(default_factory=list)
    """A run here, and none sent there within ``LATE``."""
    lateness: list[timedelta] = field(default_factory=list)
    """Of what is the same: by how much beat came after the occurrence. Not of intervals, whose phases differ."""
    start: datetime | None = None
    """Of a crontab that has one."""
    end: datetime | None = None

    def differences(self) -> Iterator[tuple[str, datetime, str]]:
        """Where, when, and why, if that is known."""
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
        """Whether all that differs is explained."""
        return all(why for _, _, why in self.differences())


def by_row(names: Mapping[str, str], log: str, begin: datetime, end: datetime) -> dict[str, Compared]:
    """By the name of the row; ``names`` has that of its job."""
    from django_celery_beat.models import PeriodicTask

    from django_dcron.domain.lifecycle import Trigger
    from django_dcron.models import Job, Run

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
        found[row] = compare_interval(length, *both, begin, end) if length else compare(*both, begin, end)
        found[row].start, found[row].end = edges.get(row, (None, None))
    return found


def sent(log: str) -> dict[str, list[datetime]]:
    """When, by the name of the row, and in order. The process of that log ran in UTC."""
    found = defaultdict(list)
    for when, name, _task in SENT.findall(log):
        found[name].append(datetime.strptime(when, "%Y-%m-%d %H:%M:%S,%f").replace(tzinfo=UTC))
    return found


def compare(ours: Sequence[datetime], theirs: Sequence[datetime], begin: datetime, end: datetime) -> Compared:
    """Of instants that are meant alike. All of both are paired, in their order; what is from ``begin`` to ``end`` counts."""
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
    """Of an interval, which has another phase there: each run here has a message within an interval, and the other way round."""
    result = Compared()
    for each, others, alone in ((ours, theirs, result.here), (theirs, ours, result.there)):
        for at in each:
            # At the edges, what would be its pair may be on the other side.
            if not begin + length <= at < end - length:
                continue
            if any(abs(at - other) <= length + LATE for other in others):
                result.same += each is ours
            else:
                alone.append(at)
    return result
