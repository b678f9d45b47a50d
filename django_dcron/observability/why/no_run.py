"""Why there is no run of a time. The likeliest reason that is certain comes first; what is not known is said to be so."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_dcron.definition import stands_for
from django_dcron.domain.calendar import ExclusionPolicy
from django_dcron.domain.jitter import offset
from django_dcron.models import Job
from django_dcron.observability.changes import Change
from django_dcron.observability.lookahead import problem_in_words
from django_dcron.observability.why.inquiry import Inquiry
from django_dcron.observability.why.verdicts import Verdict
from django_dcron.pruning import kept_from
from django_dcron.time_texts import parse_datetime

FIELDS_NAMED = 10

Reason = tuple[Verdict, list[str]]

_LABELS = {field.name: field.verbose_name for field in Job._meta.concrete_fields}


def no_occurrence(asked: Inquiry) -> Reason:
    """The schedule does not fall on that time, or not between the job's start and end."""
    if asked.asked.end <= asked.job.created_at:
        return Verdict.NOT_CREATED, [_created(asked)]
    if asked.timetable is None:
        return Verdict.QUARANTINED, [_out_of_scheduling(asked)]
    starts_at, ends_at = asked.job.starts_at, asked.job.ends_at
    for instant in asked.nearby.out_of_bounds[:1]:
        if starts_at and instant < starts_at:
            text = _("The schedule falls on that time, but the job starts at %(at)s.") % {
                "at": asked.at(starts_at)
            }
            return Verdict.BEFORE_START, [text, *changed_since(asked)]
        if ends_at:
            text = _("The schedule falls on that time, but the job ends at %(at)s.") % {
                "at": asked.at(ends_at)
            }
            return Verdict.AFTER_END, [text, *changed_since(asked)]
    for instant in asked.nearby.excluded[:1]:
        return Verdict.EXCLUDED, [_excluded(asked, instant), *_nearest(asked), *changed_since(asked)]
    return Verdict.NOT_SCHEDULED, [_falls_elsewhere(asked), *_nearest(asked), *changed_since(asked)]


def without_run(asked: Inquiry, occurrence: datetime) -> Reason:
    """The schedule falls on it, and no row accounts for it."""
    if occurrence > asked.now:
        return _to_come(asked, occurrence)
    if occurrence < asked.job.created_at:
        return Verdict.NOT_CREATED, [_created(asked)]
    if paused := list(_paused(asked, occurrence)):
        return Verdict.PAUSED, paused
    cursor = asked.cursor
    if cursor is None or not stands_for(cursor, asked.job):
        text = _(
            "The job was written past the admin and control.save, and no node has caught up with that yet."
        )
        return Verdict.NOT_CLAIMED, [text, *who_is_there(asked)]
    if cursor.problem and (cursor.next_at is None or cursor.next_at <= occurrence):
        return Verdict.QUARANTINED, [_out_of_scheduling(asked)]
    if cursor.next_at is not None and cursor.next_at <= occurrence:
        text = _(
            "No node has considered it yet; the first occurrence that is left to consider is that of %(next)s."
        )
        return Verdict.NOT_CLAIMED, [text % {"next": asked.at(cursor.next_at)}, *who_is_there(asked)]
    if kept := kept_from(asked.job.pk, occurrence, asked.now):
        text = _("The history does not go back so far: older rows than that of %(kept)s were pruned.")
        return Verdict.PRUNED, [text % {"kept": asked.at(kept)}]
    if changed := list(changed_since(asked)):
        return Verdict.CHANGED, changed
    text = _("Nothing on record explains it: the schedule falls on that time, and no run accounts for it.")
    return Verdict.UNEXPLAINED, [text, ask_the_doctor()]


def who_is_there(asked: Inquiry) -> list[str]:
    """In a sentence; in none, if who asks may not know."""
    return [_of_nodes(asked)] if asked.tell_nodes else []


def _of_nodes(asked: Inquiry) -> str:
    if live := len(asked.live_nodes):
        text = ngettext(
            "%(count)d node that serves it is live.", "%(count)d nodes that serve it are live.", live
        )
        return text % {"count": live}
    if not asked.nodes:
        return _("No node that serves it is known of for a day or longer: start manage.py runcron.")
    last = max(asked.nodes, key=lambda node: node.heartbeat_at)
    return _("No node that serves it is live: the last heartbeat was that of %(node)s, at %(at)s.") % {
        "node": last.name,
        "at": asked.at(last.heartbeat_at),
    }


def ask_the_doctor() -> str:
    return _("Run “manage.py dcron doctor”: it holds all occurrences against the rows.")


def _to_come(asked: Inquiry, occurrence: datetime) -> Reason:
    job, until = asked.job, asked.job.paused_until
    if asked.cursor and asked.cursor.problem:
        return Verdict.QUARANTINED, [_("It has not come yet."), _out_of_scheduling(asked)]
    ends_in_time = until is not None and until <= occurrence
    if not job.enabled and not ends_in_time:
        text = _("It has not come yet. The job is paused: unless it is resumed before, it will not run.")
        return Verdict.PAUSED, [text, *_on_record(job.pause_reason)]
    due = occurrence + offset(job.pk, occurrence, job.jitter)
    said = {"due": asked.at(due), "until": asked.at(until) if until else ""}
    if due == occurrence:
        sentences = [_("It has not come yet. If nothing changes, it is due at %(due)s.") % said]
    else:
        text = _(
            "It has not come yet. If nothing changes, it is due at %(due)s: its jitter puts it off so long."
        )
        sentences = [text % said]
    if not job.enabled:
        sentences.append(_("The job is paused until %(until)s; then it resumes by itself.") % said)
    if asked.tell_nodes and not asked.live_nodes:
        sentences += who_is_there(asked)
    return Verdict.TO_COME, sentences


def _paused(asked: Inquiry, occurrence: datetime) -> Iterator[str]:
    """That it was paused then, if the log says so, or the job's own row; nothing otherwise."""
    if asked.job.enabled and not asked.was_another:
        return  # it has been enabled since before then
    switches = [change for change in asked.changes if change.switched is not None]
    before = next((change for change in reversed(switches) if change.at <= occurrence), None)
    after = next((change for change in switches if change.at > occurrence), None)
    resumed = after if after and after.switched else None
    pause = before if before and before.switched is False and not _over_by(before, occurrence) else None
    if pause and _lasted(asked, pause, occurrence):
        said = {"by": pause.by, "at": asked.at(pause.at)}
        yield _("It was paused then, by %(by)s at %(at)s.") % said
        yield from _on_record(_pause_reason(pause, after=True))
        if resumed:
            yield _("%(by)s resumed it at %(at)s.") % {"by": resumed.by, "at": asked.at(resumed.at)}
        elif asked.is_paused and _unseen(asked, pause, None) <= 1:
            yield _("It is paused still.")
    elif resumed:
        said = {"by": resumed.by, "at": asked.at(resumed.at)}
        yield _("It was paused when %(by)s resumed it at %(at)s; since when it was, nothing tells.") % said
        yield from _on_record(_pause_reason(resumed, after=False))
    elif asked.is_paused and not asked.was_another:
        yield _("It was paused then, and is so still.")
        yield from _on_record(asked.job.pause_reason)


def _lasted(asked: Inquiry, pause: Change, occurrence: datetime) -> bool:
    """Whether it is certain that the pause was on at ``occurrence``, whatever was changed past the admin. One such change may
    have ended it, but not if somebody resumed the job after that, or if nobody has been there since: then it is that change
    which placed the present definition, later. Two may have ended it and begun another."""
    later = (change for change in asked.changes if change.version is not None and change.at > occurrence)
    until = next(later, None)
    unseen = _unseen(asked, pause, until)
    return not unseen or (unseen == 1 and (until is None or until.switched is True))


def _unseen(asked: Inquiry, since: Change, until: Change | None) -> int:
    """How many changes there were between two entries that left none; ``until`` None: up to now."""
    first, last = ((change.version if change else asked.job.version) or 0 for change in (since, until))
    return last - first - len({each.version for each in asked.changes if first < (each.version or 0) <= last})


def _over_by(pause: Change, instant: datetime) -> bool:
    """Whether the pause was to end by itself before that."""
    until = pause.of("paused_until")
    end = parse_datetime(until.new) if until and until.new else None
    return end is not None and end <= instant


def changed_since(asked: Inquiry) -> Iterator[str]:
    """If the present definition says nothing about that time: since when it has stood, and what the log tells."""
    if asked.cursor is None or not asked.was_another or asked.asked.start > asked.now:
        return
    placed = {"placed": asked.at(asked.cursor.placed_at)}
    yield (
        _(
            "Since %(placed)s the job has been as it is now, in its schedule and in being enabled or paused; of the time "
            "before that only its rows tell."
        )
        % placed
    )
    since = [
        (change, field)
        for change in asked.changes
        if asked.asked.start < change.at
        for field in change.fields
    ]
    for change, field in since[:FIELDS_NAMED]:
        yield _("%(by)s changed it at %(at)s: %(field)s was %(old)s and became %(new)s.") % {
            "by": change.by,
            "at": asked.at(change.at),
            "field": _LABELS.get(field.field, field.field),
            "old": _shown(field.old),
            "new": _shown(field.new),
        }


def _created(asked: Inquiry) -> str:
    said: dict[str, Any] = {"at": asked.at(asked.job.created_at)}
    addition = next((change for change in asked.changes if change.is_addition), None)
    if addition is None:
        return _("The job did not exist then: it was made at %(at)s.") % said
    return _("The job did not exist then: %(by)s made it at %(at)s.") % {**said, "by": addition.by}


def _out_of_scheduling(asked: Inquiry) -> str:
    stored = asked.cursor.problem if asked.cursor else ""
    problem = problem_in_words(asked.job, stored) or asked.unreadable
    return _("The job is out of scheduling until this is corrected: %(problem)s") % {"problem": problem}


def _excluded(asked: Inquiry, instant: datetime) -> str:
    said = {"date": f"{instant.astimezone(asked.zone):%Y-%m-%d}", "calendar": asked.job.calendar_id}
    if asked.job.calendar_policy == ExclusionPolicy.NEXT_DAY:
        text = _(
            "The schedule falls on that time, but calendar “%(calendar)s” excludes %(date)s: the occurrence is moved to the same "
            "time of the next date that it does not exclude."
        )
    else:
        text = _(
            "The schedule falls on that time, but calendar “%(calendar)s” excludes %(date)s: the occurrence is skipped."
        )
    return text % said


def _falls_elsewhere(asked: Inquiry) -> str:
    return _("The schedule, %(schedule)s, does not fall on that time.") % {"schedule": asked.job.schedule}


def _nearest(asked: Inquiry) -> Iterator[str]:
    before, after = asked.nearby.before, asked.nearby.after
    said = {"before": asked.at(before) if before else "", "after": asked.at(after) if after else ""}
    if before and after:
        yield _("The nearest occurrences are those of %(before)s and of %(after)s.") % said
    elif before:
        yield _("The last occurrence is that of %(before)s.") % said
    elif after:
        yield _("The first occurrence is that of %(after)s.") % said


def _pause_reason(change: Change, *, after: bool) -> str:
    reason = change.of("pause_reason")
    if reason is None:
        return ""
    return str(reason.new if after else reason.old)


def _on_record(reason: str) -> Iterator[str]:
    if reason:
        yield _("On record: %(reason)s") % {"reason": reason}


def _shown(value: Any) -> str:
    if value is None or value == "":
        return _("empty")
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    return f"“{value}”"
