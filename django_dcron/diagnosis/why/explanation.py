"""Explain in sentences why a job ran or didn't run at a given time.

Invariants:

- Nothing is guessed. Sentences state what the rows and the audit log record, and which facts are
  unknown. If nothing explains a gap, a sentence says so.
- A run's row takes precedence over the job's current definition, which may be newer than the run.
- The current definition explains only occurrences after its cursor was placed, as in
  ``diagnosis.doctor.account``. Earlier occurrences are explained by rows and by the audit log.
- Nodes keep working during the query. The cursor is read before the runs, so each occurrence that
  the cursor has passed has its row.
- The work doesn't depend on the length of the history, with one exception. Detecting pruned rows
  counts the job's rows, but only for an occurrence that is older than all of them and that nothing
  else explains.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_dcron.diagnosis.run_history import replacing_run
from django_dcron.diagnosis.scope import EVERYTHING, Scope
from django_dcron.diagnosis.why.cluster_sentences import (
    after_freeze,
    doctor_sentence,
    freeze_sentences,
    node_sentences,
    start_after_freeze,
    worker_sentences,
)
from django_dcron.diagnosis.why.explanation_data import ExplanationData
from django_dcron.diagnosis.why.nearby import MOVED_SHOWN
from django_dcron.diagnosis.why.no_run import (
    ExplainedOccurrence,
    changed_since,
    explain_missing_run,
    explain_no_occurrence,
)
from django_dcron.diagnosis.why.other_jobs import other_jobs_sentences
from django_dcron.diagnosis.why.other_runs import (
    blocking_run_sentences,
    other_run_sentences,
    other_runs_at_time,
    rerun_sentences,
    running_run_sentences,
)
from django_dcron.diagnosis.why.requested_time import occurrence_note
from django_dcron.diagnosis.why.run_sentences import (
    claimed_late,
    late_claim_sentence,
    reason_sentence,
    run_sentences,
    started_late,
)
from django_dcron.diagnosis.why.sentence import Sentence
from django_dcron.diagnosis.why.verdicts import WhyVerdict
from django_dcron.models import Job, Run
from django_dcron.policies.freezing import AUTOMATIC
from django_dcron.policies.lifecycle import STARTABLE, State, Trigger
from django_dcron.schedules.timetable import BEGIN, END
from django_dcron.targets.shadow import NOT_EXECUTED

LATER_READ_LIMIT = 10

DETAILS_OF_FREEZE = {"freeze_reason", "freeze_ends", "freeze_ended"}
"""The codes of the sentences that follow the first one about a freeze (``freeze_sentences``)."""

NOTHING_DUE = (WhyVerdict.NO_OCCURRENCE, WhyVerdict.NOT_CREATED, WhyVerdict.NOT_DUE)
"""Verdicts about a time at which no occurrence was due."""


@dataclass(frozen=True, slots=True)
class Answer:
    instant: datetime
    """The time that the answer is about."""
    verdict: WhyVerdict
    sentences: tuple[Sentence, ...]
    zone: str
    """The job's time zone. The sentences add the site's time if it differs."""
    occurrence: datetime | None
    """The occurrence that the answer is about; None if the schedule doesn't match the time."""
    run: Run | None
    """The run that the answer is about: that of the occurrence, or else the only other run."""
    other_runs: tuple[Run, ...]
    """The first runs without an occurrence at the time. Reruns of runs at the time aren't included.
    """
    before: datetime | None
    """The nearest earlier occurrence of the job's current definition."""
    after: datetime | None
    """The nearest later occurrence of the job's current definition."""

    @property
    def has_run_at_time(self) -> bool:
        """Whether ``run`` is at the time in question, not a later run that counts it as missed."""
        if self.run is None:
            return bool(self.other_runs)
        return self.instant <= self.run.scheduled_at < self.instant + timedelta(minutes=1)

    @property
    def is_unexecuted(self) -> bool:
        """Whether the verdict is the success of a shadow's run, which executed nothing."""
        if self.run is None or self.verdict is not WhyVerdict.SUCCEEDED:
            return False
        return self.run.reason == NOT_EXECUTED


def explain(
    job: Job,
    instant: datetime,
    *,
    show_nodes: bool = True,
    scope: Scope = EVERYTHING,
    exact: bool = False,
) -> Answer:
    """Explain what happened at ``instant``, an aware time.

    If ``instant`` is a whole minute, the answer is about that minute, otherwise about that second.
    With ``exact``, it is always about the second. ``instant`` may be a local time that the clocks
    of the job's zone skip. With ``show_nodes``, the sentences may name nodes. They name only runs
    in ``scope``, but the run of the occurrence may be outside of it.

    Raises ``ValueError`` for an instant that is naive or out of range.
    """
    if instant.utcoffset() is None:
        raise ValueError(f"{instant.isoformat()} has no time zone (allowed: an aware datetime)")
    if not BEGIN <= instant < END:
        raise ValueError(f"{instant.isoformat()} is out of range (allowed: years 1970 to 2199)")
    data = ExplanationData(job, instant, show_nodes=show_nodes, scope=scope, exact=exact)
    occurrences = _occurrences(data)
    occurrence = occurrences[0] if occurrences else None
    found = _outcome_of(data, occurrence)
    later = occurrences[1] if len(occurrences) > 1 else data.nearby.after
    others = other_runs_at_time(data, found.run)
    only = others[0] if len(others) == 1 and not data.has_more_other_runs else None
    sentences = [*_notes(data, occurrences), *found.sentences, *other_run_sentences(data, others)]
    if found.run is None and only is not None:
        sentences += rerun_sentences(data, only)
    return Answer(
        instant,
        found.verdict,
        tuple(sentences),
        data.zone.key,
        occurrence,
        found.run or only,
        tuple(others),
        data.nearby.before,
        later,
    )


def explain_local(
    job: Job,
    in_job_zone: datetime,
    in_site_zone: datetime,
    *,
    show_nodes: bool = True,
    scope: Scope = EVERYTHING,
) -> Answer:
    """Explain a local time, given in the job's and in the site's time zone.

    A user may have copied the time from a list, which shows the site's zone. The answer is about
    the time in the job's zone, unless the job has a run or a due occurrence only at the time in the
    site's zone. A future occurrence in the site's zone counts only if the schedule doesn't match
    the time in the job's zone. Raises ``ValueError`` like ``explain``.
    """
    answer = explain(job, in_job_zone, show_nodes=show_nodes, scope=scope)
    has_run = answer.run is not None or answer.other_runs
    has_nothing = not has_run and answer.verdict in NOTHING_DUE
    if in_site_zone != in_job_zone and has_nothing:
        other = explain(job, in_site_zone, show_nodes=show_nodes, scope=scope)
        is_due = other.verdict is not WhyVerdict.NOT_DUE
        is_better = other.verdict is not answer.verdict and (is_due or answer.occurrence is None)
        if other.has_run_at_time or (other.occurrence is not None and is_better):
            return other
    return answer


def _occurrences(data: ExplanationData) -> list[datetime]:
    """Return the occurrences in the requested time: those with a run, and those of the definition.

    If there are runs and the current definition may be newer, only the occurrences with a run
    count.
    """
    if data.runs_by_occurrence and data.definition_may_be_newer:
        return sorted(data.runs_by_occurrence)
    return sorted({*data.runs_by_occurrence, *data.nearby.inside})


def _outcome_of(data: ExplanationData, occurrence: datetime | None) -> ExplainedOccurrence:
    if occurrence and (run := data.runs_by_occurrence.get(occurrence)):
        return run_outcome(data, run)
    if data.definition_may_be_newer:
        if run := _counting_run(data, occurrence or data.requested.start):
            sentences = [_counted_under_other_definition(data, run), *changed_since(data)]
            return ExplainedOccurrence(WhyVerdict.CHANGED, sentences, run)
    elif occurrence and (run := _counting_run(data, occurrence)):
        causes = _causes_of_delay(data, occurrence, run.claimed_at)
        sentences = _with_causes(data, occurrence, [*_counted_sentences(data, run)], causes)
        return ExplainedOccurrence(WhyVerdict.COVERED, sentences, run)
    if occurrence is None:
        return explain_no_occurrence(data)
    return explain_missing_run(data, occurrence)


def run_outcome(
    data: ExplanationData, run: Run, *, stated: Sequence[Sentence] = ()
) -> ExplainedOccurrence:
    """Explain the run's state.

    Sentences about freezes, nodes and workers are left out if they are in ``stated``.
    """
    if run.state not in set(State):
        unknown = Sentence(
            "unknown_state", _("The run has an unknown state: %(state)s."), state=run.state
        )
        return ExplainedOccurrence(WhyVerdict.UNEXPLAINED, [unknown, doctor_sentence()], run)
    sentences = [*run_sentences(run, data.job, data.now, data.format_time)]
    sentences += running_run_sentences(data, run)
    sentences += blocking_run_sentences(data, run)
    if newer := data.scope.row_if_visible(replacing_run(run)):
        text = _("The newer run at %(run_at)s (%(run_id)s) replaces this one.")
        at = data.format_time(newer.scheduled_at)
        sentences.append(Sentence("replaced_by_newer", text, run_at=at, run_id=str(newer.pk)))
    sentences += rerun_sentences(data, run)
    causes = [each for each in _external_causes(data, run) if each not in stated]
    sentences = _with_causes(data, run.scheduled_at, sentences, causes)
    return ExplainedOccurrence(WhyVerdict(run.state), sentences, run)


def _with_causes(
    data: ExplanationData,
    occurrence: datetime,
    sentences: list[Sentence],
    causes: Iterable[Sentence],
) -> list[Sentence]:
    """Add the causes at the end, but freezes before the late claim that they explain."""
    late = next((n for n, each in enumerate(sentences) if each.code == "claimed_late"), None)
    if late is None:
        return [*sentences, *causes]
    delaying = [next(freeze_sentences(data, [each])) for each in data.delaying_freezes(occurrence)]
    causes_of_claim: list[Sentence] = []
    other_causes: list[Sentence] = []
    explains_claim = False
    for cause in causes:
        if cause.code not in DETAILS_OF_FREEZE:
            explains_claim = cause in delaying
        (causes_of_claim if explains_claim else other_causes).append(cause)
    return [*sentences[:late], *causes_of_claim, *sentences[late:], *other_causes]


def _external_causes(data: ExplanationData, run: Run) -> Iterable[Sentence]:
    """Explain which freezes, nodes or workers affect the run."""
    may_be_frozen = run.state in STARTABLE and run.trigger in AUTOMATIC
    if may_be_frozen and (freezes := data.freezes_in_force()):
        is_occurrence = run.trigger == Trigger.SCHEDULE and run.attempt == 1
        after = after_freeze(data.job) if is_occurrence else start_after_freeze()
        return [*freeze_sentences(data, freezes), after]
    if run.state == State.QUEUED:
        return worker_sentences(data, run)
    if run.state == State.PENDING and run.dispatched_at:
        return [*node_sentences(data), *worker_sentences(data, run)]
    if run.state == State.PENDING and run.due_at <= data.now:
        return node_sentences(data)
    may_be_delayed = run.trigger != Trigger.BACKFILL  # which waits until a node releases it
    if run.state == State.MISSED or (may_be_delayed and started_late(run)):
        ended = run.finished_at if run.state == State.MISSED else run.started_at
        is_automatic = run.trigger in AUTOMATIC
        return _causes_of_delay(data, run.due_at, ended or data.now, may_be_frozen=is_automatic)
    return freeze_sentences(data, data.past_freezes(run.due_at)) if claimed_late(run) else []


def _causes_of_delay(
    data: ExplanationData, due_at: datetime, ended: datetime, *, may_be_frozen: bool = True
) -> Iterable[Sentence]:
    """Name the freezes that affected an occurrence between ``due_at`` and ``ended``.

    Unless one of them has delayed it from the beginning, compare it with the runs of other jobs.
    """
    freezes = data.freezes_met(due_at, until=ended) if may_be_frozen else []
    sentences = [*freeze_sentences(data, freezes)]
    if any(freeze.extent.delayed(due_at) for freeze in freezes):
        return sentences
    return [*sentences, *other_jobs_sentences(data, due_at, ended)]


def _counting_run(data: ExplanationData, occurrence: datetime) -> Run | None:
    """Return the run that counts the occurrence as missed, among the first runs after it."""
    later = data.runs.filter(trigger=Trigger.SCHEDULE, scheduled_at__gt=occurrence).order_by(
        "scheduled_at"
    )
    for run in later[:LATER_READ_LIMIT]:
        since = run.missed_from
        if since == occurrence or (since and since < occurrence and run.missed_before > 1):
            return run
    return None


def _counted_under_other_definition(data: ExplanationData, run: Run) -> Sentence:
    """Return what the run records about missed occurrences of an earlier definition."""
    text = ngettext(
        "The run at %(run_at)s counts %(count)d earlier missed occurrence, scheduled at %(since)s.",
        "The run at %(run_at)s counts %(count)d earlier missed occurrences, the first scheduled at "
        "%(since)s. The times of the others aren't recorded.",
        run.missed_before,
    )
    return Sentence(
        "counted_by_changed_job",
        text,
        run_at=data.format_time(run.scheduled_at),
        count=run.missed_before,
        since=data.format_time(run.missed_from) if run.missed_from else "",
    )


def _counted_sentences(data: ExplanationData, run: Run) -> Iterator[Sentence]:
    text = ngettext(
        "The occurrence was missed. The run at %(run_at)s counts it.",
        "The occurrence was missed. The run at %(run_at)s counts %(count)d missed occurrences, "
        "including this one.",
        run.missed_before,
    )
    at = data.format_time(run.scheduled_at)
    yield Sentence("counted_by_later", text, run_at=at, count=run.missed_before)
    if claimed_late(run):
        yield late_claim_sentence(run, data.format_time)
    if run.state == State.MISSED and run.reason:
        yield reason_sentence(run.reason)


def _notes(data: ExplanationData, occurrences: list[datetime]) -> Iterator[Sentence]:
    if data.requested.note:
        yield data.requested.note
    elif occurrences and (note := occurrence_note(occurrences[0], data.zone, data.timetable)):
        yield note
    moved = data.nearby.moved
    if len(moved) >= MOVED_SHOWN:  # earlier ones may exist
        text = _(
            "The occurrence also replaces at least %(count)d occurrences, which calendar "
            "“%(calendar)s” excludes."
        )
        yield Sentence("moved_here", text, count=len(moved), calendar=data.job.calendar_id)
    elif moved:
        text = ngettext(
            "The occurrence also replaces the one at %(first)s, which calendar “%(calendar)s” "
            "excludes.",
            "The occurrence also replaces %(count)d occurrences from %(first)s on, which calendar "
            "“%(calendar)s” excludes.",
            len(moved),
        )
        first = data.format_time(moved[-1])
        calendar = data.job.calendar_id
        yield Sentence("moved_here", text, count=len(moved), first=first, calendar=calendar)
    if (number := len(occurrences)) > 1:
        text = ngettext(
            "That minute has %(count)d occurrence. This answer is about the first one, %(first)s.",
            "That minute has %(count)d occurrences. This answer is about the first one, %(first)s.",
            number,
        )
        yield Sentence("several", text, count=number, first=data.format_time(occurrences[0]))
