"""Explain why a time has no run.

Reasons are checked in a fixed order, and the first one that is certain is the verdict. Unknown
facts are stated as unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.utils.translation import gettext as _

from django_dcron.diagnosis.job_arguments import ArgumentsChecker, unknown_target_problem
from django_dcron.diagnosis.job_state import problem_of
from django_dcron.diagnosis.lookahead import translate_problem
from django_dcron.diagnosis.why.cluster_sentences import (
    after_claim,
    after_freeze,
    doctor_sentence,
    freeze_sentences,
    node_sentences,
)
from django_dcron.diagnosis.why.explanation_data import ExplanationData
from django_dcron.diagnosis.why.pause_sentences import (
    pause_sentences,
    present_author_sentences,
    present_pause_sentences,
)
from django_dcron.diagnosis.why.sentence import Sentence
from django_dcron.diagnosis.why.verdicts import WhyVerdict
from django_dcron.jobs.placement import matches_definition
from django_dcron.jobs.representation import JOB_FIELDS, ValueFormat, text_of
from django_dcron.models import Job, Run
from django_dcron.policies.jitter import jitter_delay
from django_dcron.runs.retention import kept_from
from django_dcron.schedules.calendar import ExclusionPolicy

FIELDS_NAMED = 10


class ExplainedOccurrence(NamedTuple):
    verdict: WhyVerdict
    sentences: Sequence[Sentence]
    run: Run | None = None
    """The run that the explanation is about."""


_LABELS = {field.name: field.verbose_name for field in Job._meta.concrete_fields}


def explain_no_occurrence(data: ExplanationData) -> ExplainedOccurrence:
    """Explain a time without an occurrence, or one outside the job's start and end."""
    if data.requested.end <= data.job.created_at:
        return ExplainedOccurrence(WhyVerdict.NOT_CREATED, [_created_sentence(data)])
    if data.timetable is None:
        return ExplainedOccurrence(WhyVerdict.QUARANTINED, [_quarantined_sentence(data)])
    starts_at, ends_at = data.job.starts_at, data.job.ends_at
    for instant in data.nearby.out_of_bounds[:1]:
        if starts_at and instant < starts_at:
            text = _("The schedule matches that time, but the job starts at %(at)s.")
            starts = Sentence("starts_at", text, at=data.format_time(starts_at))
            return ExplainedOccurrence(WhyVerdict.BEFORE_START, [starts, *changed_since(data)])
        if ends_at:
            text = _("The schedule matches that time, but the job ends at %(at)s.")
            ends = Sentence("ends_at", text, at=data.format_time(ends_at))
            return ExplainedOccurrence(WhyVerdict.AFTER_END, [ends, *changed_since(data)])
    for instant in data.nearby.excluded[:1]:
        return ExplainedOccurrence(
            WhyVerdict.EXCLUDED,
            [
                *present_pause_sentences(data),
                _excluded_sentence(data, instant),
                *_nearest_occurrences(data),
                *changed_since(data),
            ],
        )
    return ExplainedOccurrence(
        WhyVerdict.NO_OCCURRENCE,
        [
            *present_pause_sentences(data),
            _no_match_sentence(data),
            *_nearest_occurrences(data),
            *changed_since(data),
        ],
    )


def explain_missing_run(data: ExplanationData, occurrence: datetime) -> ExplainedOccurrence:
    """Explain an occurrence that no row accounts for."""
    if occurrence > data.now:
        return _not_due(data, occurrence)
    if occurrence < data.job.created_at:
        return ExplainedOccurrence(WhyVerdict.NOT_CREATED, [_created_sentence(data)])
    if paused := list(pause_sentences(data, occurrence)):
        return ExplainedOccurrence(WhyVerdict.PAUSED, paused)
    cursor = data.cursor
    if cursor is None or not matches_definition(cursor, data.job):
        text = _(
            "The job was changed without the admin or control.save, and no node has processed "
            "the change yet."
        )
        return ExplainedOccurrence(
            WhyVerdict.NOT_CLAIMED,
            [
                Sentence("change_not_processed", text),
                *node_sentences(data),
            ],
        )
    if problem_of(data.job) and (cursor.next_at is None or cursor.next_at <= occurrence):
        return ExplainedOccurrence(WhyVerdict.QUARANTINED, [_quarantined_sentence(data)])
    if cursor.next_at is not None and cursor.next_at <= occurrence:
        if freezes := data.freezes_in_force():
            return ExplainedOccurrence(
                WhyVerdict.FROZEN, [*freeze_sentences(data, freezes), after_freeze(data.job)]
            )
        text = _(
            "No node has claimed the occurrence yet. The job's next occurrence to claim is "
            "%(next)s."
        )
        not_claimed = Sentence("not_claimed", text, next=data.format_time(cursor.next_at))
        return ExplainedOccurrence(
            WhyVerdict.NOT_CLAIMED,
            [not_claimed, *after_claim(data, occurrence), *node_sentences(data)],
        )
    if kept := kept_from(data.job.pk, occurrence, data.now):
        text = _(
            "The history doesn't go back that far. Runs older than the one at %(kept)s were pruned."
        )
        return ExplainedOccurrence(
            WhyVerdict.PRUNED, [Sentence("pruned", text, kept=data.format_time(kept))]
        )
    if changed := list(changed_since(data)):
        return ExplainedOccurrence(WhyVerdict.CHANGED, changed)
    text = _("The schedule matches that time, but no run and no other record explains the gap.")
    return ExplainedOccurrence(
        WhyVerdict.UNEXPLAINED, [Sentence("unexplained", text), doctor_sentence()]
    )


def _not_due(data: ExplanationData, occurrence: datetime) -> ExplainedOccurrence:
    job, until = data.job, data.job.paused_until
    if problem_of(data.job):
        not_due = Sentence("not_due", _("The occurrence is in the future."))
        return ExplainedOccurrence(WhyVerdict.QUARANTINED, [not_due, _quarantined_sentence(data)])
    ends_in_time = until is not None and until <= occurrence
    if not job.enabled and not ends_in_time:
        text = _(
            "The occurrence is in the future. The job is paused and won't run unless it is "
            "resumed before then."
        )
        return ExplainedOccurrence(
            WhyVerdict.PAUSED,
            [
                Sentence("to_come_paused", text),
                *present_author_sentences(data),
            ],
        )
    due = occurrence + jitter_delay(job.pk, occurrence, job.jitter)
    if due == occurrence:
        text = _("The occurrence is in the future. Unless the job changes, it is due at %(due)s.")
        sentences = [Sentence("to_come_due", text, due=data.format_time(due))]
    else:
        text = _(
            "The occurrence is in the future. Unless the job changes, it is due at %(due)s, "
            "including jitter."
        )
        sentences = [Sentence("to_come_due_with_jitter", text, due=data.format_time(due))]
    if not job.enabled and until:
        text = _("The job is paused until %(until)s and then resumes automatically.")
        sentences.append(Sentence("paused_until", text, until=data.format_time(until)))
    if freezes := data.freezes_in_force(due):
        sentences += [*freeze_sentences(data, freezes), after_freeze(data.job)]
    if data.show_nodes and not data.live_nodes:
        sentences += node_sentences(data)
    sentences += failing_sentences(job)
    return ExplainedOccurrence(WhyVerdict.NOT_DUE, sentences)


def failing_sentences(job: Job) -> Iterator[Sentence]:
    """Yield why the job's next runs fail, as far as this process knows its target."""
    if problem := unknown_target_problem(job.target):
        yield Sentence("unknown_target", "%(problem)s", problem=problem)
    elif why := ArgumentsChecker().why_rejected(job):
        text = _("Runs fail: the target doesn't accept the job's arguments: %(why)s")
        yield Sentence("arguments_rejected", text, why=why)


def changed_since(data: ExplanationData) -> Iterator[Sentence]:
    """Yield the start of the current definition, and the changes logged after the requested time.

    Yields nothing if the current definition already applied then.
    """
    if data.cursor is None or not data.definition_may_be_newer or data.requested.start > data.now:
        return
    text = _(
        "The job has had its current schedule and enabled or paused state since %(placed)s. Only "
        "its runs and the audit log show what applied before."
    )
    yield Sentence("changed", text, placed=data.format_time(data.cursor.placed_at))
    since = [
        (change, field)
        for change in data.changes
        if data.requested.start < change.at and not change.is_addition
        for field in change.fields
    ]
    for change, field in since[:FIELDS_NAMED]:
        yield Sentence(
            "field_changed",
            _("%(by)s changed %(field)s from %(old)s to %(new)s at %(at)s."),
            by=change.by,
            at=data.format_time(change.at),
            field=_LABELS.get(field.field, field.field),
            old=_format_value(field.field, field.old),
            new=_format_value(field.field, field.new),
        )


def _created_sentence(data: ExplanationData) -> Sentence:
    at = data.format_time(data.job.created_at)
    addition = next((change for change in data.changes if change.is_addition), None)
    if addition is None:
        text = _("The job didn't exist at that time. It was created at %(at)s.")
        return Sentence("created", text, at=at)
    text = _("The job didn't exist at that time. %(by)s created it at %(at)s.")
    return Sentence("created_by", text, at=at, by=addition.by)


def _quarantined_sentence(data: ExplanationData) -> Sentence:
    problem = translate_problem(data.job, problem_of(data.job)) or data.schedule_error
    text = _("The job isn't scheduled until this problem is fixed: %(problem)s")
    return Sentence("quarantined", text, problem=problem)


def _excluded_sentence(data: ExplanationData, instant: datetime) -> Sentence:
    values = {
        "date": f"{instant.astimezone(data.zone):%Y-%m-%d}",
        "calendar": data.job.calendar_id,
    }
    if data.job.calendar_policy == ExclusionPolicy.NEXT_DAY:
        text = _(
            "The schedule matches that time, but calendar “%(calendar)s” excludes %(date)s. The "
            "occurrence moves to the same time on the next date that isn't excluded."
        )
        return Sentence("excluded_moved", text, **values)
    if data.job.calendar_policy == ExclusionPolicy.WINDOW_END and data.timetable:
        text = _(
            "The schedule matches that time, but calendar “%(calendar)s” excludes it. The "
            "occurrence moves to %(end)s, when the excluded time ends. All occurrences "
            "in the excluded time become one run."
        )
        end = data.timetable.next_after(instant)
        shown = data.format_time(end) if end else "-"
        return Sentence("excluded_until_end", text, calendar=data.job.calendar_id, end=shown)
    calendar = data.timetable and data.timetable.schedule.calendar
    if calendar and not calendar.excludes(instant.astimezone(data.zone).date()):
        text = _(
            "The schedule matches that time, but calendar “%(calendar)s” excludes it. The "
            "occurrence is skipped."
        )
        return Sentence("excluded_time_skipped", text, calendar=data.job.calendar_id)
    text = _(
        "The schedule matches that time, but calendar “%(calendar)s” excludes %(date)s. The "
        "occurrence is skipped."
    )
    return Sentence("excluded_skipped", text, **values)


def _no_match_sentence(data: ExplanationData) -> Sentence:
    if data.timetable is not None and data.timetable.schedule.is_never:
        if not data.job.after:
            text = _(
                "The schedule @never has no occurrences. The job runs only when it is started "
                "manually."
            )
            return Sentence("never", text)
        text = _(
            "The schedule @never has no occurrences. The job starts after these jobs: %(jobs)s. "
            "Their runs show why it did or didn't start."
        )
        jobs = ", ".join(f"{label} ({outcome})" for label, outcome in data.job.after.items())
        return Sentence("never_but_chained", text, jobs=jobs)
    text = _("The schedule “%(schedule)s” doesn't match that time.")
    return Sentence("no_match", text, schedule=data.job.schedule)


def _nearest_occurrences(data: ExplanationData) -> Iterator[Sentence]:
    before, after = data.nearby.before, data.nearby.after
    if before and after:
        text = _("The nearest occurrences are %(before)s and %(after)s.")
        yield Sentence(
            "nearest", text, before=data.format_time(before), after=data.format_time(after)
        )
    elif before:
        text = _("The last occurrence is %(before)s.")
        yield Sentence("last", text, before=data.format_time(before))
    elif after:
        text = _("The first occurrence is %(after)s.")
        yield Sentence("first", text, after=data.format_time(after))


def _format_value(name: str, value: Any) -> str:
    """Return the logged JSON value of a field as text."""
    if value is None or value == "":
        return _("empty")
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    field = JOB_FIELDS.get(name)
    if field and field.format is ValueFormat.TIME:
        return field.text(value)
    return f"“{text_of(value)}”"
