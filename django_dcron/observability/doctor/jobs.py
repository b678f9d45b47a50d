"""Jobs and their cursors: does each stand where its schedule says, and will it go on?"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from django_dcron import targets
from django_dcron.definition import runs_otherwise, stands_for, timetable_of
from django_dcron.domain.timetable import INSTANT, Timetable
from django_dcron.exceptions import InvalidSchedule, UnknownTarget
from django_dcron.models import Cursor, Job
from django_dcron.observability.doctor.account import accountable_since
from django_dcron.observability.doctor.findings import Code, Findings
from django_dcron.observability.doctor.window import Window, about_job, at, cursor_of
from django_dcron.observability.overdue import patience

Problem = tuple[Code, str]


class JobExaminer:
    """Asks for each target once."""

    def __init__(self, window: Window, findings: Findings):
        self._window = window
        self._findings = findings
        self._targets: dict[str, str] = {}

    def examine(self, jobs: list[Job]) -> None:
        for job in jobs:
            for code, message in self._problems(job):
                self._findings.add(code, about_job(job), message)

    def _problems(self, job: Job) -> Iterator[Problem]:
        if job.enabled and (unknown := self._why_unknown(job.target)):
            yield (
                Code.UNKNOWN_TARGET,
                f"Its runs fail: {unknown}. Register the target, or correct or pause the job.",
            )
        cursor = cursor_of(job)
        if cursor is None or not stands_for(cursor, job):
            yield (
                Code.CURSOR_OUTDATED,
                "It was changed past control.save, and no node has caught up with it yet. Nodes look every few seconds: "
                "if this stays, none leads its shard.",
            )
        elif cursor.problem:
            yield Code.QUARANTINED, f"It is out of scheduling: {cursor.problem}. Correct and save it."
        elif job.enabled:
            yield from self._cursor_problems(job, cursor)

    def _why_unknown(self, target: str) -> str:
        if target not in self._targets:
            try:
                targets.get(target)
                self._targets[target] = ""
            except UnknownTarget as error:
                self._targets[target] = str(error).rstrip(".?")
        return self._targets[target]

    def _cursor_problems(self, job: Job, cursor: Cursor) -> Iterator[Problem]:
        try:
            timetable = timetable_of(job)
        except InvalidSchedule as error:
            yield Code.QUARANTINED, f"Its schedule cannot be read: {error}. Correct and save it."
            return
        if cursor.next_at is None:
            problem = _standing_still(timetable, cursor, self._window)
            if problem[0] is not Code.NEVER_FIRES or not runs_otherwise(job):
                yield problem
            return
        late = self._window.now - cursor.next_at
        if late > patience():
            yield (
                Code.CURSOR_OVERDUE,
                f"Its occurrence of {at(cursor.next_at)} is {_span(late)} past, and nobody has claimed it: no node leads its "
                "shard, or that node's ticks fail. See the findings on nodes and the nodes' logs.",
            )
        yield from _misplaced(timetable, cursor, accountable_since(cursor, self._window))


def _standing_still(timetable: Timetable, cursor: Cursor, window: Window) -> Problem:
    following = timetable.first_after(cursor.previous_at or window.now, cursor.previous_at)
    if following is None or (following <= window.now and timetable.first_after(window.now) is None):
        return (
            Code.NEVER_FIRES,
            "It is enabled, but its schedule has no further occurrence. Change its schedule or its end, or pause it.",
        )
    return (
        Code.CURSOR_STOPPED,
        f"It is enabled and has occurrences to come ({at(following)}), but its cursor has stopped: nothing will run. "
        "Save the job once more, and report it as a bug.",
    )


def _misplaced(timetable: Timetable, cursor: Cursor, since: datetime) -> Iterator[Problem]:
    """A cursor goes from one occurrence to the next, unless a change of the job has placed it anew."""
    next_at, previous_at = cursor.next_at, cursor.previous_at
    assert next_at is not None  # noqa: S101 (the caller has seen to it)
    advice = "Save the job once more, and report it as a bug."
    if timetable.schedule.interval is None and timetable.next_after(next_at - INSTANT) != next_at:
        yield Code.CURSOR_WRONG, f"Its cursor stands at {at(next_at)}, which is no occurrence. {advice}"
    elif previous_at is not None and since < previous_at < next_at:
        between = timetable.next_after(previous_at)
        if between is not None and between != next_at:
            yield (
                Code.CURSOR_WRONG,
                f"Its cursor went from {at(previous_at)} to {at(next_at)}, past {at(between)}. {advice}",
            )


def _span(length: timedelta) -> str:
    return str(timedelta(seconds=int(length.total_seconds())))
