"""Check jobs and their cursors: does each cursor match its schedule, and will the job run again?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import cache
from typing import NamedTuple

from django_dcron.diagnosis.doctor.account import accountable_since
from django_dcron.diagnosis.doctor.findings import Code, Findings
from django_dcron.diagnosis.doctor.window import Window, format_moment, job_subject
from django_dcron.diagnosis.job_arguments import (
    ArgumentsChecker,
    advice_on_arguments,
    unknown_target_problem,
)
from django_dcron.diagnosis.job_state import cursor_of, problem_of
from django_dcron.diagnosis.overdue import takeover_time
from django_dcron.exceptions import InvalidSchedule
from django_dcron.jobs.placement import matches_definition, runs_without_schedule, timetable_of
from django_dcron.models import Cursor, Job
from django_dcron.policies.freezing import ALL_NAMESPACES
from django_dcron.policies.health.facts import FreezeFacts
from django_dcron.schedules.timetable import MICROSECOND, SECOND, Timetable
from django_dcron.utils.durations import write_duration
from django_dcron.utils.messages import with_full_stop

PLACE_CURSOR = "To place the cursor again, pause and resume the job. Please report this bug."


class JobProblem(NamedTuple):
    code: Code
    message: str
    at: datetime | None = None
    advice: str = ""


class JobExaminer:
    """Examines jobs; looks up each target only once."""

    def __init__(
        self, window: Window, findings: Findings, freezes: Sequence[FreezeFacts] = ()
    ) -> None:
        """``freezes`` are in force. The cursors of their jobs aren't reported as overdue."""
        self._window = window
        self._frozen = {freeze.namespace for freeze in freezes}
        self._findings = findings
        self._unknown_target_problem = cache(unknown_target_problem)
        self._arguments = ArgumentsChecker()

    def examine(self, jobs: list[Job]) -> None:
        for job in jobs:
            for found in self._problems(job):
                self._findings.add(
                    found.code, job_subject(job), found.message, at=found.at, advice=found.advice
                )

    def _problems(self, job: Job) -> Iterator[JobProblem]:
        if job.enabled and (unknown := self._unknown_target_problem(job.target)):
            yield JobProblem(Code.UNKNOWN_TARGET, unknown)
        elif job.enabled and (rejected := self._arguments.why_rejected(job)):
            yield JobProblem(
                Code.ARGUMENTS_REJECTED,
                f"Runs fail: the target doesn't accept the job's arguments. {rejected}",
                advice=advice_on_arguments(job),
            )
        cursor = cursor_of(job)
        if cursor is None or not matches_definition(cursor, job):
            yield JobProblem(
                Code.CURSOR_OUTDATED,
                "The job was changed without control.save, and no node has noticed yet. A node "
                "checks up to 100,000 jobs every 5 seconds. If this persists for longer, no node "
                "leads the job's shard.",
            )
        elif problem := problem_of(job):
            yield JobProblem(Code.QUARANTINED, _quarantined_text(job, problem))
        elif job.enabled:
            yield from self._cursor_problems(job, cursor)

    def _cursor_problems(self, job: Job, cursor: Cursor) -> Iterator[JobProblem]:
        try:
            timetable = timetable_of(job)
        except InvalidSchedule as error:
            text = f"The schedule is invalid: {with_full_stop(error)} Correct and save it."
            yield JobProblem(Code.QUARANTINED, text)
            return
        if cursor.next_at is None:
            problem = _stopped_cursor_problem(timetable, cursor, self._window)
            if problem.code is not Code.NEVER_FIRES or not runs_without_schedule(job):
                yield problem
            return
        late = self._window.now - cursor.next_at
        if late > takeover_time() and not self._frozen & {ALL_NAMESPACES, job.namespace}:
            delay = write_duration(late // SECOND * SECOND, " ")
            yield JobProblem(
                Code.CURSOR_OVERDUE,
                f"The occurrence at {format_moment(cursor.next_at)} is {delay} overdue, "
                "and no node has claimed it.",
                cursor.next_at,
                "Possible causes: no node leads the job's shard, or its ticks fail. See the "
                "findings about nodes and the logs of the nodes.",
            )
        yield from _cursor_position_problems(
            timetable, cursor, accountable_since(cursor, self._window)
        )


def _quarantined_text(job: Job, problem: str) -> str:
    problem = with_full_stop(problem)
    if job.enabled:
        return f"The job isn't scheduled: {problem} Correct and save it."
    text = f"The pause of the job is over, but the job can't resume: {problem} "
    try:
        timetable_of(job)
    except InvalidSchedule:
        return text + "Correct and save it."
    return text + "Fix the cause of that error. Nodes try again every few minutes."


def _stopped_cursor_problem(timetable: Timetable, cursor: Cursor, window: Window) -> JobProblem:
    next_at = timetable.first_after(cursor.previous_at or window.now, cursor.previous_at)
    if next_at is None or (next_at <= window.now and timetable.first_after(window.now) is None):
        return JobProblem(
            Code.NEVER_FIRES,
            "The job is enabled, but its schedule has no further occurrence. Change the schedule "
            "or the end, or pause the job.",
        )
    return JobProblem(
        Code.CURSOR_STOPPED,
        f"The job is enabled and has further occurrences ({format_moment(next_at)}), but its "
        f"cursor has stopped, so nothing will run. {PLACE_CURSOR}",
    )


def _cursor_position_problems(
    timetable: Timetable, cursor: Cursor, since: datetime
) -> Iterator[JobProblem]:
    """Report a cursor that isn't at an occurrence or that skipped one.

    A cursor moves from one occurrence to the next, unless a change of the job places it again.
    """
    next_at, previous_at = cursor.next_at, cursor.previous_at
    assert next_at is not None  # noqa: S101 (the caller has checked it)
    if (
        timetable.schedule.interval is None
        and timetable.next_after(next_at - MICROSECOND) != next_at
    ):
        yield JobProblem(
            Code.CURSOR_WRONG,
            f"The cursor is at {format_moment(next_at)}, which isn't an occurrence. {PLACE_CURSOR}",
        )
    elif previous_at is not None and since < previous_at < next_at:
        between = timetable.next_after(previous_at)
        if between is not None and between != next_at:
            yield JobProblem(
                Code.CURSOR_WRONG,
                f"The cursor went from {format_moment(previous_at)} to {format_moment(next_at)} "
                f"and skipped {format_moment(between)}. {PLACE_CURSOR}",
            )
