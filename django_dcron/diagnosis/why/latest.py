"""Explain a job's last occurrence, and a manual or chained run after it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from django.utils.translation import gettext as _

from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.why.cluster_sentences import freeze_sentences, node_sentences
from django_dcron.diagnosis.why.explanation import Answer, explain, run_outcome
from django_dcron.diagnosis.why.explanation_data import OCCURRENCE_TRIGGERS, ExplanationData
from django_dcron.diagnosis.why.no_run import failing_sentences
from django_dcron.diagnosis.why.pause_sentences import present_pause_sentences
from django_dcron.diagnosis.why.sentence import Sentence
from django_dcron.diagnosis.why.verdicts import WhyVerdict
from django_dcron.jobs.pausing import AUTO_PAUSED
from django_dcron.models import Incident, Job, Run
from django_dcron.policies.lifecycle import State, Trigger
from django_dcron.schedules.timetable import BEGIN
from django_dcron.targets.base import first_line
from django_dcron.targets.shadow import is_shadow
from django_dcron.utils.messages import with_full_stop

RUNS_READ_LIMIT = 200
"""How many of the job's latest runs are read to find the latest failure."""
INCIDENTS_READ_LIMIT = 20
"""How many of the job's latest incidents are read to find the latest failure."""


def explain_latest(job: Job, now: datetime) -> Answer:
    """Explain the job's last occurrence, or ``now`` if the job is paused or had no occurrence.

    If a manual or chained run was created later, explain that run too.
    """
    present = explain(job, now, exact=True)
    latest = present.occurrence or present.before
    data = ExplanationData(job, now, show_nodes=True)
    answer = _latest_occurrence(data, latest, present)
    run = _latest_other_run(data, after=latest or BEGIN)
    added = (*_cause_of_auto_pause(data, described=run), *_end_of_schedule(data))
    answer = replace(answer, sentences=(*answer.sentences, *added))
    if run is not None and not (answer.run and answer.run.pk == run.pk):
        answer = _with_later_run(data, answer, run)
    unstated = [
        freeze
        for freeze in data.freezes_in_force()
        if next(freeze_sentences(data, [freeze])) not in answer.sentences
    ]
    sentences = [*_shadow_sentences(job), *answer.sentences, *freeze_sentences(data, unstated)]
    if job.enabled:
        sentences += [each for each in failing_sentences(job) if each not in sentences]
    return replace(answer, sentences=tuple(sentences))


def _with_later_run(data: ExplanationData, answer: Answer, run: Run) -> Answer:
    """Add what became of ``run``. Of the reruns of the explained run, only the latest is added."""
    outcome = run_outcome(data, run, stated=answer.sentences)
    earlier = [each for each in answer.sentences if each.params.get("run_id") != str(run.pk)]
    rerun = next((each for each in answer.sentences if each.code == "rerun"), None)
    explained = answer.run
    if rerun and explained and run.rerun_of_id == (explained.rerun_of_id or explained.pk):
        if rerun in earlier:
            return answer
        subject = Sentence("about_rerun", _("The following sentences are about the rerun."))
        return replace(answer, sentences=(*earlier, rerun, subject, *outcome.sentences))
    sentences = (*earlier, _created_later(data, run), *outcome.sentences)
    return replace(answer, sentences=sentences, run=explained or run)


def _shadow_sentences(job: Job) -> Iterator[Sentence]:
    if is_shadow(job.target):
        text = _("The job is a shadow. Its runs are recorded, but they execute nothing.")
        yield Sentence("shadow", text)


def _latest_occurrence(data: ExplanationData, latest: datetime | None, present: Answer) -> Answer:
    pause = tuple(present_pause_sentences(data))
    if pause and present.verdict is WhyVerdict.NO_OCCURRENCE:
        return replace(present, verdict=WhyVerdict.PAUSED, sentences=pause)
    if data.job.is_paused:
        return present
    if latest is None:  # The user gave no time, so omit that the present doesn't match.
        sentences = tuple(each for each in present.sentences if each.code != "no_match")
        return replace(present, sentences=sentences or present.sentences)
    answer = explain(data.job, latest, exact=True)
    if answer.verdict is not WhyVerdict.NOT_CREATED:
        return answer
    # The schedule may have changed since the job was created.
    if (earlier := _latest_run_of_occurrence(data)) is not None:
        return explain(data.job, earlier.scheduled_at, exact=True)
    if data.nearby.after is not None:
        sentences = tuple(_no_occurrence_yet(data, data.nearby.after))
    else:
        text = _("The schedule's last time, %(last)s, was before the job was created.")
        sentences = (Sentence("over_at_creation", text, last=data.format_time(latest)),)
    return replace(present, sentences=sentences, before=None)


def _cause_of_auto_pause(data: ExplanationData, described: Run | None) -> Iterator[Sentence]:
    """Yield the latest failed run of an auto-paused job, and how to resume the job.

    ``described``: a run that other sentences describe.
    """
    job = data.job
    if job.enabled or not job.pause_reason.startswith(AUTO_PAUSED):
        return
    failed = _latest_failed_run(data)
    if failed is not None and failed != described:
        text = (
            _(
                "The latest failed run was due at %(run_at)s: %(error)s To see its log and "
                "traceback: %(command)s"
            )
            if failed.reason
            else _(
                "The latest failed run was due at %(run_at)s. To see its log and traceback: "
                "%(command)s"
            )
        )
        values = {
            "run_at": data.format_time(failed.due_at),
            "error": with_full_stop(first_line(failed.reason)),
            "command": f"manage.py dcron history {failed.pk}",
        }
        yield Sentence("latest_failure", text, **values)
    text = _("To resume the job when the cause is fixed: %(command)s")
    command = shlex.join(["manage.py", "dcron", "resume", str(job)])
    yield Sentence("how_to_resume", text, command=command)


def _latest_failed_run(data: ExplanationData) -> Run | None:
    """Return the run that failed last, among the job's latest runs and those of its incidents.

    A rerun or a backfilled run may fail after many runs with a later ``scheduled_at``. No index
    finds the failed runs of one job, so the job's other runs aren't searched.
    """
    incidents = Incident.objects.using(alias_for(Incident)).filter(job=data.job.pk)
    of_incidents = incidents.order_by("-last_seen_at").values_list("last_run", flat=True)
    found = [
        *data.runs.order_by("-scheduled_at")[:RUNS_READ_LIMIT],
        *data.runs.filter(pk__in=[*of_incidents[:INCIDENTS_READ_LIMIT]]),
    ]
    failed = [run for run in found if run.state == State.FAILED]
    return max(failed, key=lambda run: run.finished_at or run.scheduled_at, default=None)


def _latest_run_of_occurrence(data: ExplanationData) -> Run | None:
    """Return the latest run of an occurrence that was due."""
    due = data.runs.filter(scheduled_at__lte=data.now).shown_as(*OCCURRENCE_TRIGGERS)
    return due.order_by("-scheduled_at").first()


def _latest_other_run(data: ExplanationData, after: datetime) -> Run | None:
    """Return the latest manual or chained run that is scheduled later than ``after``."""
    later = data.runs.filter(scheduled_at__gt=after)
    return later.exclude(trigger__in=OCCURRENCE_TRIGGERS).order_by("-scheduled_at").first()


def _created_later(data: ExplanationData, run: Run) -> Sentence:
    at = data.format_time(run.scheduled_at)
    if run.trigger == Trigger.CHAIN:
        text = _("Another job triggered a run at %(run_at)s (%(run_id)s).")
        return Sentence("chained_later", text, run_at=at, run_id=str(run.pk))
    if run.shown_trigger == Trigger.RERUN:
        text = _("An earlier run was rerun at %(run_at)s (%(run_id)s).")
        return Sentence("rerun_later", text, run_at=at, run_id=str(run.pk))
    text = _("A run was created manually at %(run_at)s (%(run_id)s).")
    return Sentence("manual_later", text, run_at=at, run_id=str(run.pk))


def _no_occurrence_yet(data: ExplanationData, first: datetime) -> Iterator[Sentence]:
    text = _("The job has had no occurrence yet. The first one is %(first)s.")
    yield Sentence("no_occurrence_yet", text, first=data.format_time(first))
    yield from node_sentences(data)


def _end_of_schedule(data: ExplanationData) -> Iterator[Sentence]:
    """Yield that the job isn't due again, if it had an occurrence in the past and isn't paused."""
    if data.nearby.before and data.nearby.after is None and not data.job.is_paused:
        text = _("The schedule has no further occurrence. To run the job, set a future time.")
        yield Sentence("no_further_occurrence", text)
