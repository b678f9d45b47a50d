"""Describe the effect of a job's policies in sentences with the job's own values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_dcron.diagnosis.misfire_effect import misfire_effect, start_deadline_effect
from django_dcron.models import Job
from django_dcron.policies.lifecycle import State
from django_dcron.policies.overlap import OverlapPolicy
from django_dcron.policies.retention import LONGEST
from django_dcron.runs.retention import retention_of
from django_dcron.utils.durations import write_duration

MISFIRE_FIELDS = frozenset({"misfire_policy", "misfire_grace", "catchup_limit", "start_deadline"})
OVERLAP_FIELDS = frozenset({"overlap_policy", "timeout", "max_attempts"})


@dataclass(frozen=True, slots=True)
class Explanation:
    """A text of the preview that describes an effect of the policies."""

    code: str
    """Identifies the text in every language, such as ``misfire_skip``."""
    text: str


def misfire_texts(job: Job) -> Iterator[Explanation]:
    """Describe what happens to occurrences that can't start in time."""
    yield Explanation(f"misfire_{job.misfire.policy}", misfire_effect(job))
    if text := start_deadline_effect(job):
        yield Explanation("start_deadline", text)


def overlap_texts(job: Job, shortest_gap: timedelta | None) -> Iterator[Explanation]:
    """Describe what happens to an occurrence while an earlier run is unfinished.

    ``shortest_gap`` is the shortest time between two of the job's next occurrences.
    """
    texts = {
        OverlapPolicy.ALLOW: _("Runs may overlap."),
        OverlapPolicy.SKIP: _("While an earlier run is unfinished, new occurrences are skipped."),
        OverlapPolicy.QUEUE_ONE: _(
            "While an earlier run is unfinished, one occurrence waits and the others are skipped."
        ),
        OverlapPolicy.QUEUE_ALL: _(
            "While an earlier run is unfinished, all new occurrences wait. They run one after "
            "another."
        ),
        OverlapPolicy.CANCEL_RUNNING: _(
            "A new occurrence cancels an unfinished earlier run, and starts when that run has "
            "ended."
        ),
    }
    yield Explanation(f"overlap_{job.overlap}", texts[job.overlap])
    if job.is_queueing and job.overlap is not OverlapPolicy.QUEUE_ALL:
        yield Explanation("backlog_waits", _("Late occurrences wait for each other."))
    if job.timeout is not None and shortest_gap is not None and job.timeout > shortest_gap:
        text = _(
            "A run may take %(timeout)s, but the next occurrence may follow after %(gap)s, while "
            "the run is unfinished."
        ) % {
            "timeout": write_duration(job.timeout, " "),
            "gap": write_duration(shortest_gap, " "),
        }
        yield Explanation("longer_than_gap", text)
    if job.overlap is OverlapPolicy.ALLOW:
        return
    if job.max_attempts > 1:
        yield Explanation("retries", _("A run that waits for a retry is unfinished, too."))
    if job.timeout is None and job.overlap is not OverlapPolicy.CANCEL_RUNNING:
        text = _("No timeout is set, so a run that hangs blocks all later runs.")
        yield Explanation("no_timeout", text)


def retention_texts(job: Job) -> Iterator[Explanation]:
    """Describe how long finished runs are kept, with the settings as defaults."""
    retention = retention_of(job)
    keep, keep_failed = map(retention.age_of, (State.SUCCEEDED, State.FAILED))
    if keep < LONGEST:
        yield _age_text(keep, keep_failed)
    elif retention.keep_runs is None:
        yield Explanation("keep_forever", _("Finished runs are kept forever."))
    if retention.keep_runs is not None:
        text = ngettext(
            "Only the latest %(number)d run and the latest %(number)d failed run are kept.",
            "Only the latest %(number)d runs and the latest %(number)d failed runs are kept.",
            retention.keep_runs,
        )
        yield Explanation("keep_runs", text % {"number": retention.keep_runs})


def _age_text(keep: timedelta, keep_failed: timedelta) -> Explanation:
    """Describe at which age finished runs are deleted. ``LONGEST`` means never."""
    ages = {"keep": write_duration(keep, " "), "keep_failed": write_duration(keep_failed, " ")}
    if keep_failed == LONGEST:
        text = _(
            "Finished runs are deleted after %(keep)s, except failed runs. The latest run is kept."
        )
        return Explanation("keep_failed_forever", text % ages)
    text = _(
        "Finished runs are deleted after %(keep)s, failed runs after %(keep_failed)s. The latest "
        "run is kept."
    )
    return Explanation("keep_for", text % ages)
