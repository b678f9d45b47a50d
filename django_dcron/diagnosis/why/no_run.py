"""Explain why a time has no run.

The most likely reason that is certain comes first. Unknown facts are stated as unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_dcron.conf import settings
from django_dcron.diagnosis.lookahead import translate_problem
from django_dcron.diagnosis.why.explanation_data import ExplanationData
from django_dcron.diagnosis.why.run_sentences import reason_sentence
from django_dcron.diagnosis.why.sentence import Sentence
from django_dcron.diagnosis.why.verdicts import WhyVerdict
from django_dcron.dispatch.queues import queue_name
from django_dcron.jobs.audit.entries import LoggedChange
from django_dcron.jobs.placement import matches_definition
from django_dcron.models import Freeze, Job
from django_dcron.policies.jitter import jitter_delay
from django_dcron.runs.retention import kept_from
from django_dcron.schedules.calendar import ExclusionPolicy
from django_dcron.utils.time_parsing import parse_datetime

FIELDS_NAMED = 10

Reason = tuple[WhyVerdict, list[Sentence]]

_LABELS = {field.name: field.verbose_name for field in Job._meta.concrete_fields}


def no_occurrence(data: ExplanationData) -> Reason:
    """Explain a time without an occurrence, or one outside the job's start and end."""
    if data.requested.end <= data.job.created_at:
        return WhyVerdict.NOT_CREATED, [_created_sentence(data)]
    if data.timetable is None:
        return WhyVerdict.QUARANTINED, [_quarantined_sentence(data)]
    starts_at, ends_at = data.job.starts_at, data.job.ends_at
    for instant in data.nearby.out_of_bounds[:1]:
        if starts_at and instant < starts_at:
            text = _("The schedule matches that time, but the job starts at %(at)s.")
            starts = Sentence("starts_at", text, at=data.format_time(starts_at))
            return WhyVerdict.BEFORE_START, [starts, *changed_since(data)]
        if ends_at:
            text = _("The schedule matches that time, but the job ends at %(at)s.")
            ends = Sentence("ends_at", text, at=data.format_time(ends_at))
            return WhyVerdict.AFTER_END, [ends, *changed_since(data)]
    for instant in data.nearby.excluded[:1]:
        return WhyVerdict.EXCLUDED, [
            *_pause_in_effect(data),
            _excluded_sentence(data, instant),
            *_nearest_occurrences(data),
            *changed_since(data),
        ]
    return WhyVerdict.NO_OCCURRENCE, [
        *_pause_in_effect(data),
        _falls_elsewhere(data),
        *_nearest_occurrences(data),
        *changed_since(data),
    ]


def without_run(data: ExplanationData, occurrence: datetime) -> Reason:
    """Explain an occurrence that no row accounts for."""
    if occurrence > data.now:
        return _not_due(data, occurrence)
    if occurrence < data.job.created_at:
        return WhyVerdict.NOT_CREATED, [_created_sentence(data)]
    if paused := list(_pause_sentences(data, occurrence)):
        return WhyVerdict.PAUSED, paused
    cursor = data.cursor
    if cursor is None or not matches_definition(cursor, data.job):
        text = _(
            "The job was changed without the admin or control.save, and no node has processed "
            "the change yet."
        )
        return WhyVerdict.NOT_CLAIMED, [
            Sentence("change_not_processed", text),
            *node_sentences(data),
        ]
    if cursor.problem and (cursor.next_at is None or cursor.next_at <= occurrence):
        return WhyVerdict.QUARANTINED, [_quarantined_sentence(data)]
    if cursor.next_at is not None and cursor.next_at <= occurrence:
        if freezes := data.freezes_in_force():
            return WhyVerdict.FROZEN, [*freeze_sentences(data, freezes), after_freeze()]
        text = _(
            "No node has claimed the occurrence yet. The job's next occurrence to claim is "
            "%(next)s."
        )
        not_claimed = Sentence("not_claimed", text, next=data.format_time(cursor.next_at))
        return WhyVerdict.NOT_CLAIMED, [not_claimed, *node_sentences(data)]
    if kept := kept_from(data.job.pk, occurrence, data.now):
        text = _(
            "The history doesn't go back that far. Runs older than the one at %(kept)s were pruned."
        )
        return WhyVerdict.PRUNED, [Sentence("pruned", text, kept=data.format_time(kept))]
    if changed := list(changed_since(data)):
        return WhyVerdict.CHANGED, changed
    text = _("The schedule matches that time, but no run and no other record explains the gap.")
    return WhyVerdict.UNEXPLAINED, [Sentence("unexplained", text), doctor_sentence()]


def freeze_sentences(data: ExplanationData, freezes: Iterable[Freeze]) -> Iterator[Sentence]:
    """Yield who has frozen the job's namespace, since when and why."""
    for freeze in freezes:
        values = {"by": freeze.frozen_by or _("Someone"), "since": data.format_time(freeze.since)}
        if freeze.namespace:
            text = _("%(by)s froze scheduling of the namespace %(namespace)s at %(since)s.")
            yield Sentence("frozen_namespace", text, namespace=freeze.namespace, **values)
        else:
            text = _("%(by)s froze scheduling of all namespaces at %(since)s.")
            yield Sentence("frozen_all", text, **values)
        yield Sentence("freeze_reason", _("Reason of the freeze: %(reason)s"), reason=freeze.reason)
        if freeze.until and not freeze.extent.is_in_force(data.now):
            text = _("The freeze ended at %(until)s.")
            yield Sentence("freeze_ended", text, until=data.format_time(freeze.until))
        elif freeze.until:
            text = _("The freeze ends at %(until)s.")
            yield Sentence("freeze_ends", text, until=data.format_time(freeze.until))


def after_freeze() -> Sentence:
    text = _("After the freeze, the job's misfire policy decides about the occurrence.")
    return Sentence("after_freeze", text)


def node_sentences(data: ExplanationData) -> list[Sentence]:
    """Return sentences about the nodes, or none if the reader may not see nodes."""
    if not data.show_nodes:
        return []
    sentences = [_live_nodes_sentence(data)]
    live = data.live_nodes
    if live and all(node.broker_unreachable_since for node in live):
        text = _("No live node can reach the broker. Check that the broker is running.")
        sentences.append(Sentence("no_broker", text))
    return sentences


def worker_sentences(data: ExplanationData) -> list[Sentence]:
    """Return a sentence about the workers that a queued run needs, if it needs workers."""
    queue = queue_name(data.job.target, data.job.queue)
    if settings.DISPATCHER == "thread" or not queue:
        return []
    text = _("If no worker of the queue “%(queue)s” is running, start one.")
    return [Sentence("needs_worker", text, queue=queue)]


def _live_nodes_sentence(data: ExplanationData) -> Sentence:
    if live := len(data.live_nodes):
        text = ngettext(
            "%(count)d live node serves the job.",
            "%(count)d live nodes serve the job.",
            live,
        )
        return Sentence("live_nodes", text, count=live)
    if not data.nodes:
        text = _(
            "No node that serves the job has been active in the last 24 hours. Start one with "
            "“manage.py runcron”."
        )
        return Sentence("no_nodes", text)
    last = max(data.nodes, key=lambda node: node.heartbeat_at)
    text = _("No node that serves the job is live. The last heartbeat was from %(node)s at %(at)s.")
    return Sentence("no_live_node", text, node=last.name, at=data.format_time(last.heartbeat_at))


def doctor_sentence() -> Sentence:
    text = _("Run “manage.py dcron doctor” to check all occurrences against the recorded runs.")
    return Sentence("ask_doctor", text)


def _not_due(data: ExplanationData, occurrence: datetime) -> Reason:
    job, until = data.job, data.job.paused_until
    if data.cursor and data.cursor.problem:
        not_due = Sentence("not_due", _("The occurrence is in the future."))
        return WhyVerdict.QUARANTINED, [not_due, _quarantined_sentence(data)]
    ends_in_time = until is not None and until <= occurrence
    if not job.enabled and not ends_in_time:
        text = _(
            "The occurrence is in the future. The job is paused and won't run unless it is "
            "resumed before then."
        )
        return WhyVerdict.PAUSED, [
            Sentence("to_come_paused", text),
            *_reason_sentences(job.pause_reason),
        ]
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
        sentences += [*freeze_sentences(data, freezes), after_freeze()]
    if data.show_nodes and not data.live_nodes:
        sentences += node_sentences(data)
    return WhyVerdict.NOT_DUE, sentences


def _pause_sentences(data: ExplanationData, occurrence: datetime) -> Iterator[Sentence]:
    """Yield that the job was paused at the time, if the log or the job's row says so."""
    if data.job.enabled and not data.definition_may_be_newer:
        return  # The job has been enabled since before that time.
    switches = [change for change in data.changes if change.switched is not None]
    before = next((change for change in reversed(switches) if change.at <= occurrence), None)
    after = next((change for change in switches if change.at > occurrence), None)
    resumed = after if after and after.switched else None
    pause = (
        before if before and before.switched is False and not _ends_by(before, occurrence) else None
    )
    if pause and _pause_covers(data, pause, occurrence):
        text = _("The job was paused at that time. %(by)s had paused it at %(at)s.")
        yield Sentence("was_paused_by", text, by=pause.by, at=data.format_time(pause.at))
        yield from _reason_sentences(_pause_reason(pause, after=True))
        if resumed:
            text = _("%(by)s resumed the job at %(at)s.")
            yield Sentence("resumed_by", text, by=resumed.by, at=data.format_time(resumed.at))
        elif data.is_paused and _unrecorded_changes(data, pause, None) <= 1:
            yield Sentence("still_paused", _("The job is still paused."))
    elif resumed:
        text = _(
            "The job was paused until %(by)s resumed it at %(at)s. The time of the pause isn't "
            "recorded."
        )
        yield Sentence("was_paused_until", text, by=resumed.by, at=data.format_time(resumed.at))
        yield from _reason_sentences(_pause_reason(resumed, after=False))
    elif data.is_paused and not data.definition_may_be_newer:
        yield Sentence("paused_since_then", _("The job was paused at that time and still is."))
        yield from _reason_sentences(data.job.pause_reason)


def _pause_covers(data: ExplanationData, pause: LoggedChange, occurrence: datetime) -> bool:
    """Return whether the pause was certainly in effect at ``occurrence``.

    Changes made outside the admin leave no log entry. Two of them may have ended the pause and
    begun another. One may have ended it, except in two cases:

    - The next log entry resumed the job, so the pause was still in effect.
    - There is no later log entry. The one change then placed the current definition, after the
      occurrence.
    """
    later = (
        change for change in data.changes if change.version is not None and change.at > occurrence
    )
    until = next(later, None)
    unseen = _unrecorded_changes(data, pause, until)
    return not unseen or (unseen == 1 and (until is None or until.switched is True))


def _unrecorded_changes(
    data: ExplanationData, since: LoggedChange, until: LoggedChange | None
) -> int:
    """Return the number of changes between two log entries that left no entry themselves.

    Without ``until``, changes up to now count.
    """
    first, last = (
        (change.version if change else data.job.version) or 0 for change in (since, until)
    )
    return (
        last
        - first
        - len({each.version for each in data.changes if first < (each.version or 0) <= last})
    )


def _ends_by(pause: LoggedChange, instant: datetime) -> bool:
    """Return whether the pause was to end automatically by ``instant``."""
    until = pause.of("paused_until")
    end = parse_datetime(until.new) if until and until.new else None
    return end is not None and end <= instant


def changed_since(data: ExplanationData) -> Iterator[Sentence]:
    """Yield since when the current definition applies and what the log records since the time.

    Yields nothing if the current definition already applied then.
    """
    if data.cursor is None or not data.definition_may_be_newer or data.requested.start > data.now:
        return
    text = _(
        "The job has had its current schedule and enabled or paused state since %(placed)s. For "
        "earlier times, only its runs are recorded."
    )
    yield Sentence("changed", text, placed=data.format_time(data.cursor.placed_at))
    since = [
        (change, field)
        for change in data.changes
        if data.requested.start < change.at
        for field in change.fields
    ]
    for change, field in since[:FIELDS_NAMED]:
        yield Sentence(
            "field_changed",
            _("%(by)s changed %(field)s from %(old)s to %(new)s at %(at)s."),
            by=change.by,
            at=data.format_time(change.at),
            field=_LABELS.get(field.field, field.field),
            old=_format_value(field.old),
            new=_format_value(field.new),
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
    stored = data.cursor.problem if data.cursor else ""
    problem = translate_problem(data.job, stored) or data.schedule_error
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
    text = _(
        "The schedule matches that time, but calendar “%(calendar)s” excludes %(date)s. The "
        "occurrence is skipped."
    )
    return Sentence("excluded_skipped", text, **values)


def _pause_in_effect(data: ExplanationData) -> Iterator[Sentence]:
    """Yield that the job is paused, if its present pause covers the end of the time in question."""
    job, cursor = data.job, data.cursor
    ends_before = job.paused_until is not None and job.paused_until <= data.requested.start
    starts_after = cursor is not None and data.requested.end <= cursor.placed_at
    if not data.is_paused or ends_before or starts_after:
        return
    if job.paused_until:
        text = _("The job is paused until %(until)s and then resumes automatically.")
        yield Sentence("paused_until", text, until=data.format_time(job.paused_until))
    else:
        yield Sentence("paused", _("The job is paused. It has no runs until it is resumed."))
    yield from _reason_sentences(job.pause_reason)


def _falls_elsewhere(data: ExplanationData) -> Sentence:
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


def _pause_reason(change: LoggedChange, *, after: bool) -> str:
    reason = change.of("pause_reason")
    if reason is None:
        return ""
    return str(reason.new if after else reason.old)


def _reason_sentences(reason: str) -> Iterator[Sentence]:
    if reason:
        yield reason_sentence(reason)


def _format_value(value: Any) -> str:
    if value is None or value == "":
        return _("empty")
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    return f"“{value}”"
