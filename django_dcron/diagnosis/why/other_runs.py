"""Name the runs that a run depends on, its reruns, and other runs of the time in question."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_dcron.conf import settings
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.job_status import running_of_job
from django_dcron.diagnosis.long_runs import usual_durations
from django_dcron.diagnosis.why.explanation_data import ExplanationData
from django_dcron.diagnosis.why.sentence import Sentence
from django_dcron.jobs.action_texts import STATE_NAMES
from django_dcron.models import Attempt, Run
from django_dcron.policies.lifecycle import State, Trigger
from django_dcron.utils.time_format import format_duration

OTHER_RUNS_NAMED = 5
"""The maximum number of manual, or of chained, runs that an answer names."""


def blocking_run_sentences(data: ExplanationData, run: Run) -> Iterator[Sentence]:
    """Name the visible run because of which ``run`` was skipped or waits, if it is still running.

    It started first, but may be scheduled later. A run that waits for a limit, or for earlier
    backfilled runs, isn't blocked by it.
    """
    is_waiting = run.state == State.WAITING and not run.limited and run.trigger != Trigger.BACKFILL
    if not is_waiting and run.state != State.SKIPPED:
        return
    started_before = run.finished_at or data.now
    runs = data.scope.runs.filter(started_at__lt=started_before)
    blocking = running_of_job(runs, data.job).order_by("started_at").first()
    if blocking is None or blocking.started_at is None:
        return
    text = _("The run of %(run_at)s (%(run_id)s) has been running for %(lasts)s.")
    values = {
        "run_at": data.format_time(blocking.scheduled_at),
        "run_id": str(blocking.pk),
        "lasts": format_duration(data.now - blocking.started_at),
    }
    yield Sentence("blocked_by", text, **values)
    yield from _progress_sentences(data, blocking)


def running_run_sentences(data: ExplanationData, run: Run) -> Iterator[Sentence]:
    """Say for how long ``run`` has been running, and how to cancel it."""
    if run.state != State.RUNNING or run.started_at is None:
        return
    text = _("The current attempt has been running for %(lasts)s.")
    yield Sentence("running_for", text, lasts=format_duration(data.now - run.started_at))
    yield from _progress_sentences(data, run)


def _progress_sentences(data: ExplanationData, running: Run) -> Iterator[Sentence]:
    """Say how long runs of the job usually take, who executes the run, and how to cancel it."""
    if usual := usual_durations(data.job.pk):
        text = _("Successful runs of the job usually take %(median)s, at most %(longest)s.")
        median, longest = format_duration(usual.median), format_duration(usual.longest)
        yield Sentence("usual_durations", text, median=median, longest=longest)
    if data.show_nodes and (worker := _worker_of(running)):
        yield Sentence("worker", _("Worker of the run: %(worker)s."), worker=worker)
    beat_at = running.heartbeat_at
    if beat_at is not None and data.now - beat_at > settings.RUN_LEASE:
        text = _("The worker of the run hasn't sent a heartbeat since %(since)s.")
        yield Sentence("no_heartbeat", text, since=data.format_time(beat_at))
    if running.cancel_requested_at is None:
        text = _("To cancel the run: manage.py dcron cancel %(run_id)s")
        yield Sentence("how_to_cancel", text, run_id=str(running.pk))


def _worker_of(run: Run) -> str:
    """Return the name of the worker that started the run's current attempt."""
    attempts = Attempt.objects.using(alias_for(Attempt)).filter(run=run.pk, number=run.attempt)
    return attempts.values_list("worker", flat=True).first() or ""


def rerun_sentences(data: ExplanationData, run: Run) -> Iterator[Sentence]:
    """Count the later reruns of a run, or of the same original, and name the latest one."""
    reruns = data.reruns_of(run) if run.is_final else []
    if run in reruns:
        reruns = reruns[reruns.index(run) + 1 :]
    if not reruns:
        return
    latest = reruns[-1]
    text = ngettext(
        "The run was rerun at %(created)s (%(run_id)s, %(state)s).",
        "The run was rerun %(count)d times, most recently at %(created)s (%(run_id)s, %(state)s).",
        len(reruns),
    )
    yield Sentence(
        "rerun",
        text,
        count=len(reruns),
        created=data.format_time(latest.claimed_at),
        run_id=str(latest.pk),
        state=_state_name(latest),
    )


def other_runs_at_time(data: ExplanationData, explained: Run | None) -> list[Run]:
    """Return the other runs. A rerun isn't included if its original is, or if it is explained."""
    originals = {run.pk for run in data.other_runs}
    if explained is not None:
        originals.add(explained.rerun_of_id or explained.pk)
    return [run for run in data.other_runs if run.rerun_of_id not in originals]


def other_run_sentences(data: ExplanationData, others: Sequence[Run]) -> Iterator[Sentence]:
    """Count the other runs, and name the first ones."""
    if data.has_more_other_runs:
        text = _(
            "More than %(count)d other runs were created at that time, manually or by other jobs."
        )
        yield Sentence("many_other_runs", text, count=len(data.other_runs))
        return
    if chained := [run for run in others if run.trigger == Trigger.CHAIN]:
        text = ngettext(
            "%(count)d run was triggered by another job at that time: %(runs)s.",
            "%(count)d runs were triggered by other jobs at that time: %(runs)s.",
            len(chained),
        )
        yield Sentence("chained", text, count=len(chained), runs=_named_runs(chained))
    if manual := [run for run in others if run.trigger != Trigger.CHAIN]:
        text = ngettext(
            "%(count)d run was created manually at that time: %(runs)s.",
            "%(count)d runs were created manually at that time: %(runs)s.",
            len(manual),
        )
        yield Sentence("manual", text, count=len(manual), runs=_named_runs(manual))


def _named_runs(runs: Sequence[Run]) -> str:
    """Return the ids and states of the first runs."""
    named = [f"{run.pk} ({_state_name(run)})" for run in runs[:OTHER_RUNS_NAMED]]
    return ", ".join([*named, *(["..."] if len(runs) > len(named) else [])])


def _state_name(run: Run) -> str:
    known = STATE_NAMES.get(run.state)  # type: ignore[call-overload]  # a State is a text
    return _(known) if known else run.state
