"""Why a job ran at a time, or did not: answered in words, from the rows.

Invariants:

- Nothing is guessed. What the rows or the admin's log tell is said; what they cannot tell is said to be unknown, and if nothing
  explains a gap, that is the answer.
- A run's row comes before all else: it says what became of an occurrence, whatever the job's definition is today.
- The present definition speaks for the occurrences after its cursor was placed, as in the doctor's ``account``; of earlier ones
  the rows speak, and the log of who has changed what since.
- Nodes go on while we read: the cursor is read before the runs, so that what it has passed is there.
- The work does not depend on the length of the history, but in one case: whether older rows were pruned is told by counting the
  job's, and is asked only of an occurrence older than all of those, that nothing else explains.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_dcron.domain.lifecycle import State, Trigger
from django_dcron.domain.timetable import BEGIN, END
from django_dcron.models import Job, Run
from django_dcron.observability.why.inquiry import Inquiry
from django_dcron.observability.why.named_time import stands_for
from django_dcron.observability.why.no_run import (
    ask_the_doctor,
    changed_since,
    no_occurrence,
    who_is_there,
    without_run,
)
from django_dcron.observability.why.run_in_words import claimed_late, in_words
from django_dcron.observability.why.verdicts import Verdict

LATER_LOOKED_AT = 10


@dataclass(frozen=True, slots=True)
class Answer:
    verdict: Verdict
    sentences: tuple[str, ...]
    zone: str
    """That of the job: the times of the sentences are in it."""
    occurrence: datetime | None
    """What the answer is about; None: the schedule does not fall on that time."""
    run: Run | None
    """The one the answer is about."""
    before: datetime | None
    """The nearest occurrences of the job as it is now."""
    after: datetime | None


def explain(job: Job, instant: datetime, *, tell_nodes: bool = True) -> Answer:
    """``instant``, aware: a whole minute means that minute, any other the second. If it is given in the job's own zone, it may be
    one that the clocks there skip. ``tell_nodes``: whether who asks may hear of the nodes. Raises ``ValueError`` for an instant
    that is naive or far off."""
    if instant.utcoffset() is None:
        raise ValueError(f"{instant.isoformat()} has no time zone (allowed: an aware datetime)")
    if not BEGIN <= instant < END:
        raise ValueError(f"{instant.isoformat()} is out of range (allowed: years 1970 to 2199)")
    asked = Inquiry(job, instant, tell_nodes=tell_nodes)
    occurrences = _occurrences(asked)
    occurrence = occurrences[0] if occurrences else None
    run, verdict, sentences = _what_became(asked, occurrence)
    later = occurrences[1] if len(occurrences) > 1 else asked.nearby.after
    return Answer(
        verdict,
        (*_notes(asked, occurrences), *sentences, *_by_hand(asked)),
        asked.zone.key,
        occurrence,
        run or next(iter(asked.by_hand), None),
        asked.nearby.before,
        later,
    )


def _occurrences(asked: Inquiry) -> list[datetime]:
    """Those that have a run; and those of the present definition, unless runs tell that it was another one then."""
    if asked.own and asked.was_another:
        return sorted(asked.own)
    return sorted({*asked.own, *asked.nearby.inside})


def _what_became(asked: Inquiry, occurrence: datetime | None) -> tuple[Run | None, Verdict, Sequence[str]]:
    if occurrence and (run := asked.own.get(occurrence)):
        return run, *_of_run(asked, run)
    if asked.was_another:
        if run := _standing_for(asked, occurrence or asked.asked.start):
            return run, Verdict.CHANGED, [_counts(asked, run), *changed_since(asked)]
    elif occurrence and (run := _standing_for(asked, occurrence)):
        return run, Verdict.COUNTED, list(_counted(asked, run))
    return None, *(no_occurrence(asked) if occurrence is None else without_run(asked, occurrence))


def _of_run(asked: Inquiry, run: Run) -> tuple[Verdict, list[str]]:
    if run.state not in set(State):
        text = _("Its run is in a state that does not exist: %(state)s.") % {"state": run.state}
        return Verdict.UNEXPLAINED, [text, ask_the_doctor()]
    sentences = list(in_words(run, asked.now, asked.at))
    if run.state == State.PENDING and run.due_at <= asked.now:
        sentences += who_is_there(asked)
    return Verdict(run.state), sentences


def _standing_for(asked: Inquiry, occurrence: datetime) -> Run | None:
    """The run that counts the occurrence as missed, if it was one: one of the first after it."""
    later = asked.runs.filter(trigger=Trigger.SCHEDULE, scheduled_at__gt=occurrence).order_by("scheduled_at")
    for run in later[:LATER_LOOKED_AT]:
        since = run.missed_from
        if since == occurrence or (since and since < occurrence and run.missed_before > 1):
            return run
    return None


def _counts(asked: Inquiry, run: Run) -> str:
    """What is certain if the occurrences that it counts were those of another definition."""
    text = ngettext(
        "The run of %(run)s counts %(count)d missed occurrence before it: %(since)s.",
        "The run of %(run)s counts %(count)d missed occurrences before it, from %(since)s on; when the others were is not on "
        "record.",
        run.missed_before,
    )
    said = {"run": asked.at(run.scheduled_at), "count": run.missed_before}
    return text % {**said, "since": asked.at(run.missed_from) if run.missed_from else ""}


def _counted(asked: Inquiry, run: Run) -> Iterator[str]:
    said = {"run": asked.at(run.scheduled_at), "count": run.missed_before}
    text = ngettext(
        "It was missed and has no run of its own: the run of %(run)s stands for it.",
        "It was missed and has no run of its own: the run of %(run)s stands for it, and for %(count)d missed occurrences in all.",
        run.missed_before,
    )
    yield text % said
    if claimed_late(run):
        yield _("No node considered it before %(claimed)s.") % {"claimed": asked.at(run.claimed_at)}
    if run.state == State.MISSED and run.reason:
        yield _("On record: %(reason)s") % {"reason": run.reason}


def _notes(asked: Inquiry, occurrences: list[datetime]) -> Iterator[str]:
    if asked.asked.note:
        yield asked.asked.note
    elif note := stands_for(occurrences[0], asked.zone, asked.timetable) if occurrences else "":
        yield note
    if (number := len(occurrences)) > 1:
        text = ngettext(
            "%(count)d occurrence falls in that minute; this is about the first, %(first)s.",
            "%(count)d occurrences fall in that minute; this is about the first, %(first)s.",
            number,
        )
        yield text % {"count": number, "first": asked.at(occurrences[0])}


def _by_hand(asked: Inquiry) -> Iterator[str]:
    chained = sum(run.trigger == Trigger.CHAIN for run in asked.by_hand)
    if chained:
        text = ngettext(
            "%(count)d run was made at that time by the end of another job's run.",
            "%(count)d runs were made at that time by the ends of other jobs' runs.",
            chained,
        )
        yield text % {"count": chained}
    if number := len(asked.by_hand) - chained:
        text = ngettext(
            "%(count)d run was made by hand at that time.",
            "%(count)d runs were made by hand at that time.",
            number,
        )
        yield text % {"count": number}
