"""Pause and resume jobs: on request, by auto-pause, and at the end of a pause.

Invariants:

- Each pause or resume is a change of definition: one transaction, under the job's locks, with the
  cursor (``switching``).
- A pause until T, by the database's clock, ends once, without a request, when a node checks.
- Occurrences before T don't run. Occurrences from T on belong to the job again, even if the
  node checks late or the job changes before the check.
- A node checks as far ahead as it claims, so that an occurrence at T is on time.
- A user who pauses or resumes the job before T also changes the end of the pause.
- Auto-pause affects only a job that could run. It never replaces a person's reason for a pause.
- An error in one job doesn't keep other jobs from being paused or resumed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from django.db import connections, transaction
from django.db.models import Exists, F, OuterRef, Q

from django_dcron.conf import settings
from django_dcron.db.contention import (
    despite_contention,
    is_contention,
    isolating_errors,
    skipping_if_locked,
)
from django_dcron.db.errors import UNAVAILABLE
from django_dcron.db.now import UtcNow, database_now
from django_dcron.db.routing import alias_for
from django_dcron.db.session_limits import brief_transaction
from django_dcron.exceptions import NAIVE_DATETIME, InvalidValue
from django_dcron.jobs.audit.actor import Actor, acting
from django_dcron.jobs.batching import BatchResult, OnProgress, change_in_batches
from django_dcron.jobs.locking import lock_job
from django_dcron.jobs.row_arguments import require_row, require_rows
from django_dcron.jobs.switching import SwitchRequest, end_pauses_of, leave_paused, switch_batch
from django_dcron.models import Cursor, Job, Via
from django_dcron.models.job import JobQuerySet
from django_dcron.models.job_states import EXHAUSTED
from django_dcron.policies.lifecycle import Trigger
from django_dcron.runs import transitions
from django_dcron.schedules.timetable import END, WIDEST_OFFSET
from django_dcron.targets.shadow import is_shadow
from django_dcron.utils.batches import in_batches
from django_dcron.utils.counts import number_of
from django_dcron.utils.json_values import check_storable
from django_dcron.utils.messages import TranslatableText
from django_dcron.utils.messages import gettext_noop as _
from django_dcron.utils.time_format import format_time_to_store

logger = logging.getLogger("django_dcron.scheduler")

LONGEST_STORED_REASON = 255
"""The maximum number of characters of a stored reason, including the user's name."""
SWITCHED_AT_ONCE = 500
PAUSES_RETRIED_AT_ONCE = 20
"""The maximum number of quarantined jobs whose pauses one pass tries to end."""
PAUSES_ENDED_AT_ONCE = 100
"""The maximum number of pauses that end in one transaction, which locks their jobs."""
END_FAILED = _("the pause can't end: %(error)s (see the node's log)")
"""The stored problem of a job whose pause can't end because of an unexpected error."""
AUTO_PAUSED = "paused automatically after "
"""Prefix of the reason of an auto-pause."""


def pause(job: Job, reason: str = "", until: datetime | None = None) -> Job:
    """Pause a job, so that it has no new occurrences.

    Runs that were claimed ahead are withdrawn. Running runs continue. At ``until``, an aware
    datetime, the job resumes. By default, it stays paused. Pausing a paused job replaces reason and
    end.

    Raises ``InvalidValue`` if the reason has more than 255 characters or can't be stored, or if
    ``until`` is naive, in the past or after 2199. Raises ``NotPossible`` with ``until`` if a sync
    disabled the job or if it waits for a handover, because the end of the pause would enable it.
    Raises ``Conflict`` if the job has been deleted.
    """
    return _switch(job, _pause_of(reason, until))


def require_future(until: datetime, now: datetime) -> None:
    """Raise ``InvalidValue`` unless ``until`` is aware, after ``now`` and before the year 2200."""
    if until.utcoffset() is None:
        raise InvalidValue("until", NAIVE_DATETIME, value=until.isoformat(), code="naive")
    if until <= now:
        raise InvalidValue(
            "until",
            _("%(value)s is in the past (allowed: after now, %(now)s)"),
            value=until.isoformat(),
            now=now.isoformat(timespec="seconds"),
            code="in_the_past",
        )
    if until >= END:
        raise InvalidValue(
            "until",
            _("%(value)s is too late (allowed: before the year 2200)"),
            value=until.isoformat(),
            code="too_late",
        )


def require_text(field: str, text: str, longest: int) -> None:
    """Raise ``InvalidValue`` if the text is longer than ``longest`` or can't be stored."""
    try:
        check_storable(text)
    except ValueError as error:
        raise InvalidValue(
            field,
            _("the text can't be stored: %(problem)s"),
            problem=str(error),
            code="not_storable",
        ) from None
    if len(text) > longest:
        raise InvalidValue(
            field,
            _("%(length)d characters are too many (allowed: at most %(most)d)"),
            length=len(text),
            most=longest,
            code="invalid_length",
        )


def pause_many(
    jobs: Iterable[Job],
    reason: str = "",
    until: datetime | None = None,
    *,
    replace: bool = True,
    replace_wait: bool = False,
    on_progress: OnProgress | None = None,
) -> dict[int, Exception]:
    """Pause jobs. The results are those of calling ``pause`` for each job.

    Each batch of 500 jobs is a transaction of a few statements. Returns the errors of the refused
    jobs by their position in ``jobs``; the others are paused. Without ``replace``, a job that is
    already paused is refused and keeps its reason and end. A job that is disabled by the end of its
    schedule or by a sync isn't refused for that reason: without ``until``, it then stays paused
    until someone resumes it. With ``replace_wait``, a job that waits for a handover isn't refused
    either, so that the handover doesn't enable it. ``on_progress`` is called after each batch with
    the number of jobs that are done. Raises ``InvalidValue`` like ``pause``.
    """
    pause = _pause_of(reason, until, replaces=replace, replaces_wait=replace_wait)
    return _switch_many(jobs, pause, on_progress)


def resume(job: Job) -> Job:
    """Resume a job: it has occurrences from now on, and its consecutive failures are zero.

    Raises ``NotPossible`` if its schedule is invalid, or if it has no further occurrence and no
    backfilled run waits. Raises ``Conflict`` if the job has been deleted.
    """
    return _switch(job, SwitchRequest(enabled=True))


def resume_many(
    jobs: Iterable[Job], *, on_progress: OnProgress | None = None
) -> dict[int, Exception]:
    """Resume jobs. The results are those of calling ``resume`` for each job.

    The batches, the returned errors and ``on_progress`` are those of ``pause_many``.
    """
    return _switch_many(jobs, SwitchRequest(enabled=True), on_progress)


def is_left_to_source(job: Job) -> bool:
    """Return whether the source of an imported job still does the work, until the handover."""
    return is_shadow(job.target) or job.awaits_handover


def _pause_of(
    reason: str, until: datetime | None, *, replaces: bool = True, replaces_wait: bool = False
) -> SwitchRequest:
    require_text("reason", reason, LONGEST_STORED_REASON)
    if until is not None:
        require_future(until, database_now(alias_for(Job)))
        if abs(until.utcoffset() or timedelta()) > WIDEST_OFFSET:
            until = until.astimezone(UTC)
    return SwitchRequest(
        enabled=False, reason=reason, until=until, replaces=replaces, replaces_wait=replaces_wait
    )


def _switch(job: Job, switch: SwitchRequest) -> Job:
    require_row(job, Job)
    using = alias_for(Job)
    despite_contention(lambda: switch_batch([job], switch, using), using)
    return job


def _switch_many(
    jobs: Iterable[Job], switch: SwitchRequest, on_progress: OnProgress | None
) -> dict[int, Exception]:
    using = alias_for(Job)

    def change(batch: Sequence[Job]) -> BatchResult:
        return despite_contention(lambda: switch_batch(batch, switch, using), using)

    return change_in_batches(
        require_rows(jobs, Job), change, using, on_progress or (lambda done: None), SWITCHED_AT_ONCE
    )


def pause_failing_jobs(jobs: JobQuerySet) -> int:
    """Pause the ``jobs`` that keep failing. Returns their number.

    A job that a person has paused keeps that reason. A resumed job counts its failures from zero.
    """
    paused = 0
    for job in _failing(jobs)[:SWITCHED_AT_ONCE]:
        with isolating_errors(f"the pause of job {job}", jobs.db):
            paused += _pause_failing_job(job, jobs)
    return paused


def _failing(jobs: JobQuerySet) -> JobQuerySet:
    line = transitions.runs().waiting().filter(job=OuterRef("pk"), trigger=Trigger.BACKFILL)
    able = Q(enabled=True, cursor__enabled=True) | Q(
        Exists(line), enabled=False, pause_reason=EXHAUSTED
    )
    # An index finds the few jobs with consecutive failures above 0.
    return jobs.filter(
        able,
        statistics__consecutive_failures__gt=0,
        statistics__consecutive_failures__gte=F("pause_after_failures"),
    )


def _pause_failing_job(job: Job, jobs: JobQuerySet) -> bool:
    reason = AUTO_PAUSED + number_of(
        job.pause_after_failures or 1, "failed run", "consecutive failed runs"
    )
    with brief_transaction(jobs.db, settings.RUN_LEASE, lock=transitions.LOCK_TIMEOUT):
        if lock_job(job.pk, jobs.db) is None or not _failing(jobs.filter(pk=job.pk)).exists():
            return False  # the job changed between the query and the lock
        with acting(_scheduler):
            switch_batch([job], SwitchRequest(enabled=False, reason=reason), jobs.db)
    extra = {"event": "auto_paused", "job": str(job)}
    logger.error("job paused after failures: job=%s reason=%s", job, reason, extra=extra)
    return True


def end_pauses(jobs: JobQuerySet) -> int:
    """Resume the ``jobs`` whose pause is over or soon will be. Returns their number.

    Many pauses may end at once, and the nodes' other work must not wait for them. So they end in
    transactions of many jobs. Quarantined jobs are left to ``retry_ends_of_pauses``.
    """
    over = _with_pause_over(jobs).filter(Q(cursor__problem="") | Q(cursor=None))
    job_ids = list(over.order_by("paused_until").values_list("pk", flat=True)[:SWITCHED_AT_ONCE])
    return sum(_end_pauses(batch, jobs.db) for batch in in_batches(job_ids, PAUSES_ENDED_AT_ONCE))


def retry_ends_of_pauses(jobs: JobQuerySet) -> int:
    """Try again to resume quarantined ``jobs`` whose pause is over. Returns how many are resumed.

    They probably fail again. So nodes try less often, and each job has its own transaction.
    """
    over = _with_pause_over(jobs).filter(cursor__problem__gt="")
    job_ids = list(over.order_by("?").values_list("pk", flat=True)[:PAUSES_RETRIED_AT_ONCE])
    return sum(_end_pauses([job_id], jobs.db) for job_id in job_ids)


def forget_problems_of_pauses(jobs: JobQuerySet) -> int:
    """Clear the problems of paused ``jobs`` whose pause doesn't end now. Returns their number.

    An edit by SQL may have moved the end of a pause that couldn't end.
    """
    ends_later = Q(paused_until=None) | Q(paused_until__gt=UtcNow() + settings.LOOK_AHEAD)
    paused = jobs.filter(ends_later, enabled=False).order_by().values("pk")
    cursors = Cursor.objects.using(jobs.db).filter(pk__in=paused, enabled=False, problem__gt="")
    return cursors.update(problem="")


def _with_pause_over(jobs: JobQuerySet) -> JobQuerySet:
    """Return the paused ``jobs`` whose pause is over or will be within the look-ahead."""
    return jobs.filter(enabled=False, paused_until__lte=UtcNow() + settings.LOOK_AHEAD)


def _end_pauses(job_ids: Sequence[int], using: str) -> int:
    """End the pauses in one transaction.

    If it fails, each half is tried on its own, down to the jobs that make it fail.
    """
    try:
        with acting(_scheduler):
            ended = end_pauses_of(job_ids, using)
    except Exception as error:
        if not _concerns_one_job(error, using):
            raise
        if len(job_ids) == 1:
            _postpone(job_ids[0], error, using)
            return 0
        middle = len(job_ids) // 2
        return _end_pauses(job_ids[:middle], using) + _end_pauses(job_ids[middle:], using)
    for each in ended:
        logger.info(
            "job resumed: job=%s paused_until=%s",
            each.job,
            format_time_to_store(each.until),
            extra={"event": "resumed", "job": str(each.job), "until": each.until},
        )
    return len(ended)


def _scheduler() -> Actor:
    return Actor(via=Via.SCHEDULER)


def _concerns_one_job(error: Exception, using: str) -> bool:
    """Return whether the other jobs may succeed: the database is available to this thread."""
    connection = connections[using]
    if is_contention(error):
        return not connection.in_atomic_block  # otherwise, the error has broken the transaction
    if not isinstance(error, UNAVAILABLE):
        return True
    # The error may come from a signal receiver, which may even use another database.
    return connection.connection is not None and connection.is_usable()


def _postpone(job_id: int, error: Exception, using: str) -> None:
    """Leave the job paused, because of ``error``. A node tries again later."""
    with skipping_if_locked(f"the end of the pause of job {job_id}", using):
        if is_contention(error):
            raise error
        # Users see the problem. The text of the error may contain values they may not see.
        problem = str(TranslatableText(END_FAILED, error=type(error).__name__))
        with transaction.atomic(using=using):
            job = lock_job(job_id, using, nowait=True)
            is_over = _with_pause_over(Job.objects.using(using).filter(pk=job_id)).exists()
            is_quarantined = is_over and leave_paused(job_id, problem, using)
        if is_quarantined:
            extra = {"event": "quarantined", "job": str(job)}
            logger.error(
                "job quarantined, pause can't end: job=%s", job, exc_info=error, extra=extra
            )
