"""The actions on jobs: run, pause, resume, duplicate. Each one goes through ``control``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils import translation
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_dcron import control
from django_dcron.admin.action_forms import EditPauseForm, PauseForm
from django_dcron.admin.actions import error_text, submitted_reason, validated_data
from django_dcron.admin.jobs.arguments_form import ArgumentsForm
from django_dcron.admin.jobs.copying import duplicate_job
from django_dcron.admin.object_action import ActionResult, ObjectAction
from django_dcron.diagnosis.pause_occurrences import counted_pauses, without_run
from django_dcron.diagnosis.start_caution import (
    handover_cautions,
    start_cautions,
    start_cautions_of_many,
    twin_cautions,
)
from django_dcron.exceptions import InvalidValue
from django_dcron.jobs.action_texts import paused_text, resumed_text, triggered_text
from django_dcron.jobs.bulk_skips import why_not_paused, why_not_resumable, why_not_resumed
from django_dcron.jobs.representation import JOB_FIELDS
from django_dcron.models import Job
from django_dcron.utils.messages import TranslatableText

NOT_VISIBLE = gettext_lazy(
    "The job wasn't saved because you don't have permission to view a job with these values."
)


def job_error_text(error: Exception) -> str:
    """Return the translated message of ``error``, with the labels of the fields that it names."""
    if isinstance(error, ValidationError):
        return " ".join(_labeled_errors(error))
    return error_text(error)


def _labeled_errors(error: ValidationError) -> Iterator[str]:
    for name, errors in error.update_error_dict({}).items():
        field = JOB_FIELDS.get(name)
        label = f"{capfirst(str(field.model_field.verbose_name))}: " if field else ""
        yield label + " ".join(text for each in errors for text in each.messages)


def _run_now(request: HttpRequest, job: Job) -> ActionResult:
    cautions = start_cautions(job)
    run = control.trigger(job)
    return ActionResult(triggered_text(run), run, cautions)


def _run_many_now(request: HttpRequest, jobs: Sequence[Job]) -> Sequence[ActionResult | Exception]:
    cautions = start_cautions_of_many(jobs)
    return [
        made
        if isinstance(made, Exception)
        else ActionResult(triggered_text(made), made, cautions[job.pk])
        for job, made in zip(jobs, control.trigger_many(jobs), strict=True)
    ]


def _run_with(request: HttpRequest, job: Job) -> ActionResult:
    choices = validated_data(ArgumentsForm, request, job)
    cautions = start_cautions(job)
    run = control.trigger(job, args=choices["args"], kwargs=choices["kwargs"])
    return ActionResult(triggered_text(run), run, cautions)


def _pause(request: HttpRequest, job: Job) -> ActionResult:
    until = validated_data(PauseForm, request, job)["until"]
    return _pause_job(job, submitted_reason(request), until)


def _pause_many(request: HttpRequest, jobs: Sequence[Job]) -> Sequence[ActionResult | Exception]:
    until = validated_data(PauseForm, request, None)["until"]
    try:
        refused = control.pause_many(jobs, submitted_reason(request), until, replace=False)
    except InvalidValue as error:  # the time has passed since the form was validated
        raise ValidationError(error.problem.translate(translation)) from None
    return [
        refused.get(position) or ActionResult(paused_text(job)) for position, job in enumerate(jobs)
    ]


def _change_pause(request: HttpRequest, job: Job) -> ActionResult:
    choices = validated_data(EditPauseForm, request, job)
    keeps_reason = not choices["reason"] and not job.awaits_handover
    reason = job.pause_reason if keeps_reason else submitted_reason(request)
    return _pause_job(job, reason, choices["until"])


def _pause_job(job: Job, reason: str, until: datetime | None) -> ActionResult:
    try:
        control.pause(job, reason, until)
    except InvalidValue as error:  # the time has passed since the form was validated
        raise ValidationError(error.problem.translate(translation)) from None
    return ActionResult(paused_text(job))


def _resume(request: HttpRequest, job: Job) -> ActionResult:
    cautions = handover_cautions(job)
    pause = counted_pauses([job]).get(job.pk)
    control.resume(job)
    if (during_pause := without_run(job, pause)) is not None:
        advice = _("To run them, use Backfill.")
        cautions = (*cautions, f"{during_pause} {advice}")
    return ActionResult(resumed_text(job), cautions=cautions)


def _resume_many(request: HttpRequest, jobs: Sequence[Job]) -> Sequence[ActionResult | Exception]:
    refused = control.resume_many(jobs)
    return [
        refused.get(position) or ActionResult(resumed_text(job))
        for position, job in enumerate(jobs)
    ]


def _duplicate(request: HttpRequest, job: Job) -> ActionResult:
    copy = duplicate_job(job)
    return ActionResult(_("Duplicated as %(copy)s (paused)") % {"copy": copy}, copy)


def _refusal_if_paused(job: Job) -> str:
    return _translated(why_not_paused(job))


def _refusal_if_not_paused(job: Job) -> str:
    return _translated(why_not_resumable(job))


def _refusal_to_resume_in_list(job: Job) -> str:
    return _translated(why_not_resumed(job))


def _translated(text: TranslatableText | None) -> str:
    return text.translate(translation) if text else ""


ACTIONS: tuple[ObjectAction[Job], ...] = (
    ObjectAction(
        "run_now",
        gettext_lazy("Run now"),
        _run_now,
        "trigger",
        apply_many=_run_many_now,
        is_primary=True,
        explanation=gettext_lazy(
            "Starts one run of each job immediately, even if the job is paused. The schedules "
            "stay the same."
        ),
    ),
    ObjectAction(
        "run_with",
        gettext_lazy("Run with arguments"),
        _run_with,
        "trigger_with_arguments",
        form=ArgumentsForm,
        has_page=True,
    ),
    ObjectAction(
        "pause",
        gettext_lazy("Pause"),
        _pause,
        "pause",
        refusal=_refusal_if_paused,
        form=PauseForm,
        apply_many=_pause_many,
        explanation=gettext_lazy(
            "Occurrences during the pause have no runs. Runs in progress continue."
        ),
    ),
    ObjectAction(
        "resume",
        gettext_lazy("Resume"),
        _resume,
        "pause",
        refusal=_refusal_if_not_paused,
        refusal_in_list=_refusal_to_resume_in_list,
        apply_many=_resume_many,
        cautions_after=twin_cautions,
        explanation=gettext_lazy(
            "The jobs follow their schedules again. Occurrences during the pause are not caught up."
        ),
    ),
    ObjectAction(
        "change_pause",
        gettext_lazy("Edit pause"),
        _change_pause,
        "pause",
        refusal=_refusal_if_not_paused,
        form=EditPauseForm,
        has_page=True,
    ),
    ObjectAction(
        "duplicate",
        gettext_lazy("Duplicate"),
        _duplicate,
        "add",
        explanation=gettext_lazy("Creates a paused copy of each job. “copy” is added to its name."),
        refusal_if_hidden=NOT_VISIBLE,
    ),
)
