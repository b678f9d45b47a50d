"""The output of ``dcron import``: each plan, what remains to be done, and the JSON document."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from django_dcron import targets
from django_dcron.contrib.importers.calendars import CalendarPlan
from django_dcron.contrib.importers.comparison import (
    awaiting_handover,
    jobs_without_entry,
    shadows_left,
)
from django_dcron.contrib.importers.entry_plans import (
    DIFFERENCES,
    PAUSE,
    PROBLEMS,
    Changes,
    EntryPlan,
    ImportOutcome,
)
from django_dcron.contrib.importers.origins import stored_key
from django_dcron.contrib.importers.schedule_fields import iso_in_site_zone
from django_dcron.contrib.importers.source_contents import CRONTAB, SourceContents
from django_dcron.contrib.importers.sources import (
    OPTIONS_OF_SOURCES,
    SCHEDULERS,
    process_name,
    runs_in_workers,
)
from django_dcron.exceptions import UnknownTarget
from django_dcron.jobs.representation import JOB_FIELDS, ValueFormat, portable_document
from django_dcron.management.dcron.import_settings import (
    missing_queues,
    print_missing_settings,
    warn_about_missing_settings,
)
from django_dcron.management.dcron.import_texts import (
    STYLES,
    changes_document,
    disabled_text,
    does_work,
    format_counts,
    is_disabled_problem,
    is_problem,
    verb_of,
    works_here,
)
from django_dcron.management.dcron.import_warnings import EntryWarnings, number_left_out
from django_dcron.management.dcron.output import BAD, WARNING, Output
from django_dcron.management.dcron.progress_bar import ProgressBar
from django_dcron.models import Job
from django_dcron.policies.misfire import MisfirePolicy
from django_dcron.targets.shadow import is_shadow
from django_dcron.utils.control_characters import escape_line_breaks
from django_dcron.utils.counts import number_of
from django_dcron.utils.json_values import same_json

NOT_IMPORTED = (
    ImportOutcome.DELETED,
    ImportOutcome.OMITTED,
    ImportOutcome.CONFLICT,
    ImportOutcome.REFUSED,
)
"""The outcomes of entries that aren't imported. The output shows these entries last."""

SHOWN_ANYWAY = {"namespace", "name", "schedule", "timezone", "target", "description", *PAUSE}
"""Fields that the line of a new job shows in another form, or that are too long for it."""


def gone_from_source(contents: SourceContents, plans: list[EntryPlan]) -> list[Job]:
    return jobs_without_entry(contents.source, plans) if contents.source else []


def show_entry_plans(
    out: Output,
    contents: SourceContents,
    results: Iterable[EntryPlan],
    compared: Sequence[EntryPlan],
    *,
    applied: bool,
    source_stopped: bool = False,
) -> list[EntryPlan]:
    """Show each of ``results`` as soon as it is made or applied, and those not imported last.

    ``compared`` are all plans before they are applied. Unless the source is stopped, its scheduler
    also runs the jobs that start here.
    """
    plans = []
    warnings = EntryWarnings(plan for plan in compared if plan.outcome not in NOT_IMPORTED)
    warn_about_missing_settings(out, contents, compared)
    with ProgressBar(out) as bar:
        for plan in results:
            plans.append(plan)
            if plan.outcome not in NOT_IMPORTED:
                if plan.outcome is not ImportOutcome.SAME:
                    _show_plan(bar, plan, applied=applied)
                warnings.show(bar, plan)
            if problem := _target_problem(plan):
                bar.line(f"! {plan}: {problem}", BAD)
            if applied and out.is_terminal:
                bar.show(len(plans), len(compared))
    warnings.show_groups(out)
    if left_out := number_left_out(plans):
        out.line(
            f"{number_of(left_out, 'warning')} of an earlier import left out. To list all "
            "warnings, use --json."
        )
    for note in contents.notes:
        out.line(f"! {note}", WARNING)
    print_missing_settings(out, contents, plans)
    starting = sum(map(_starts, plans))
    if starting and not source_stopped:
        may_wait = not applied and not any(map(works_here, plans))
        if advice := _how_to_run_once(contents.source, starting, may_wait=may_wait):
            out.line(f"! {_will_run_here(starting, applied=applied)}. {advice}", WARNING)
    if runs_in_workers(contents.source):
        _show_misfire_policy(out, plans)
    not_imported = [plan for outcome in NOT_IMPORTED for plan in plans if plan.outcome is outcome]
    warnings = EntryWarnings(not_imported)
    for plan in not_imported:
        _show_plan(out, plan, applied=applied, disabled=disabled_text(contents, plan))
        warnings.show(out, plan)
    warnings.show_groups(out)
    disabled = Counter(plan.outcome for plan in plans if is_disabled_problem(contents, plan))
    message = format_counts((plan.outcome for plan in plans), applied=applied, disabled=disabled)
    out.line(f"{message or 'Nothing to import'}.")
    return plans


def _show_misfire_policy(out: Output, plans: Sequence[EntryPlan]) -> None:
    """Show how many new jobs omit late runs. Messages of beat wait for a worker."""
    latest_only = sum(
        plan.job is not None and plan.job.misfire_policy == MisfirePolicy.RUN_LATEST
        for plan in plans
        if plan.outcome is ImportOutcome.CREATE
    )
    if latest_only:
        jobs = number_of(latest_only, "job has", "jobs have")
        out.line(
            f"! {jobs} the misfire policy run_latest: after an outage of the nodes or workers, "
            "only the latest late run of a job executes. Beat's messages wait for a worker, so "
            "Celery executes all. To execute all runs of a job: manage.py dcron set JOB "
            "misfire_policy=run_all",
            WARNING,
        )


def _how_to_run_once(source: str, jobs: int, *, may_wait: bool) -> str:
    """Return how to keep the source's scheduler from running the jobs, too; empty for an export.

    ``may_wait``: whether the source's jobs, none of which works here yet, may start later instead.
    """
    one = jobs == 1
    if source.startswith(CRONTAB):
        line, it = ("its line", "it") if one else ("their lines", "them")
        text = f"Remove {line} from the crontab at the same time. Otherwise, cron runs {it}, too."
        return f"{text} To compare first, use --shadow." if may_wait else text
    if source not in SCHEDULERS:
        return ""
    these = "this job" if one else "these jobs"
    text = f"If {process_name(source)} still runs, it runs {these}, too."
    later = "To switch later with dcron handover, use --shadow or --disabled."
    return f"{text} {later}" if may_wait else text


def _will_run_here(jobs: int, *, applied: bool) -> str:
    if applied:
        return f"{number_of(jobs, 'job runs', 'jobs run')} here from now on"
    return f"{number_of(jobs, 'job')} will run here after --apply"


def _show_plan(
    out: Output | ProgressBar, plan: EntryPlan, *, applied: bool, disabled: str = ""
) -> None:
    verb = verb_of(plan.outcome, applied=applied)
    details = list(plan.reasons)
    if plan.outcome is ImportOutcome.CREATE and plan.job is not None:
        why = f": {plan.job.pause_reason}" if plan.job.pause_reason else ""
        paused = "" if plan.job.enabled else f", paused{why}"
        details.append(
            f"{escape_line_breaks(plan.job.schedule)} ({plan.job.timezone}) {plan.job.target}"
            f"{_other_fields(plan)}{paused}"
        )
    else:
        details += _change_texts(plan.changes)
    if plan.outcome in NOT_IMPORTED:
        origin = plan.entry.origin if plan.entry.origin not in (plan.name, str(plan)) else ""
        if about := ", ".join(filter(None, [origin, disabled])):
            details = [f"({about}) {detail}" for detail in details]
    for detail in details:
        out.line(f"{verb} {plan} {detail}", STYLES.get(plan.outcome, ""))
    for name, (here, there) in plan.kept.items():
        here_text, there_text = here_and_there(name, here, there)
        out.line(
            f"kept {plan} {name}: {here_text} ({_why_kept(name)}; source: {there_text})",
            STYLES[ImportOutcome.KEPT],
        )


def _starts(plan: EntryPlan) -> bool:
    """Return whether the import starts a job: an enabled one that isn't a shadow."""
    return plan.outcome in DIFFERENCES and does_work(plan.job) and not does_work(plan.existing)


def _target_problem(plan: EntryPlan) -> str:
    """Return why the runs of a job that the import doesn't change would fail; empty otherwise."""
    if plan.existing is None or plan.outcome not in (ImportOutcome.SAME, ImportOutcome.KEPT):
        return ""
    try:
        targets.get(plan.existing.target)
    except UnknownTarget as error:
        return str(error)
    return ""


def field_text(name: str, written: Any) -> str:
    """Return the JSON value of a job's field as text. Times are in the site's zone."""
    field = JOB_FIELDS[name]
    if field.format is ValueFormat.TIME and written is not None:
        return iso_in_site_zone(field.read(written), "auto")
    return field.text(written)


def here_and_there(name: str, here: Any, there: Any) -> tuple[str, str]:
    """Return the job's value and the source's as text. The job's marks the secrets that differ."""
    there_text, here_text = _old_and_new(name, there, here)
    return here_text, there_text


def _old_and_new(name: str, old: Any, new: Any) -> tuple[str, str]:
    """Return both values as ``field_text`` does. The new one marks the secrets that changed."""
    field = JOB_FIELDS[name]
    if field.format is ValueFormat.TIME:
        return field_text(name, old), field_text(name, new)
    return field.change_texts(old, new)


def _change_texts(changes: Changes) -> list[str]:
    """Return one text per change. The reason and the end of a pause belong to ``enabled``."""
    switched, texts = "enabled" in changes, []
    for name, (was, now) in changes.items():
        if switched and name in PAUSE[1:]:
            continue
        reason = " ".join(filter(None, changes.get("pause_reason", ()))) if name == PAUSE[0] else ""
        text = f"{name}: {' -> '.join(_old_and_new(name, was, now))}"
        texts.append(f"{text} ({reason})" if reason else text)
    return texts


@cache
def _defaults() -> dict[str, Any]:
    return portable_document(Job())


def _other_fields(plan: EntryPlan) -> str:
    """Return the fields of a new job that differ from the defaults, such as `` queue=mail``."""
    defaults = _defaults()
    return "".join(
        f" {name}={field_text(name, value)}"
        for name, (_was, value) in plan.changes.items()
        if name not in SHOWN_ANYWAY and not same_json(value, defaults[name])
    )


def _why_kept(field: str) -> str:
    if field == "name":
        return "a job keeps its name; to rename it: --overwrite name"
    return "changed here"


def show_remaining_work(
    out: Output, options: dict[str, Any], gone: list[Job], plans: list[EntryPlan]
) -> None:
    """Show the jobs that the source no longer has, and the shadows that stay shadows."""
    for job in gone:
        text = f"! {job} is gone from the source, and paused here"
        if job.enabled:
            command = f"manage.py dcron pause {shlex.quote(str(job))}"
            text = f"! {job} is gone from the source, but enabled here; to stop it: {command}"
        out.line(text, WARNING)
    for job in [] if options["shadow"] else _shadows(gone, plans):
        out.line(f"! {job} is still a shadow: its code isn't executed", WARNING)
    if waiting := _awaiting_handover(options, plans):
        source = options["source"]
        names = (*OPTIONS_OF_SOURCES, "namespace")
        given = [f"--{name}={options[name]}" for name in names if options[name]]
        command = shlex.join(["manage.py", "dcron", "handover", source, *given, "--apply"])
        out.line(
            f"! {number_of(len(waiting), 'job waits', 'jobs wait')} for the handover, paused or as "
            f"a shadow. When {process_name(source)} has stopped: {command}",
            WARNING,
        )


def _awaiting_handover(options: dict[str, Any], plans: list[EntryPlan]) -> list[Job]:
    if options["source"] not in SCHEDULERS or options.get("take_over"):
        return []
    return awaiting_handover(plans)


def _shadows(gone: list[Job], plans: list[EntryPlan]) -> list[Job]:
    return [*shadows_left(plans), *(job for job in gone if is_shadow(job.target))]


def _calendar_document(plan: CalendarPlan) -> dict[str, Any]:
    return {
        "name": plan.name,
        "outcome": plan.outcome,
        "is_problem": plan.outcome in PROBLEMS,
        "reasons": plan.reasons,
        "warnings": plan.warnings,
        "changes": changes_document(plan),
    }


def _entry_document(contents: SourceContents, plan: EntryPlan) -> dict[str, Any]:
    return {
        "origin": plan.entry.origin,
        "key": stored_key(plan.entry),
        "namespace": plan.namespace,
        "name": plan.name,
        "outcome": plan.outcome,
        "is_problem": is_problem(contents, plan),
        "enabled_in_source": plan.entry.is_enabled,
        "reasons": plan.reasons,
        "warnings": [*plan.entry.warnings, *filter(None, [_target_problem(plan)])],
        "changes": changes_document(plan),
        "kept": changes_document(plan, plan.kept),
    }


def import_document(
    options: dict[str, Any],
    contents: SourceContents,
    calendar_results: list[CalendarPlan],
    plans: list[EntryPlan],
    gone: list[Job],
    *,
    applied: bool,
) -> dict[str, Any]:
    return {
        "version": 1,
        "source": options["source"],
        "applied": applied,
        "counts": {
            str(outcome): sum(plan.outcome is outcome for plan in plans)
            for outcome in ImportOutcome
        },
        "calendars": [_calendar_document(plan) for plan in calendar_results],
        "jobs": [_entry_document(contents, plan) for plan in plans],
        "gone": [_reference(job) for job in gone],
        "shadows": [_reference(job) for job in _shadows(gone, plans)],
        "awaiting_handover": [_reference(job) for job in _awaiting_handover(options, plans)],
        "notes": contents.notes,
        "shell": contents.shell,
        "commands": contents.commands,
        "registrations": contents.registrations,
        "queues": missing_queues(plans),
    }


def _reference(job: Job) -> dict[str, Any]:
    return {"namespace": job.namespace, "name": job.name, "enabled": job.enabled}
