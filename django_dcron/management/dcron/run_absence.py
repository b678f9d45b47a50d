"""Decide from the system's health whether a node or worker that a run needs is missing.

Invariants:

- A run that a node or worker will continue is never reported, however long it waits.
- The facts are those of the health verdict, restricted to the run's namespace.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from django_dcron.diagnosis.cluster import how_to_start_node
from django_dcron.diagnosis.system_health import read_verdict
from django_dcron.dispatch.queues import queue_name
from django_dcron.models import Run
from django_dcron.policies.health.problems import Issue, Problem
from django_dcron.policies.health.verdict import Verdict
from django_dcron.policies.health.workers import issues_of_queue
from django_dcron.policies.lifecycle import State


class Absence(StrEnum):
    """What a run lacks, for programs; a value is never renamed."""

    NODE = "no_live_node"
    WORKER = "no_worker"
    BROKER = "no_broker"


def absence_text(absence: Absence) -> str:
    """Return the message if the health verdict has no issue about the absence."""
    match absence:
        case Absence.NODE:
            return f"No node is running. {how_to_start_node()}"
        case Absence.WORKER:
            return "No worker starts the run."
        case Absence.BROKER:
            return "No node can use the broker. Check that the broker is running and not full."


PROBLEMS = {
    Absence.NODE: {Problem.NO_LIVE_NODE, Problem.DATABASE_READ_ONLY},
    Absence.BROKER: {Problem.NO_BROKER, Problem.BROKER_UNREACHABLE},
}
"""The problems that explain an absence."""


class FoundAbsence(NamedTuple):
    absence: Absence
    message: str
    """The absence in words."""


def absence_for(run: Run) -> FoundAbsence | None:
    """Return what an unfinished run lacks, with a message, or None if it lacks nothing."""
    verdict = read_verdict(run.job.namespace)
    absence = find_absence(run, verdict)
    return FoundAbsence(absence, _message(run, absence, verdict)) if absence else None


def unsuitable_workers_of(run: Run) -> str:
    """Return that only workers that can't execute the run take it, with the remedy, or nothing."""
    verdict = read_verdict(run.job.namespace)
    issues = _issues_of_queue(run, verdict)
    return next((str(each) for each in issues if each.problem is not Problem.QUEUE_UNSERVED), "")


def find_absence(run: Run, verdict: Verdict) -> Absence | None:
    facts = verdict.facts
    match State(run.state):
        case State.PENDING if not facts.live_nodes:
            return Absence.NODE
        case State.PENDING if facts.without_broker.number == facts.live_nodes:
            return Absence.BROKER
        case State.WAITING if not facts.live_nodes and not facts.running:
            return Absence.NODE  # else the end of another run may release it
        case State.QUEUED | State.PENDING if _problems_of_workers(run, verdict):
            return Absence.WORKER
        case State.RUNNING if not facts.live_nodes and facts.stuck and not facts.running:
            return Absence.NODE  # Its worker is gone, and only a node can rescue it.
    return None


def _problems_of_workers(run: Run, verdict: Verdict) -> list[str]:
    """Return the issues about a missing worker for the queue of a dispatched run."""
    if run.state == State.PENDING and not run.dispatched_at:
        return []  # otherwise, a node is about to send it again
    queue = queue_name(run.job.target, run.job.queue)
    known = (
        issue
        for issue in verdict.issues
        if issue.problem is Problem.NO_WORKER
        or (issue.problem is Problem.QUEUE_UNSERVED and queue in issue.named.names)
    )
    return [str(issue) for issue in (*known, *_issues_of_queue(run, verdict))]


def _issues_of_queue(run: Run, verdict: Verdict) -> Iterator[Issue]:
    queue = queue_name(run.job.target, run.job.queue)
    return issues_of_queue(queue, run.due_at, verdict.facts)


def _message(run: Run, absence: Absence, verdict: Verdict) -> str:
    if absence is Absence.WORKER:
        found = _problems_of_workers(run, verdict)
    else:
        problems = PROBLEMS[absence]
        found = [str(issue) for issue in verdict.issues if issue.problem in problems]
    return next(iter(found), absence_text(absence))
