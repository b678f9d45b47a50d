"""Describe what ``manage.py dcron handover --back`` does with each job, and its result."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from django_dcron.contrib.importers.handback import Handback, HandbackPlan
from django_dcron.management.dcron.exits import negative_result
from django_dcron.management.dcron.import_output import here_and_there
from django_dcron.management.dcron.output import BAD, GOOD, WARNING, Output
from django_dcron.models import Job
from django_dcron.policies.health.facts import NamedCount
from django_dcron.policies.job_labels import label_of
from django_dcron.utils.counts import number_of


def show_handback(out: Output, each: Handback, *, applied: bool) -> None:
    if each.error:
        out.line(f"failed {each.job} {each.error}", BAD)
    elif each.key is None:
        out.line(f"! {each.job} is gone from the source, and stays as it is here", WARNING)
    else:
        done = "paused" if applied else "already paused" if each.job.awaits_handover else "pause"
        out.line(f"{done} {each.job}", GOOD)


def show_handback_result(
    out: Output,
    source: str,
    done: Sequence[Handback],
    plan: HandbackPlan,
    *,
    applied: bool,
) -> None:
    """Show the result, and what to do before the source is started.

    Raises ``CommandError`` if a job can't be handed back, or if the source would run entries whose
    jobs were paused or deleted here.
    """
    returned = [each for each in done if each.key is not None and not each.error]
    failed = [each for each in done if each.error]
    handed_back = f"{number_of(len(returned), 'job')} handed back."
    if out.is_json:
        out.json(_document(source, done, plan, applied=applied))
    else:
        _show_edited_jobs(out, source, done)
        _show_stopped_work(out, source, plan)
        if not applied:
            how = f"{shlex.quote(source)} must be stopped."
            out.line(f"Nothing was written. To write, use --apply. {how}")
        elif not (failed or plan.paused_here or plan.deleted_here):
            out.line(f"{handed_back} Start {source} now.")
    problems = []
    if failed:
        continues, them = ("continues", "it") if len(failed) == 1 else ("continue", "them")
        problems.append(
            f"{number_of(len(failed), 'job')} can't be handed back and {continues} here. Correct "
            f"or pause {them}, and repeat the command before you start {source}."
        )
    stopped = [
        *(f"{job} ({'has run' if job.is_finished else 'paused'} here)" for job in plan.paused_here),
        *(f"{label_of(*key)} (deleted here)" for key in plan.deleted_here.values()),
    ]
    if stopped:
        listed = NamedCount.of(stopped).listed
        problems.append(f"Before you start {source}, disable there: {listed}.")
    if problems:
        raise negative_result(" ".join([handed_back, *problems] if applied else problems))


def _show_edited_jobs(out: Output, source: str, planned: Sequence[Handback]) -> None:
    for each in planned:
        if each.edited:
            texts = [
                "{}: {} here, {} there".format(name, *here_and_there(name, here, there))
                for name, (here, there) in each.edited.items()
            ]
            out.line(f"! {each.job} differs from {source}: {'; '.join(texts)}", WARNING)


def _show_stopped_work(out: Output, source: str, plan: HandbackPlan) -> None:
    states = [
        *(
            f"{job} {'has run for the last time' if job.is_finished else 'is paused'}"
            for job in plan.paused_here
        ),
        *(f"{label_of(*key)} was deleted" for key in plan.deleted_here.values()),
    ]
    for state in states:
        out.line(
            f"! {state} here, but is enabled in {source}, which runs it once it starts", WARNING
        )


def _document(
    source: str, done: Sequence[Handback], plan: HandbackPlan, *, applied: bool
) -> dict[str, Any]:
    return {
        "version": 1,
        "source": source,
        "applied": applied,
        "jobs": [_reference(each.job) for each in done if each.key is not None and not each.error],
        "gone": [_reference(each.job) for each in done if each.key is None],
        "paused_here": [_reference(job) for job in plan.paused_here],
        "deleted_here": [key._asdict() for key in plan.deleted_here.values()],
        "edited": [
            {**_reference(each.job), "fields": sorted(each.edited)} for each in done if each.edited
        ],
        "failed": [{**_reference(each.job), "error": each.error} for each in done if each.error],
    }


def _reference(job: Job) -> dict[str, str]:
    return {"namespace": job.namespace, "name": job.name}
