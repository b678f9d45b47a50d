"""The verbs for people and programs: what the admin, the command line and a project's own code call.

Each either does what it says, in one transaction, or raises an error that says why not and changes nothing.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any

from django.db import IntegrityError, transaction

from django_dcron import definition, revocation, targets
from django_dcron.backfill import backfill
from django_dcron.definition import delete, delete_calendar, save, save_calendar
from django_dcron.domain.json_values import storable
from django_dcron.domain.lifecycle import FINAL, State, Trigger
from django_dcron.domain.timetable import INSTANT
from django_dcron.exceptions import InvalidArguments, InvalidValue, NotPossible
from django_dcron.following import FOLLOWS, off_the_second
from django_dcron.handing_over import hand_over
from django_dcron.models import Cursor, Job, Run
from django_dcron.models.database import alias_for, database_now, despite_contention
from django_dcron.pausing import pause, resume
from django_dcron.phrases import Phrase
from django_dcron.phrases import gettext_noop as _

__all__ = [
    "backfill",
    "cancel",
    "delete",
    "delete_calendar",
    "pause",
    "preview",
    "rerun",
    "resume",
    "save",
    "save_calendar",
    "trigger",
]

LONGEST_KEY = 120
TRIES = 20
"""How often a verb that lost a race looks again."""


def trigger(
    job: Job,
    *,
    args: list[Any] | None = None,
    kwargs: dict[str, Any] | None = None,
    idempotency_key: str | None = None,
) -> Run:
    """Run ``job`` now, paused or not, with its own arguments or these.

    It is handed over right after the commit of the surrounding transaction. With an ``idempotency_key`` that the job has
    had before, the run made then is returned and none is made. Raises ``UnknownTarget`` or ``InvalidArguments``, also for
    arguments that JSON or a database cannot hold, or ``InvalidValue`` for a key that cannot be stored, or is a chain's.
    """
    if idempotency_key is not None:
        _check_key(idempotency_key)
    _check_storable("args", args)
    _check_storable("kwargs", kwargs)
    targets.check_arguments(
        job.target, job.args if args is None else args, job.kwargs if kwargs is None else kwargs
    )
    return _make_run(job, Trigger.MANUAL, args=args, kwargs=kwargs, idempotency_key=idempotency_key)


def _check_key(key: str) -> None:
    if not 0 < len(key) <= LONGEST_KEY:
        raise InvalidValue(
            "idempotency_key",
            _("%(key)s cannot be stored (allowed: 1 to %(most)d characters)"),
            key=repr(key),
            most=LONGEST_KEY,
        )
    if key.casefold().startswith(FOLLOWS):  # a database may not tell capitals apart
        raise InvalidValue(
            "idempotency_key",
            _("%(key)s is kept for a run that follows another one (allowed: one that does not begin so)"),
            key=repr(key),
        )


def _check_storable(field: str, value: Any) -> None:
    try:
        storable(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArguments(_("It cannot be stored: %(problem)s."), field, problem=str(error)) from None


def rerun(run: Run) -> Run:
    """Run a finished run once more, for the same occurrence, as a run of its own: with the arguments that run had of its own,
    else with the job's as they are now. Raises ``NotPossible``."""
    if not run.is_final:
        raise NotPossible(
            _("%(run)s is %(state)s; only a finished run can be run again."),
            run=str(run),
            state=Phrase(run.state),
        )
    return _make_run(
        run.job, Trigger.RERUN, args=run.args, kwargs=run.kwargs, rerun_of_id=run.rerun_of_id or run.pk
    )


def cancel(run: Run, reason: str = "cancelled by hand") -> Run:
    """End a run that has not started; ask a running one to stop, which its worker is told at once."""
    using = alias_for(Run)
    try:
        for _try in range(TRIES):
            if despite_contention(lambda: _cancel_as_it_stands(run, reason), using):
                break
        else:
            raise NotPossible(
                _("%(run)s could not be cancelled: it changes all the time; try again."), run=str(run)
            )
        run.refresh_from_db(using=using)
    except Run.DoesNotExist:
        raise NotPossible(_("The run cannot be cancelled: it was deleted meanwhile.")) from None
    return run


def _cancel_as_it_stands(run: Run, reason: str) -> bool:
    """False: it has moved on meanwhile."""
    run.refresh_from_db(using=alias_for(Run))
    state = State(run.state)
    if state in FINAL:
        raise NotPossible(
            _("%(run)s is %(state)s; only an unfinished run can be cancelled."),
            run=str(run),
            state=Phrase(run.state),
        )
    if state is State.RUNNING:
        return run.cancel_requested_at is not None or revocation.request_cancel(run.pk, reason)
    return revocation.cancel_unstarted(run, reason)


def preview(job: Job, count: int = 10, *, after: datetime | None = None) -> list[datetime]:
    """The job's next occurrences, aware UTC, as if it were enabled; it need not be saved. ``after``: an aware time to begin
    at instead of now. Raises ``InvalidSchedule``."""
    using = alias_for(Job)
    timetable = definition.timetable_of(job)
    # Not from the cursor on: it is ahead of what is claimed, and that has not come yet.
    occurrence = timetable.first_after(after or database_now(using), _phase(job, using))
    occurrences: list[datetime] = []
    while occurrence is not None and len(occurrences) < count:
        occurrences.append(occurrence)
        occurrence = timetable.next_after(occurrence)
    return occurrences


def _phase(job: Job, using: str) -> datetime | None:
    """An occurrence from which an interval counts on."""
    cursor = Cursor.objects.using(using).filter(pk=job.pk).first() if job.pk else None
    if cursor is None:
        return None
    return cursor.previous_at or (cursor.next_at if definition.stands_for(cursor, job) else None)


def _make_run(job: Job, kind: Trigger, *, idempotency_key: str | None = None, **columns: Any) -> Run:
    """Insert a run that is due now, at an instant of its own, and hand it over after the commit."""
    using = alias_for(Run)
    now = database_now(using)
    for _try in range(TRIES):
        if idempotency_key is not None:
            made = Run.objects.using(using).filter(job=job, idempotency_key=idempotency_key).first()
            if made is not None:
                return made
        try:
            with transaction.atomic(using=using):
                run = Run.objects.using(using).create(
                    job=job,
                    scheduled_at=off_the_second(now),
                    due_at=now,
                    claimed_at=now,
                    trigger=kind,
                    idempotency_key=idempotency_key,
                    **columns,
                )
        except IntegrityError:
            if not Job.objects.using(using).filter(pk=job.pk).exists():
                raise NotPossible(
                    _("%(job)s could not be triggered: it was deleted meanwhile."), job=str(job)
                ) from None
            original = columns.get("rerun_of_id")
            if original and not Run.objects.using(using).filter(pk=original).exists():
                raise NotPossible(_("The run cannot be run again: it was pruned meanwhile.")) from None
            now += INSTANT  # another run was made at this very instant, or with this key
            continue
        transaction.on_commit(partial(hand_over, run), using=using)
        return run
    raise NotPossible(
        _("%(job)s could not be triggered: too many runs at this instant; try again."), job=str(job)
    )
