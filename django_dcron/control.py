"""The public functions for changing jobs and runs, for the admin, the command line and projects.

Each function either completes in one transaction, or raises an error that gives the reason and
changes nothing. Some functions that change many jobs or runs use a transaction for each batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from uuid import UUID

from django.db.models import prefetch_related_objects

from django_dcron.conf import settings
from django_dcron.db.contention import despite_contention
from django_dcron.db.routing import alias_for
from django_dcron.db.session_limits import brief_transaction
from django_dcron.exceptions import InvalidValue, NotPossible
from django_dcron.jobs.action_texts import STATE_NAMES
from django_dcron.jobs.audit.actor import acting_as
from django_dcron.jobs.audit.recording import AuditedChange, record_changes
from django_dcron.jobs.backfill import backfill
from django_dcron.jobs.batching import BatchResult, OnProgress, change_in_batches
from django_dcron.jobs.calendars import delete_calendar, save_calendar
from django_dcron.jobs.deletion import delete_job as delete
from django_dcron.jobs.freezing import freeze, unfreeze
from django_dcron.jobs.incidents import set_incident_state
from django_dcron.jobs.limits import delete_limit, save_limit
from django_dcron.jobs.manual_runs import rerun, trigger, trigger_many
from django_dcron.jobs.pausing import pause, pause_many, resume, resume_many
from django_dcron.jobs.preview import preview
from django_dcron.jobs.queued_reruns import latest_failed_attempt_id, rerun_failures
from django_dcron.jobs.restoring import restore
from django_dcron.jobs.reverting import revert
from django_dcron.jobs.row_arguments import require_row, require_rows
from django_dcron.jobs.saving import save, save_many
from django_dcron.jobs.upsert import update_or_create
from django_dcron.models import AuditAction, Run
from django_dcron.policies.lifecycle import FINAL, UNFINISHED, State
from django_dcron.runs import cancellation
from django_dcron.runs.bulk_cancellation import CancelledBatch, cancel_batch
from django_dcron.utils.messages import TranslatableText
from django_dcron.utils.messages import gettext_noop as _

__all__ = [
    "acting_as",
    "backfill",
    "cancel",
    "cancel_many",
    "delete",
    "delete_calendar",
    "delete_limit",
    "freeze",
    "latest_failed_attempt_id",
    "pause",
    "pause_many",
    "preview",
    "rerun",
    "rerun_failures",
    "restore",
    "resume",
    "resume_many",
    "revert",
    "save",
    "save_calendar",
    "save_limit",
    "save_many",
    "set_incident_state",
    "trigger",
    "trigger_many",
    "unfreeze",
    "update_or_create",
]

CANCELLED_AT_ONCE = 500
MAX_TRIES = 20
"""Maximum number of tries to cancel a run whose state other processes keep changing."""


def cancel(run: Run, reason: str = "cancelled manually") -> Run:
    """Cancel a run and return it, reloaded.

    A run that hasn't started ends at once. A running run gets a cancel request, and its worker
    is notified. Raises ``NotPossible`` if the run is finished or deleted, or if its state keeps
    changing.
    """
    require_row(run, Run)
    using = alias_for(Run)
    try:
        for _try in range(MAX_TRIES):
            if despite_contention(lambda: _cancel_once(run, reason), using):
                break
        else:
            raise NotPossible(
                _("%(run)s couldn't be cancelled, because its state keeps changing. Try again."),
                run=run.label,
                code="busy",
            )
        run.refresh_from_db(using=using)
    except Run.DoesNotExist:
        raise _deleted() from None
    return run


def cancel_many(
    runs: Iterable[Run],
    reason: str = "cancelled manually",
    *,
    states: Iterable[str] = UNFINISHED,
    on_progress: OnProgress | None = None,
) -> dict[int, Exception]:
    """Cancel runs as calls of ``cancel`` would, in a few statements per 500 runs.

    Each batch of runs is a transaction. Returns the errors of the refused runs by their position in
    ``runs``; the others are cancelled or asked to stop. With ``states``, such as ``{"queued"}``, a
    run that is in another state by then is refused. ``on_progress`` is called after each batch with
    the number of runs that are done. Raises ``InvalidValue`` if ``states`` isn't a list or set of
    states of unfinished runs.
    """
    using, runs, wanted = alias_for(Run), require_rows(runs, Run), _require_states(states)

    def change(batch: Sequence[Run]) -> BatchResult:
        result, rows = despite_contention(
            lambda: _cancel_batch(batch, reason, wanted, using), using
        )
        refused: dict[int, Exception] = {}
        for position, run in enumerate(batch):
            if run.pk in result.deleted:
                refused[position] = _deleted()
            elif run.pk in result.refused:
                refused[position] = _refused(run, result.refused[run.pk])
        _take_fields(batch, rows)
        return BatchResult(len(batch), refused)

    return change_in_batches(
        runs, change, using, on_progress or (lambda done: None), CANCELLED_AT_ONCE
    )


def _require_states(states: Iterable[str]) -> frozenset[str]:
    """Return the states, or raise ``InvalidValue``, as for text, although that is iterable."""
    try:
        wanted = None if isinstance(states, (str, bytes)) else frozenset(states)
    except TypeError:  # not iterable, or its items aren't hashable
        wanted = None
    if wanted is None or not wanted <= UNFINISHED:
        raise InvalidValue(
            "states",
            _("%(value)s isn't a list of states of unfinished runs (allowed: %(allowed)s)"),
            value=repr(states if wanted is None else sorted(map(str, wanted))),
            allowed=", ".join(state for state in State if state in UNFINISHED),
            code="invalid_states",
        )
    return wanted


def _cancel_batch(
    batch: Sequence[Run], reason: str, states: Collection[str], using: str
) -> tuple[CancelledBatch, dict[UUID, Run]]:
    """Cancel the runs. Also return their rows.

    The rows are read before the commit, so that no error after it refuses what is done.
    """
    with brief_transaction(using, settings.RUN_LEASE):
        result = cancel_batch({run.pk for run in batch}, reason, states)
        cancelled = {run.pk: run for run in batch if run.pk in result.changed}.values()
        prefetch_related_objects([*cancelled], "job")  # for the labels
        record_changes(
            [AuditedChange(AuditAction.CANCEL, run, reason=reason) for run in cancelled], using
        )
        return result, Run.objects.using(using).in_bulk([run.pk for run in batch])


def _take_fields(runs: Sequence[Run], rows: Mapping[UUID, Run]) -> None:
    for run in runs:
        if (row := rows.get(run.pk)) is not None:
            for field in Run._meta.concrete_fields:
                setattr(run, field.attname, getattr(row, field.attname))


def _refused(run: Run, state: State) -> NotPossible:
    if state in FINAL:
        return _finished(run, state)
    return NotPossible(
        _("%(run)s is %(state)s. Only runs in the selected states are cancelled."),
        run=run.label,
        state=TranslatableText(STATE_NAMES[state]),
        code="state",
    )


def _finished(run: Run, state: State) -> NotPossible:
    return NotPossible(
        _("%(run)s is %(state)s. Only unfinished runs can be cancelled."),
        run=run.label,
        state=TranslatableText(STATE_NAMES[state]),
        code="finished",
    )


def _deleted() -> NotPossible:
    return NotPossible(
        _("The run can't be cancelled, because it has been deleted."), code="deleted"
    )


def _cancel_once(run: Run, reason: str) -> bool:
    """Cancel the run in its current state. Return False if the state has since changed."""
    run.refresh_from_db(using=alias_for(Run))
    state = State(run.state)
    if state in FINAL:
        raise _finished(run, state)
    if state is State.RUNNING and run.cancel_requested_at is not None:
        return True
    using = alias_for(Run)
    with brief_transaction(using, settings.RUN_LEASE):
        if state is State.RUNNING:
            cancelled = cancellation.request_cancel(run.pk, reason)
        else:
            cancelled = cancellation.cancel_unstarted(run, reason)
        if cancelled:
            record_changes([AuditedChange(AuditAction.CANCEL, run, reason=reason)], using)
    return cancelled
