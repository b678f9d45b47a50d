"""Describe the state of a run in sentences of HTML, from its row."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy

from django_dcron.admin.display import render_time
from django_dcron.conf import settings
from django_dcron.models import Run
from django_dcron.policies.lifecycle import State, Trigger
from django_dcron.policies.overlap import OverlapPolicy

SENTENCES = {
    State.PENDING: gettext_lazy("Due at {due}."),
    State.QUEUED: gettext_lazy("Sent to a worker at {queued}, not started yet."),
    State.WAITING: gettext_lazy("Waiting for earlier runs of the job to finish."),
    State.RUNNING: gettext_lazy("Running since {started}."),
    State.SUCCEEDED: gettext_lazy("Finished at {finished}."),
    State.FAILED: gettext_lazy("Finished at {finished}."),
    State.SKIPPED: gettext_lazy("Skipped at {finished}."),
    State.MISSED: gettext_lazy("Not started in time."),
    State.CANCELLED: gettext_lazy("Cancelled at {finished}."),
}

OVERDUE = gettext_lazy("Due since {due}, not sent to a worker yet.")
NOT_STARTED = gettext_lazy(
    "Sent to a worker at {queued}, but no worker started it. It will be sent again."
)
SENT_AGAIN = gettext_lazy("Sent to a worker again at {queued}, not started yet.")
WAITS_FOR_LIMIT = gettext_lazy("Waiting for the job's limit.")
WAITS_FOR_RESUME = gettext_lazy("Waiting until the paused job is resumed.")
NO_HEARTBEAT = gettext_lazy(
    "The worker has sent no heartbeat since {time}. If none follows, a node ends the attempt as "
    "lost."
)
RETRY_DUE = gettext_lazy("Attempt {number} is due at {due}.")
CANCEL_REQUESTED = gettext_lazy("Cancellation requested at {time}.")
WITHOUT_TIMEOUT = {
    OverlapPolicy.ALLOW: gettext_lazy("The run has no timeout."),
    OverlapPolicy.SKIP: gettext_lazy(
        "The run has no timeout. Until it ends, later runs of the job are skipped."
    ),
    OverlapPolicy.QUEUE_ONE: gettext_lazy(
        "The run has no timeout. Until it ends, one later run of the job waits, and the others are "
        "skipped."
    ),
    OverlapPolicy.QUEUE_ALL: gettext_lazy(
        "The run has no timeout. Until it ends, later runs of the job wait."
    ),
    OverlapPolicy.CANCEL_RUNNING: gettext_lazy(
        "The run has no timeout. The next run of the job cancels it."
    ),
}


def state_sentences(run: Run, now: datetime) -> Iterator[SafeString]:
    """Yield the state, a request to cancel the run, and that its heartbeats are missing."""
    yield _state_sentence(run, now)
    if run.cancel_requested_at and run.state in (State.RUNNING, State.CANCELLED):
        near = now if run.state == State.RUNNING else run.scheduled_at
        at = render_time(run.cancel_requested_at, near)
        yield format_html(str(CANCEL_REQUESTED), time=at)
    last = run.heartbeat_at if run.state == State.RUNNING else None
    if last is not None and now - last >= settings.RUN_LEASE:
        yield format_html(str(NO_HEARTBEAT), time=render_time(last, now))


def _state_sentence(run: Run, now: datetime) -> SafeString:
    text = SENTENCES[State(run.state)]
    if run.state == State.PENDING and run.sent_at:
        text = NOT_STARTED
    elif run.state == State.QUEUED and run.deliveries > 1:
        text = SENT_AGAIN
    elif run.state == State.PENDING and run.due_at <= now:
        text = OVERDUE
    elif run.state == State.PENDING and run.attempt > 1:
        text = RETRY_DUE
    elif run.state == State.WAITING and run.limited:
        text = WAITS_FOR_LIMIT
    elif run.state == State.WAITING and run.trigger == Trigger.BACKFILL and run.job.is_paused:
        text = WAITS_FOR_RESUME
    return format_html(
        str(text),
        number=run.attempt,
        due=render_time(run.due_at),
        queued=render_time(run.queued_at),
        started=render_time(run.started_at),
        finished=render_time(run.finished_at, near=run.scheduled_at),
    )
