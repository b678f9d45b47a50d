"""Begin and end freezes of scheduling, in one namespace or in all namespaces.

Invariants:

- A freeze is one committed row. Claim, adoption, release of backfilled runs and start read it in
  their own statements, so it applies to all nodes and workers at once.
- A start that is in progress when the freeze commits may not see it. ``freeze`` waits for such
  starts, which have locked their runs. After it has returned, no run of its namespace starts,
  unless a start took longer than ``START_TIMEOUT``, which is logged.
- A freeze ends at ``until`` by the database's clock, without a request.
- Freezing a frozen namespace replaces reason and end, and keeps the beginning. Without ``replace``,
  the reason must be the same, and the later of the two ends applies.
- The freezes of a namespace and of all namespaces are independent.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.core.exceptions import ValidationError
from django.db import IntegrityError, OperationalError, transaction

from django_dcron.conf import settings
from django_dcron.db.contention import can_skip_locked_rows, despite_contention, is_contention
from django_dcron.db.now import UtcNow, database_now
from django_dcron.db.routing import alias_for
from django_dcron.db.session_limits import brief_transaction
from django_dcron.exceptions import InvalidValue, NotPossible
from django_dcron.jobs.audit.recording import AuditedChange, record_changes
from django_dcron.jobs.pausing import LONGEST_STORED_REASON, require_future, require_text
from django_dcron.jobs.representation import to_json
from django_dcron.models import AuditAction, Freeze, Job, Run
from django_dcron.models.job_fields import NAME
from django_dcron.policies.freezing import ALL_NAMESPACES, AUTOMATIC
from django_dcron.policies.lifecycle import STARTABLE
from django_dcron.runs import deliveries
from django_dcron.schedules.timetable import WIDEST_OFFSET
from django_dcron.utils.batches import in_batches
from django_dcron.utils.messages import TranslatableText
from django_dcron.utils.messages import gettext_noop as _
from django_dcron.utils.time_format import format_site_time, format_time_to_store

logger = logging.getLogger("django_dcron.control")

LONGEST_NAME = 150
LOCKED_AT_ONCE = 1000
SECOND = timedelta(seconds=1)
START_TIMEOUT = 4 * SECOND
"""How long to wait for the starts in progress. A start waits for a lock for a second at most."""


def freeze(
    reason: str,
    namespace: str | None = None,
    until: datetime | None = None,
    *,
    replace: bool = False,
    by: str = "",
) -> Freeze:
    """Freeze the scheduling of ``namespace``, by default of all namespaces, and return the freeze.

    The freeze begins when the surrounding transaction commits. Until its end, no run that comes
    from a schedule, a backfill or a chain starts. Running runs continue, and manual runs start.
    Afterwards, each job's misfire policy decides about the occurrences during the freeze, as after
    an outage.

    The freeze ends at ``until``, an aware datetime, by default when ``unfreeze`` is called.
    Freezing again with the same reason extends a freeze in force, and never shortens it: the later
    end applies. ``replace`` also allows another reason or an earlier end. ``by`` names who freezes.

    ``replaced`` of the returned freeze is the one that was in force before, or None.

    Raises ``NotPossible`` if the freeze would replace another one without ``replace``.
    Raises ``InvalidValue`` if the reason is missing, too long or not storable, if ``until`` is
    naive, in the past or after 2199, or if no job has the namespace.
    """
    using, scope = alias_for(Freeze), namespace or ALL_NAMESPACES
    require_text("reason", reason, LONGEST_STORED_REASON)
    if not reason.strip():
        raise InvalidValue("reason", _("a reason is required"), code="required")
    if scope:
        _check_namespace(scope)
    if until is not None:
        require_future(until, database_now(using))
        if abs(until.utcoffset() or timedelta()) > WIDEST_OFFSET:
            until = until.astimezone(UTC)
    frozen = despite_contention(
        lambda: _freeze(scope, reason.strip(), until, replace, by, using), using
    )
    # A lambda, because Django can't log the error of a ``partial``.
    transaction.on_commit(lambda: await_starts(scope, using), using=using, robust=True)
    logger.info(
        "scheduling frozen: namespace=%s until=%s reason=%s",
        scope or "*",
        format_time_to_store(frozen.until) if frozen.until else None,
        frozen.reason,
        extra={"event": "frozen", "namespace": scope, "until": frozen.until},
    )
    return frozen


def _check_namespace(namespace: str) -> None:
    """Refuse a namespace without jobs, because it is probably a typo."""
    try:
        NAME(namespace)
        known = Job.objects.using(alias_for(Job)).filter(namespace=namespace)
        # Some databases compare texts without regard to case.
        exists = namespace in known.order_by().values_list("namespace", flat=True).distinct()
    except ValidationError:
        exists = False
    if not exists:
        raise unknown_namespace(namespace)


def unknown_namespace(namespace: str) -> InvalidValue:
    """Return the error that no job has ``namespace``."""
    return InvalidValue(
        "namespace",
        _("no job has the namespace %(namespace)s"),
        namespace=ascii(namespace),
        code="unknown_namespace",
    )


def _require_same_reason(freeze: Freeze, reason: str) -> None:
    """Raise ``NotPossible`` if the freeze in force has another reason."""
    if reason == freeze.reason:
        return
    end = format_site_time(freeze.until) if freeze.until else TranslatableText(_("someone ends it"))
    raise NotPossible(
        _(
            "A freeze is in force until %(until)s (%(by)s: %(reason)s). Another reason replaces "
            "it, which you must confirm."
        ),
        code="already_frozen",
        until=end,
        by=freeze.frozen_by or TranslatableText(_("Someone")),
        reason=freeze.reason,
    )


def _freeze(
    scope: str, reason: str, until: datetime | None, replace: bool, by: str, using: str
) -> Freeze:
    new = {"reason": reason, "until": until, "frozen_by": by[:LONGEST_NAME], "ended_by": ""}
    with transaction.atomic(using=using):
        frozen = _write_freeze(scope, new, replace, using)
        after = {"until": to_json(frozen.until)} if frozen.until else {}
        record_changes(
            [AuditedChange(AuditAction.FREEZE, frozen, after=after, reason=reason)], using, by=by
        )
    return frozen


def _write_freeze(scope: str, new: dict[str, Any], replace: bool, using: str) -> Freeze:
    rows = Freeze.objects.using(using)
    # The row is created first, so that two concurrent calls lock the same row.
    try:
        with transaction.atomic(using=using):
            return rows.create(namespace=scope, since=database_now(using), **new)
    except IntegrityError:
        rows.select_for_update().get(namespace=scope)
    current = rows.in_force().filter(namespace=scope).first()
    if current is None:
        new |= {"since": database_now(using)}
    elif not replace:
        _require_same_reason(current, new["reason"])
        new |= {"until": _later_end(current.until, new["until"])}
    rows.filter(namespace=scope).update(**new)
    frozen = rows.get(namespace=scope)
    frozen.replaced = current
    return frozen


def _later_end(first: datetime | None, second: datetime | None) -> datetime | None:
    """Return the later of two ends, of which None is never."""
    return None if first is None or second is None else max(first, second)


def await_starts(scope: str, using: str) -> None:
    """Wait until all starts in progress of the scope's runs have been committed or undone."""
    if not can_skip_locked_rows(using):
        return  # without row locks, no other process writes during a commit
    runs = Run.objects.using(using).filter(state__in=STARTABLE, trigger__in=AUTOMATIC)
    due = runs.due(database_now(using) + SECOND).order_by()
    if scope:
        due = due.filter(job__namespace=scope)
    run_ids = list(due.values_list("pk", flat=True))
    for batch in in_batches(run_ids, LOCKED_AT_ONCE):
        # Only finds out which runs are locked: the locks on the others are released at once.
        with deliveries.lock_unlocked(batch) as free:
            pass
        _await_locked([run_id for run_id in batch if run_id not in free], using)


def _await_locked(run_ids: list[UUID], using: str) -> None:
    if not run_ids:
        return
    locked = Run.objects.using(using).filter(pk__in=run_ids).select_for_update()
    try:
        with brief_transaction(using, settings.RUN_LEASE, lock=START_TIMEOUT):
            list(locked.order_by("pk").values_list("pk"))
    except OperationalError as error:
        if not is_contention(error):
            raise
        logger.warning(
            "starts in progress during freeze: runs=%d; one of them may still start",
            len(run_ids),
            extra={"event": "starts_in_progress", "runs": len(run_ids)},
        )


def unfreeze(namespace: str | None = None, *, reason: str | None = None, by: str = "") -> Freeze:
    """End the freeze of ``namespace``, by default the one of all namespaces, and return it.

    Nodes continue within a tick. ``reason``: don't end a freeze with another reason, which may be
    that of someone else. ``by`` names who ends the freeze. Raises ``NotPossible`` if there is no
    such freeze.
    """
    using, scope = alias_for(Freeze), namespace or ALL_NAMESPACES
    rows = Freeze.objects.using(using)
    with transaction.atomic(using=using):
        current = rows.in_force().filter(namespace=scope).select_for_update().first()
        if current is None:
            if scope:
                text, values = _("The namespace %(namespace)s isn't frozen."), {"namespace": scope}
            else:
                text, values = _("There is no freeze of all namespaces."), {}
            raise NotPossible(text, code="not_frozen", **values)
        # Some databases compare texts without regard to case.
        if reason is not None and reason.strip() != current.reason:
            raise NotPossible(
                _("The freeze in force has another reason (%(by)s: %(reason)s)."),
                code="other_reason",
                by=current.frozen_by or TranslatableText(_("Someone")),
                reason=current.reason,
            )
        rows.filter(pk=current.pk).update(until=UtcNow(), ended_by=by[:LONGEST_NAME])
        ended = rows.get(pk=current.pk)
        record_changes(
            [AuditedChange(AuditAction.UNFREEZE, ended, reason=ended.reason)], using, by=by
        )
    logger.info(
        "scheduling unfrozen: namespace=%s",
        scope or "*",
        extra={"event": "unfrozen", "namespace": scope},
    )
    return ended
