"""Describe in words what happened to a run, from its row and the definition that it used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_dcron.conf import settings
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.long_runs import recorded_timeouts
from django_dcron.diagnosis.run_durations import ended_before_next_attempt
from django_dcron.diagnosis.why.sentence import Sentence
from django_dcron.models import Attempt, Job, Run
from django_dcron.policies.lifecycle import State, Trigger
from django_dcron.targets.shadow import NOT_EXECUTED
from django_dcron.utils.durations import write_duration
from django_dcron.utils.time_format import format_duration

CLAIMED_LATE = timedelta(seconds=5)
"""Runs are claimed ahead of time. One claimed this long after its time had to wait for a node."""

STARTED_LATE = timedelta(seconds=5)
"""A run started late if it started this long after its claim and its due time."""

NAME_LAST_ATTEMPT = {State.SUCCEEDED, State.FAILED}
"""The final states whose sentence names the number of the last attempt."""

FormatTime = Callable[[datetime], str]


def run_sentences(run: Run, job: Job, now: datetime, format_time: FormatTime) -> Iterator[Sentence]:
    """Yield sentences about a run of ``job`` whose state is valid."""
    if run.trigger == Trigger.BACKFILL:
        text = _("A backfill created the run at %(claimed)s.")
        yield Sentence("backfilled", text, claimed=format_time(run.claimed_at))
    elif claimed_late(run):
        yield late_claim_sentence(run, format_time)
    state = State(run.state)
    yield (
        _final_sentence(run, format_time)
        if run.is_final
        else _unfinished_sentence(run, job, now, format_time)
    )
    if state is State.MISSED or started_late(run):
        yield from _sent_sentence(run, format_time)
    if job.limit_id is not None and started_late(run):
        text = _("The job has the limit “%(limit)s”. Its runs may wait for other runs.")
        yield Sentence("may_wait_for_limit", text, limit=job.limit_id)
    if state is State.RUNNING and run.cancel_requested_at:
        text = _("Cancellation was requested at %(asked)s.")
        yield Sentence("cancel_requested", text, asked=format_time(run.cancel_requested_at))
    elif timeout := _ignored_timeout(run, now):
        text = _(
            "Its code still runs after the timeout of %(timeout)s. No other attempt starts while "
            "it runs."
        )
        yield Sentence("timeout_ignored", text, timeout=write_duration(timeout))
    if run.attempt > 1 and run.is_final and state not in NAME_LAST_ATTEMPT:
        text = ngettext(
            "The run took %(count)d attempt.", "The run took %(count)d attempts.", run.attempt
        )
        yield Sentence("attempts", text, count=run.attempt)
    if state is State.FAILED and run.started_at and _allowed_another_attempt(run, job):
        may_be_listed = job.retry_on or job.never_retry_on
        text = (
            _(
                "The job allows %(most)d attempts, but this failure wasn't retried: see retry_on "
                "and never_retry_on of the job. PermanentFailure is never retried."
            )
            if may_be_listed
            else _("The job allows %(most)d attempts, but this failure wasn't retried.")
        )
        yield Sentence("not_retried", text, most=job.max_attempts)
    if run.reason and run.reason != NOT_EXECUTED:
        yield reason_sentence(run.reason)
    if run.missed_before and run.missed_from:
        text = ngettext(
            "The run also counts %(count)d earlier missed occurrence, scheduled at %(since)s.",
            "The run also counts %(count)d earlier missed occurrences, the first scheduled at "
            "%(since)s.",
            run.missed_before,
        )
        yield Sentence(
            "counts_missed", text, count=run.missed_before, since=format_time(run.missed_from)
        )


def _allowed_another_attempt(run: Run, job: Job) -> bool:
    """Return whether the job allows another attempt, and did so when the last one started."""
    if run.attempt >= job.max_attempts:
        return False
    attempts = Attempt.objects.using(alias_for(Attempt)).filter(run=run.pk, number=run.attempt)
    used = attempts.values_list("definition__content", flat=True).first()
    return used is None or run.attempt < used["max_attempts"]


def late_claim_sentence(run: Run, format_time: FormatTime) -> Sentence:
    text = _("No node claimed the occurrence before %(claimed)s.")
    return Sentence("claimed_late", text, claimed=format_time(run.claimed_at))


def reason_sentence(reason: str) -> Sentence:
    return Sentence("reason", _("Recorded reason: %(reason)s"), reason=reason)


def claimed_late(run: Run) -> bool:
    return run.trigger == Trigger.SCHEDULE and run.claimed_at - run.scheduled_at > CLAIMED_LATE


def started_late(run: Run) -> bool:
    startable_at = max(run.due_at, run.claimed_at)
    return run.started_at is not None and run.started_at - startable_at > STARTED_LATE


def _sent_sentence(run: Run, format_time: FormatTime) -> Iterator[Sentence]:
    """Yield when a missed or late run was sent: whether it waited for a node or for a worker."""
    sent_at = run.sent_at
    if sent_at is None:
        return
    text = _("The run was sent to a worker at %(sent)s, %(late)s after it was due.")
    if run.deliveries > 1:
        text = _("The run was last sent to a worker at %(sent)s, %(late)s after it was due.")
    late = format_duration(max(sent_at - run.due_at, timedelta()))
    yield Sentence("sent", text, sent=format_time(sent_at), late=late)


def _final_sentence(run: Run, format_time: FormatTime) -> Sentence:
    ended = format_time(run.finished_at) if run.finished_at else _("an unknown time")
    started = format_time(run.started_at) if run.started_at else ""
    match State(run.state):
        case State.SUCCEEDED if run.reason == NOT_EXECUTED:
            text = _(
                "The run executed nothing, because the job was a shadow. It started at "
                "%(started)s, %(late)s after it was due."
            )
            late = _start_delay_text(run)
            return Sentence("shadow_not_executed", text, started=started, late=late)
        case State.SUCCEEDED if run.attempt > 1:
            text = _(
                "The run succeeded in attempt %(attempt)d. That attempt started at %(started)s, "
                "%(late)s after it was due, and took %(took)s."
            )
            return _last_attempt_sentence("succeeded_after_retries", text, run, started)
        case State.FAILED if ended_before_next_attempt(run):
            text = _("The run failed at %(ended)s, before attempt %(attempt)d started.")
            return Sentence("failed_before_retry", text, ended=ended, attempt=run.attempt)
        case State.FAILED if run.started_at and run.attempt > 1:
            text = _(
                "The run failed in attempt %(attempt)d, the last one. That attempt started at "
                "%(started)s, %(late)s after it was due, and took %(took)s."
            )
            return _last_attempt_sentence("failed_after_retries", text, run, started)
        case State.SUCCEEDED:
            text = _(
                "The run succeeded. It started at %(started)s, %(late)s after it was due, and "
                "took %(took)s."
            )
            if run.trigger == Trigger.BACKFILL:
                text = _(
                    "The run succeeded. It started at %(started)s, %(late)s after it was released, "
                    "and took %(took)s."
                )
            return Sentence(
                "succeeded",
                text,
                started=started,
                late=_start_delay_text(run),
                took=_duration_text(run),
            )
        case State.FAILED if run.started_at:
            text = _(
                "The run failed. It started at %(started)s, %(late)s after it was due, and "
                "took %(took)s."
            )
            if run.trigger == Trigger.BACKFILL:
                text = _(
                    "The run failed. It started at %(started)s, %(late)s after it was released, "
                    "and took %(took)s."
                )
            return Sentence(
                "failed",
                text,
                started=started,
                late=_start_delay_text(run),
                took=_duration_text(run),
            )
        case State.FAILED:
            text = _("The run failed at %(ended)s, before it could start.")
            return Sentence("failed_before_start", text, ended=ended)
        case State.CANCELLED if run.started_at:
            text = _("The run was cancelled at %(ended)s. It had started at %(started)s.")
            return Sentence("cancelled", text, ended=ended, started=started)
        case State.CANCELLED:
            text = _("The run was cancelled at %(ended)s, before it started.")
            return Sentence("cancelled_before_start", text, ended=ended)
        case State.SKIPPED:
            text = _(
                "The run was skipped at %(ended)s because another run of the job hadn't finished."
            )
            return Sentence("skipped", text, ended=ended)
        case _:
            text = _(
                "The run was missed because it didn't start in time. This was recorded at "
                "%(ended)s."
            )
            return Sentence("missed", text, ended=ended)


def _unfinished_sentence(run: Run, job: Job, now: datetime, format_time: FormatTime) -> Sentence:
    due = format_time(run.due_at)
    match State(run.state):
        case State.RUNNING if run.attempt > 1:
            text = _(
                "Attempt %(attempt)d of the run is in progress. It started at %(started)s, "
                "%(late)s after it was due."
            )
            started = format_time(run.started_at) if run.started_at else ""
            return _last_attempt_sentence("retry_running", text, run, started)
        case State.RUNNING:
            text = _(
                "The run is in progress. It started at %(started)s, %(late)s after it was due."
            )
            if run.trigger == Trigger.BACKFILL:
                text = _(
                    "The run is in progress. It started at %(started)s, %(late)s after it was "
                    "released."
                )
            started = format_time(run.started_at) if run.started_at else ""
            return Sentence("running", text, started=started, late=_start_delay_text(run))
        case State.QUEUED:
            text = _("The run was sent to a worker at %(queued)s but hasn't started yet.")
            if run.deliveries > 1:
                text = _("The run was sent to a worker again at %(queued)s but hasn't started yet.")
            return Sentence(
                "queued", text, queued=format_time(run.queued_at) if run.queued_at else ""
            )
        case State.WAITING if run.limited:
            text = _("The run is waiting for the job's limit: %(reason)s.")
            return Sentence("waiting_for_limit", text, reason=run.reason)
        case State.WAITING if run.trigger == Trigger.BACKFILL and job.is_paused:
            text = _("The run is waiting until the paused job is resumed.")
            return Sentence("waiting_for_resume", text)
        case State.WAITING if run.trigger == Trigger.BACKFILL:
            text = _("The run is waiting for earlier backfilled runs to finish.")
            return Sentence("waiting_for_backfill", text)
        case State.WAITING:
            text = _("The run is waiting for the previous run of the job to finish.")
            return Sentence("waiting", text)
        case _ if run.dispatched_at:
            text = _(
                "The run was sent to a worker at %(queued)s, but no worker started it. It will be "
                "sent again."
            )
            return Sentence("not_started", text, queued=format_time(run.dispatched_at))
        case _ if sent_at := run.sent_at:
            text = _(
                "The run has been due since %(due)s (%(overdue)s ago). It was sent to a worker at "
                "%(sent)s but didn't start. It will be sent again."
            )
            overdue = format_duration(now - run.due_at)
            return Sentence(
                "to_be_sent_again", text, sent=format_time(sent_at), due=due, overdue=overdue
            )
        case _ if run.due_at <= now and run.attempt > 1:
            text = _(
                "The previous attempt didn't succeed. Attempt %(attempt)d has been due since "
                "%(due)s (%(overdue)s ago) but hasn't been sent to a worker yet."
            )
            overdue = format_duration(now - run.due_at)
            return Sentence("retry_overdue", text, attempt=run.attempt, due=due, overdue=overdue)
        case _ if run.due_at <= now:
            text = _(
                "The run has been due since %(due)s (%(overdue)s ago) but hasn't been sent to a "
                "worker yet."
            )
            return Sentence("overdue", text, due=due, overdue=format_duration(now - run.due_at))
        case _ if run.attempt > 1:
            text = _("The previous attempt didn't succeed. Attempt %(attempt)d is due at %(due)s.")
            return Sentence("retry_due", text, attempt=run.attempt, due=due)
        case _ if run.due_at != run.scheduled_at:
            text = _("A node has claimed the run. Including jitter, it is due at %(due)s.")
            return Sentence("due_with_jitter", text, due=due)
        case _:
            return Sentence("due", _("A node has claimed the run. It is due at %(due)s."), due=due)


def _last_attempt_sentence(code: str, text: str, run: Run, started: str) -> Sentence:
    """Return a sentence about a run with several attempts. The row has the times of the last."""
    values = {"attempt": run.attempt, "started": started, "late": _start_delay_text(run)}
    return Sentence(code, text, **values, **({"took": _duration_text(run)} if run.is_final else {}))


def _start_delay_text(run: Run) -> str:
    return format_duration(max(run.started_at - run.due_at, timedelta())) if run.started_at else ""


def _ignored_timeout(run: Run, now: datetime) -> timedelta | None:
    """Return the timeout after which the run's code should have stopped by now, if it still runs.

    Without a current heartbeat, nobody knows whether the code still runs.
    """
    if run.state != State.RUNNING or run.started_at is None or run.heartbeat_at is None:
        return None
    if run.heartbeat_at < now - settings.RUN_LEASE:
        return None
    timeout = recorded_timeouts([run]).get(run.pk)
    if timeout and now > run.started_at + timeout + settings.HARD_TIMEOUT_AFTER:
        return timeout
    return None


def _duration_text(run: Run) -> str:
    return (
        format_duration(run.finished_at - run.started_at)
        if run.started_at and run.finished_at
        else ""
    )
