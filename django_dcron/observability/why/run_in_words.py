"""What became of a run, in words, from its row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_dcron.domain.lifecycle import State, Trigger
from django_dcron.models import Run
from django_dcron.observability.wording import span

CLAIMED_LATE = timedelta(seconds=5)
"""Runs are claimed ahead of their time; one that was claimed so much later had to wait for a node."""

At = Callable[[datetime], str]


def in_words(run: Run, now: datetime, at: At) -> Iterator[str]:
    """Sentences. ``at`` words a time; the state is one that exists."""
    if run.trigger == Trigger.BACKFILL:
        yield _("Its run was made afterwards, by a backfill at %(claimed)s.") % {
            "claimed": at(run.claimed_at)
        }
    elif claimed_late(run):
        yield _("No node considered it before %(claimed)s.") % {"claimed": at(run.claimed_at)}
    state = State(run.state)
    yield _ending(run, at) if run.is_final else _standing(run, state, now, at)
    if state is State.RUNNING and run.cancel_requested_at:
        yield _("It was told to stop at %(asked)s.") % {"asked": at(run.cancel_requested_at)}
    if run.attempt > 1 and run.is_final:
        yield ngettext("It took %(count)d attempt.", "It took %(count)d attempts.", run.attempt) % {
            "count": run.attempt
        }
    if run.reason:
        yield _("On record: %(reason)s") % {"reason": run.reason}
    if run.missed_before and run.missed_from:
        yield ngettext(
            "It also stands for %(count)d occurrence before it, of %(since)s, which was not started in time.",
            "It also stands for %(count)d occurrences before it, from %(since)s on, which were not started in time.",
            run.missed_before,
        ) % {"count": run.missed_before, "since": at(run.missed_from)}


def claimed_late(run: Run) -> bool:
    return run.trigger == Trigger.SCHEDULE and run.claimed_at - run.scheduled_at > CLAIMED_LATE


def _ending(run: Run, at: At) -> str:
    said = {
        "started": at(run.started_at) if run.started_at else "",
        "ended": at(run.finished_at) if run.finished_at else _("a time not known"),
        "late": _late(run),
        "took": _took(run),
    }
    match State(run.state):
        case State.SUCCEEDED:
            text = _(
                "It ran and succeeded: started at %(started)s, %(late)s after it was due; it took %(took)s."
            )
        case State.FAILED if run.started_at:
            text = _(
                "It ran and failed: started at %(started)s, %(late)s after it was due; it took %(took)s."
            )
        case State.FAILED:
            text = _("It failed at %(ended)s, before it could start.")
        case State.CANCELLED if run.started_at:
            text = _("It was cancelled at %(ended)s; it had started at %(started)s.")
        case State.CANCELLED:
            text = _("It was cancelled at %(ended)s, before it started.")
        case State.SKIPPED:
            text = _("It was skipped at %(ended)s, as another run of the job was unfinished.")
        case _:
            text = _("It was missed: it had not been started in time, which was noted at %(ended)s.")
    return text % said


def _standing(run: Run, state: State, now: datetime, at: At) -> str:
    said = {
        "due": at(run.due_at),
        "queued": at(run.queued_at) if run.queued_at else "",
        "started": at(run.started_at) if run.started_at else "",
        "late": _late(run),
        "attempt": run.attempt,
        "overdue": span(now - run.due_at),
    }
    match state:
        case State.RUNNING:
            text = _("It is running: started at %(started)s, %(late)s after it was due.")
        case State.QUEUED:
            text = _("It was handed over at %(queued)s and waits for a worker to start it.")
        case State.WAITING if run.trigger == Trigger.BACKFILL:
            text = _("It waits for its turn among the backfilled runs.")
        case State.WAITING:
            text = _("It waits until the run before it has ended.")
        case _ if run.due_at <= now:
            text = _("It has been due since %(due)s, %(overdue)s ago, and has not been handed over yet.")
        case _ if run.attempt > 1:
            text = _("It has been tried without success; attempt %(attempt)d is due at %(due)s.")
        case _ if run.due_at != run.scheduled_at:
            text = _("It is claimed, and due at %(due)s: its jitter puts it off so long.")
        case _:
            text = _("It is claimed, and due at %(due)s.")
    return text % said


def _late(run: Run) -> str:
    return span(max(run.started_at - run.due_at, timedelta())) if run.started_at else ""


def _took(run: Run) -> str:
    return span(run.finished_at - run.started_at) if run.started_at and run.finished_at else ""
