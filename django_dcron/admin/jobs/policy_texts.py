"""What a job's policies will do, in sentences with the job's own figures."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_dcron.domain.durations import write_duration
from django_dcron.domain.lifecycle import State
from django_dcron.domain.misfire import MisfirePolicy
from django_dcron.domain.overlap import OverlapPolicy
from django_dcron.models import Job
from django_dcron.pruning import retention_of

MISFIRE_FIELDS = frozenset({"misfire_policy", "misfire_grace", "catchup_limit", "start_deadline"})
OVERLAP_FIELDS = frozenset({"overlap_policy", "timeout", "max_attempts"})
RETENTION_FIELDS = frozenset({"keep_for", "keep_failed_for", "keep_runs"})


def misfire_texts(job: Job) -> Iterator[str]:
    """What becomes of occurrences that cannot start in time."""
    texts = {
        MisfirePolicy.SKIP: _(
            "An occurrence that cannot start within %(grace)s of its time is recorded as missed and does not run."
        ),
        MisfirePolicy.RUN_LATEST: _(
            "Of the occurrences that cannot start within %(grace)s of their time only the latest runs, late; the others are "
            "counted on it."
        ),
        MisfirePolicy.RUN_ALL: _(
            "Occurrences that cannot start within %(grace)s of their time run late, oldest first, at most %(limit)d of "
            "them; the rest are recorded as missed."
        ),
    }
    grace = write_duration(job.misfire_grace)
    yield texts[job.misfire.policy] % {"grace": grace, "limit": job.catchup_limit}
    if job.start_deadline is not None:
        deadline = write_duration(job.start_deadline)
        yield _("But none starts later than %(deadline)s after it was due.") % {"deadline": deadline}


def overlap_texts(job: Job, shortest_gap: timedelta | None) -> Iterator[str]:
    """What becomes of an occurrence while an earlier run is unfinished. ``shortest_gap``: of its next occurrences."""
    texts = {
        OverlapPolicy.ALLOW: _("Runs go on side by side, however many there are."),
        OverlapPolicy.SKIP: _(
            "An occurrence that comes while an earlier run is unfinished is recorded as skipped."
        ),
        OverlapPolicy.QUEUE_ONE: _(
            "An occurrence that comes while an earlier run is unfinished waits for it; while one waits, more are skipped."
        ),
        OverlapPolicy.QUEUE_ALL: _(
            "Occurrences that come while an earlier run is unfinished wait for it, all of them, and run one after another."
        ),
        OverlapPolicy.CANCEL_RUNNING: _(
            "An occurrence that comes while an earlier run is unfinished has that one cancelled, and starts when it has ended."
        ),
    }
    yield texts[job.overlap]
    if job.timeout is not None and shortest_gap is not None and job.timeout > shortest_gap:
        yield _("This can happen: a run may take %(timeout)s, and the next may come after %(gap)s.") % {
            "timeout": write_duration(job.timeout),
            "gap": write_duration(shortest_gap),
        }
    if job.overlap is OverlapPolicy.ALLOW:
        return
    if job.max_attempts > 1:
        yield _("A run that waits for its next attempt is unfinished, too.")
    if job.timeout is None and job.overlap is not OverlapPolicy.CANCEL_RUNNING:
        yield _("There is no timeout: a run that hangs keeps all later ones from running.")


def retention_texts(job: Job) -> Iterator[str]:
    """How long its finished runs are kept, with the settings' figures where it has none of its own."""
    retention = retention_of(job)
    ages = [write_duration(retention.age_of(state)) for state in (State.SUCCEEDED, State.FAILED)]
    yield _(
        "A finished run is deleted %(keep)s after its end, a failed one %(keep_failed)s after; the latest one stays."
    ) % {
        "keep": ages[0],
        "keep_failed": ages[1],
    }
    if retention.keep_runs is not None:
        text = ngettext(
            "Of these only the latest %(number)d is kept, and of the failed ones as many.",
            "Of these only the latest %(number)d are kept, and of the failed ones as many.",
            retention.keep_runs,
        )
        yield text % {"number": retention.keep_runs}
