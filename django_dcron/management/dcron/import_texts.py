"""Describe the results of ``manage.py dcron import`` for jobs and their calendars."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django_dcron.contrib.importers.calendars import CalendarPlan
from django_dcron.contrib.importers.entry_plans import (
    DIFFERENCES,
    PROBLEMS,
    EntryPlan,
    ImportOutcome,
)
from django_dcron.contrib.importers.source_contents import SourceContents
from django_dcron.jobs.representation import FIELDS, text_of
from django_dcron.management.dcron.output import BAD, GOOD, QUIET, WARNING, Output
from django_dcron.models import Calendar, Job
from django_dcron.targets.shadow import is_shadow
from django_dcron.utils.counts import number_of

STYLES = {
    ImportOutcome.CREATE: GOOD,
    ImportOutcome.CHANGE: GOOD,
    ImportOutcome.KEPT: WARNING,
    ImportOutcome.OMITTED: QUIET,
    ImportOutcome.DELETED: QUIET,
    ImportOutcome.CONFLICT: BAD,
    ImportOutcome.REFUSED: BAD,
}
PAUSED_NAMED = 20
"""The maximum number of paused jobs that ``resume_texts`` names."""
APPLIED_VERBS = {ImportOutcome.CREATE: "created", ImportOutcome.CHANGE: "changed"}


def verb_of(outcome: ImportOutcome, *, applied: bool) -> str:
    return APPLIED_VERBS.get(outcome, str(outcome)) if applied else str(outcome)


def is_problem(contents: SourceContents, plan: EntryPlan) -> bool:
    """Return whether an entry can't be imported, except one that no scheduler runs."""
    return plan.outcome in PROBLEMS and not is_disabled_problem(contents, plan)


def is_disabled_problem(contents: SourceContents, plan: EntryPlan) -> bool:
    """Return whether an entry can't be imported, and no scheduler runs it.

    An export has no scheduler: someone wants its paused jobs, too. An entry that was refused only
    when it was written counts like an enabled one: its job may differ from the entry.
    """
    return _is_disabled_there(contents, plan) and not works_here(plan)


def disabled_text(contents: SourceContents, plan: EntryPlan) -> str:
    """Return that the scheduler doesn't run an entry that can't be imported; empty otherwise."""
    if not _is_disabled_there(contents, plan):
        return ""
    if works_here(plan):
        return "disabled there, but its job is enabled here; pause it if nobody needs it"
    return "disabled there"


def _is_disabled_there(contents: SourceContents, plan: EntryPlan) -> bool:
    if plan.outcome not in PROBLEMS or plan.is_write_refused:
        return False
    return bool(contents.source) and not plan.entry.is_enabled


def works_here(plan: EntryPlan) -> bool:
    """Return whether a job that was imported from the source already does the entry's work."""
    job = plan.existing
    return job is not None and bool(job.import_source) and does_work(job)


def does_work(job: Job | None) -> bool:
    """Return whether the job is enabled and not a shadow."""
    return job is not None and job.enabled and not is_shadow(job.target)


def format_counts(
    outcomes: Iterable[ImportOutcome],
    *,
    applied: bool,
    disabled: Mapping[ImportOutcome, int] | None = None,
) -> str:
    """Format the number of entries with each outcome; empty if there are no entries.

    ``disabled``: how many of them are disabled in the source, where the text should say so.
    """
    counts = Counter(outcomes)
    labels = {
        outcome: f"to {outcome}" if outcome in DIFFERENCES else str(outcome)
        for outcome in ImportOutcome
    }
    labels[ImportOutcome.KEPT] = "with kept fields only"
    labels |= APPLIED_VERBS if applied else {}
    for outcome, number in (disabled or {}).items():
        labels[outcome] += f" ({number} disabled there)"
    return ", ".join(
        f"{counts[outcome]} {labels[outcome]}" for outcome in ImportOutcome if counts[outcome]
    )


def show_calendars(out: Output, plans: list[CalendarPlan], *, applied: bool) -> None:
    for plan in plans:
        for detail in _details(plan):
            verb = verb_of(plan.outcome, applied=applied)
            out.line(f"{verb} calendar {plan.name} {detail}", STYLES.get(plan.outcome, ""))
        for warning in plan.warnings:
            out.line(f"! calendar {plan.name}: {warning}", WARNING)
    if text := format_counts((plan.outcome for plan in plans), applied=applied):
        out.line(f"Calendars: {text}.")


def _details(plan: CalendarPlan) -> list[str]:
    if plan.outcome is ImportOutcome.CREATE:
        return [_date_list(plan.changes["dates"][1])]
    if plan.reasons:
        return list(plan.reasons)
    return [
        f"{name}: {_date_list(was)} -> {_date_list(now)}"
        for name, (was, now) in plan.changes.items()
    ]


def _date_list(value: Any) -> str:
    return ", ".join(text_of(value).splitlines())


def changes_document(
    plan: EntryPlan | CalendarPlan, changes: Mapping[str, tuple[Any, Any]] | None = None
) -> dict[str, Any]:
    """Return the changes for programs, by default those of the plan, with secrets redacted."""
    shown = plan.changes if changes is None else changes
    fields = FIELDS[Calendar if isinstance(plan, CalendarPlan) else Job]
    redacted = {name: fields[name].redacted_change(*values) for name, values in shown.items()}
    return {name: {"from": old, "to": new} for name, (old, new) in redacted.items()}


def refused_texts(unscheduled: int, scheduled: int, run: str) -> list[str]:
    """Return how many entries can't be imported.

    ``unscheduled``: those without an enabled job here. ``scheduled``: those with one. ``run``:
    "runs" or "would run".
    """
    texts = []
    if unscheduled:
        entries = number_of(unscheduled, "entry", "entries")
        them = "it" if unscheduled == 1 else "them"
        texts.append(f"{entries} can't be imported, so neither scheduler {run} {them}")
    if scheduled == 1:
        texts.append(
            "1 entry can't be imported, but has an enabled job here. Check that the job does the "
            "same work"
        )
    elif scheduled:
        texts.append(
            f"{scheduled} entries can't be imported, but have enabled jobs here. Check that the "
            "jobs do the same work"
        )
    return texts


def stay_paused(paused: Sequence[str]) -> str:
    return f"{number_of(len(paused), 'job stays', 'jobs stay')} paused"


def resume_texts(source: str, paused: Sequence[str]) -> list[str]:
    """Return how to see why jobs of the source are paused, and how to resume them."""
    if len(paused) > PAUSED_NAMED:
        return [f"To list them with the reasons: manage.py dcron list --paused --source {source}"]
    why, them = "To see why a job is paused: manage.py dcron show JOB", "them"
    if len(paused) == 1:
        why, them = f"To see why: {shlex.join(['manage.py', 'dcron', 'show', *paused])}", "it"
    return [why, f"to resume {them}: {shlex.join(['manage.py', 'dcron', 'resume', *paused])}"]
