"""Describe in words whether a job was paused at a time, from its row and its log entries."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from django.utils.translation import gettext as _

from django_dcron.diagnosis.job_status import author_of_pause, pause_of
from django_dcron.diagnosis.why.explanation_data import ExplanationData
from django_dcron.diagnosis.why.run_sentences import reason_sentence
from django_dcron.diagnosis.why.sentence import Sentence
from django_dcron.jobs.audit.entries import LoggedChange
from django_dcron.models.job_states import NO_LONGER_DECLARED
from django_dcron.utils.time_parsing import parse_datetime


def pause_sentences(data: ExplanationData, occurrence: datetime) -> Iterator[Sentence]:
    """Yield that the job was paused at the time, if the log or the job's row shows that."""
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
        yield from reason_sentences(_pause_reason(pause, after=True))
        if resumed:
            text = _("%(by)s resumed the job at %(at)s.")
            yield Sentence("resumed_by", text, by=resumed.by, at=data.format_time(resumed.at))
        elif data.job.is_paused and _unrecorded_changes(data, pause, None) <= 1:
            yield Sentence("still_paused", _("The job is still paused."))
    elif resumed:
        text = _(
            "The job was paused until %(by)s resumed it at %(at)s. The time of the pause isn't "
            "recorded."
        )
        yield Sentence("was_paused_until", text, by=resumed.by, at=data.format_time(resumed.at))
        yield from reason_sentences(_pause_reason(resumed, after=False))
    elif data.job.is_paused and not data.definition_may_be_newer:
        yield Sentence("paused_since_then", _("The job was paused at that time and still is."))
        yield from reason_sentences(data.job.pause_reason)


def _pause_covers(data: ExplanationData, pause: LoggedChange, occurrence: datetime) -> bool:
    """Return whether the pause was certainly in effect at ``occurrence``.

    Some changes increase the job's version but leave no log entry. Two of them may have ended the
    pause and begun another. One may have ended it, except in two cases:

    - The next log entry resumed the job, so the pause was still in effect.
    - There is no later log entry. The one change then placed the current definition, after the
      occurrence.
    """
    later = (
        change for change in data.changes if change.version is not None and change.at > occurrence
    )
    until = next(later, None)
    unrecorded = _unrecorded_changes(data, pause, until)
    return not unrecorded or (unrecorded == 1 and (until is None or until.switched is True))


def _unrecorded_changes(
    data: ExplanationData, since: LoggedChange, until: LoggedChange | None
) -> int:
    """Return the number of changes between two log entries that left no entry themselves.

    Without ``until``, changes up to now count.
    """
    first = since.version or 0
    last = (until.version if until else data.job.version) or 0
    recorded = {each.version for each in data.changes if first < (each.version or 0) <= last}
    return last - first - len(recorded)


def _ends_by(pause: LoggedChange, instant: datetime) -> bool:
    """Return whether the pause was to end automatically by ``instant``."""
    until = pause.of("paused_until")
    end = parse_datetime(until.new) if until and until.new else None
    return end is not None and end <= instant


def present_pause_sentences(data: ExplanationData) -> Iterator[Sentence]:
    """Yield that the job is paused, if its present pause covers the end of the time in question."""
    job, cursor = data.job, data.cursor
    ends_before = job.paused_until is not None and job.paused_until <= data.requested.start
    starts_after = cursor is not None and data.requested.end <= cursor.placed_at
    if not data.job.is_paused or ends_before or starts_after:
        return
    if job.paused_until:
        text = _("The job is paused until %(until)s and then resumes automatically.")
        yield Sentence("paused_until", text, until=data.format_time(job.paused_until))
    else:
        yield Sentence("paused", _("The job is paused. It has no runs until it is resumed."))
    yield from present_author_sentences(data)


def present_author_sentences(data: ExplanationData) -> Iterator[Sentence]:
    """Yield who paused the job, which is paused now, and why."""
    pause = pause_of(data.job, author_of_pause(data.job, data.changes))
    if pause is None:
        return
    if pause.by and pause.since:
        text = _("%(by)s paused the job at %(at)s.")
        yield Sentence("paused_by", text, by=pause.by, at=data.format_time(pause.since))
    yield from reason_sentences(pause.reason)
    if pause.reason == NO_LONGER_DECLARED:
        text = _(
            "If the job was renamed in code, see “Rename a declared job” in the docs to keep its "
            "history."
        )
        yield Sentence("may_be_renamed", text)


def _pause_reason(change: LoggedChange, *, after: bool) -> str:
    reason = change.of("pause_reason")
    if reason is None:
        return ""
    return str(reason.new if after else reason.old)


def reason_sentences(reason: str) -> Iterator[Sentence]:
    if reason:
        yield reason_sentence(reason)
