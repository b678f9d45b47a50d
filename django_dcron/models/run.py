"""A run: one job at one ``scheduled_at``.

Invariants:

- UNIQUE (job, scheduled_at): an occurrence has at most one run.
- Occurrences fall on whole seconds, manual runs never do. So neither can take the
  ``scheduled_at`` of the other.
- UNIQUE (slot, job, slot_number): a slot belongs to at most one run. The running slot alone
  decides about overlaps (``policies.slots``).
"""

from __future__ import annotations

import os
import time
import uuid
from datetime import datetime
from typing import Any

from django.db import models
from django.db.models import Case, F, Func, OuterRef, Q, Value, When
from django.utils import translation
from django.utils.timezone import localtime
from django.utils.translation import gettext_lazy as _
from django.utils.translation import gettext_noop

from django_dcron.db.statements import Placeholder
from django_dcron.models.exact_text import ExactCharField
from django_dcron.models.freeze import job_is_frozen, namespace_is_frozen
from django_dcron.models.job import Job
from django_dcron.models.shards import ShardedQuerySet
from django_dcron.policies.freezing import AUTOMATIC
from django_dcron.policies.lifecycle import FINAL, State, Trigger
from django_dcron.policies.slots import Slot
from django_dcron.utils.json_values import same_json
from django_dcron.utils.messages import TranslatableText

STATE_LABELS = [
    (State.PENDING.value, _("Pending")),
    (State.QUEUED.value, _("Queued")),
    (State.RUNNING.value, _("Running")),
    (State.WAITING.value, _("Waiting")),
    (State.SUCCEEDED.value, _("Succeeded")),
    (State.FAILED.value, _("Failed")),
    (State.SKIPPED.value, _("Skipped")),
    (State.MISSED.value, _("Missed")),
    (State.CANCELLED.value, _("Cancelled")),
]
TRIGGER_LABELS = [
    (Trigger.SCHEDULE.value, _("Schedule")),
    (Trigger.MANUAL.value, _("Manual")),
    (Trigger.RERUN.value, _("Rerun")),
    (Trigger.BACKFILL.value, _("Backfill")),
    (Trigger.CHAIN.value, _("Chain")),
]
SLOT_LABELS = [
    (Slot.RUNNING.value, _("Running")),
    (Slot.NEXT_IN_LINE.value, _("Next in line")),
    (Slot.BACKFILL.value, _("Backfill")),
]

SHOWN_TRIGGER = Case(
    When(Q(rerun_of__isnull=False) | Q(original_deleted=True), then=Value(Trigger.RERUN.value)),
    default=F("trigger"),
)
"""The property ``Run.shown_trigger`` in queries. Lists and filters for users use one of the two."""
REASON_LIMIT = 500
JOB_DELETED = "the job was deleted"
"""The reason of a run that was cancelled because its job was deleted."""


def new_run_id() -> uuid.UUID:
    """Return a UUID version 7 (RFC 9562).

    It is random and ascends in time, so that inserts go to the end of the index.
    """
    value = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10))
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return uuid.UUID(int=value)


def claimed_ahead(now: datetime | Func) -> Q:
    """Match the undispatched runs that nodes claimed for occurrences after ``now``.

    With jitter, a run is due later than its occurrence. It isn't ahead in between.

    A cancellation by filter omits these runs: cancelling a backlog must not cancel a nightly job's
    next run.
    """
    return Q(state=State.PENDING, trigger=Trigger.SCHEDULE, attempt=1, scheduled_at__gt=now)


class RunQuerySet(ShardedQuerySet["Run"]):
    def pending(self) -> RunQuerySet:
        return self.filter(state=State.PENDING)

    def queued(self) -> RunQuerySet:
        return self.filter(state=State.QUEUED)

    def running(self) -> RunQuerySet:
        return self.filter(state=State.RUNNING)

    def waiting(self) -> RunQuerySet:
        return self.filter(state=State.WAITING)

    def waiting_for_slot(self) -> RunQuerySet:
        """The runs that wait for another run of their job. Backfilled runs aren't among them."""
        return self.waiting().filter(limited=False).exclude(trigger=Trigger.BACKFILL)

    def finished(self) -> RunQuerySet:
        return self.filter(state__in=FINAL)

    def due(self, horizon: datetime | Placeholder) -> RunQuerySet:
        return self.filter(due_at__lte=horizon)

    def not_frozen(self, namespace: Any = None) -> RunQuerySet:
        """Runs that no freeze holds back. ``namespace``: the namespace of their job, if known."""
        is_frozen = (
            namespace_is_frozen(namespace)
            if namespace
            else job_is_frozen("job_id", "job__namespace")
        )
        return self.exclude(Q(is_frozen, trigger__in=AUTOMATIC))

    def shown_as(self, *triggers: str) -> RunQuerySet:
        """The runs whose ``shown_trigger`` is one of ``triggers``."""
        return self.alias(shown_trigger_value=SHOWN_TRIGGER).filter(
            shown_trigger_value__in=triggers
        )

    def in_slot(self, slot: Slot, job_id: int | OuterRef) -> RunQuerySet:
        """The job's runs in ``slot``: at most one, except in a backfill."""
        return self.filter(slot=slot, job=job_id)

    def lock_holder(self, slot: Slot, job_id: int) -> Run | None:
        """Lock and return the job's run in ``slot`` until the transaction ends.

        Returns None if the slot is free or became free during the query. If another run then takes
        the slot before the caller does, the unique constraint raises an error.

        The run is found first and then locked by its primary key, as the end of a run does. On
        MariaDB, a lock through the slot's index locks the index before the row, so the two would
        deadlock.
        """
        holder = self.in_slot(slot, job_id)
        run_id = holder.order_by().values_list("pk", flat=True).first()
        return holder.select_for_update().filter(pk=run_id).first() if run_id else None

    def waiting_in_backfill(self, job_id: int) -> RunQuerySet:
        """The job's backfilled runs that wait for their turn, oldest first."""
        return self.in_slot(Slot.BACKFILL, job_id).order_by("slot_number")

    def waiting_in_backfill_from(self, job_id: int) -> RunQuerySet:
        """The waiting backfilled runs of the jobs from ``job_id`` on, ordered by job."""
        waiting = self.filter(slot=Slot.BACKFILL, job__gte=job_id)
        return waiting.order_by("job_id", "slot_number")


class Run(models.Model):
    id = models.UUIDField(_("ID"), primary_key=True, default=new_run_id, editable=False)
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="runs", db_index=False)
    scheduled_at = models.DateTimeField(_("scheduled at"))
    trigger = models.CharField(
        _("trigger"), max_length=8, choices=TRIGGER_LABELS, default=Trigger.SCHEDULE.value
    )
    state = models.CharField(
        _("state"), max_length=10, choices=STATE_LABELS, default=State.PENDING.value
    )
    reason = models.CharField(
        _("reason"),
        max_length=REASON_LIMIT,
        blank=True,
        help_text=_("Why the run is in this state."),
    )
    attempt = models.PositiveSmallIntegerField(
        _("attempt"), default=1, help_text=_("The current or next attempt, counted from 1.")
    )

    args = models.JSONField(_("arguments"), null=True, help_text=_("Null: the job's arguments."))
    kwargs = models.JSONField(
        _("keyword arguments"), null=True, help_text=_("Null: the job's arguments.")
    )
    idempotency_key: models.CharField[str | None, str | None] = ExactCharField(  # type: ignore[assignment, misc]  # its type has no None
        _("idempotency key"), max_length=120, null=True
    )
    rerun_of = models.ForeignKey(
        "self", on_delete=models.SET_NULL, null=True, related_name="reruns", db_index=False
    )
    original_deleted = models.BooleanField(
        default=False,
        editable=False,
        help_text=_("Whether the run is a rerun of a run that has been pruned."),
    )

    missed_before = models.PositiveIntegerField(
        _("missed before"),
        default=0,
        help_text=_("Number of earlier missed occurrences that this run counts."),
    )
    missed_from = models.DateTimeField(
        _("missed from"), null=True, help_text=_("The oldest of these occurrences.")
    )

    due_at = models.DateTimeField(
        _("due at"), help_text=_("Scheduled time plus jitter. For a retry, the end of its backoff.")
    )
    claimed_at = models.DateTimeField(_("claimed at"))
    queued_at = models.DateTimeField(
        _("queued at"),
        null=True,
        help_text=_("When the run was last dispatched, possibly for an earlier attempt."),
    )
    started_at = models.DateTimeField(
        _("started at"), null=True, help_text=_("Start of the latest attempt.")
    )
    finished_at = models.DateTimeField(_("finished at"), null=True)

    node = models.CharField(
        max_length=190,
        blank=True,
        help_text=_(
            "The node that sends the run to a worker. Empty if no node has picked it up yet."
        ),
    )
    deliveries = models.PositiveSmallIntegerField(_("deliveries"), default=0)
    heartbeat_at = models.DateTimeField(_("heartbeat at"), null=True)
    cancel_requested_at = models.DateTimeField(_("cancel requested at"), null=True)
    slot = models.CharField(
        _("slot"),
        max_length=12,
        choices=SLOT_LABELS,
        null=True,
        editable=False,
        help_text=_("The place of the run among the unfinished runs of its job."),
    )
    slot_number = models.BigIntegerField(
        default=0,
        editable=False,
        help_text=_("Orders the runs in a backfill. 0 for all other runs."),
    )
    limited = models.BooleanField(
        default=False,
        editable=False,
        help_text=_("Whether the run has a place in a limit or waits for one."),
    )

    objects = RunQuerySet.as_manager()

    class Meta:
        verbose_name = _("run")
        verbose_name_plural = _("runs")
        ordering = ("-id",)
        permissions = (
            ("cancel_run", _("Can cancel runs")),
            ("rerun_run", _("Can rerun finished runs")),
        )
        constraints = (
            models.UniqueConstraint(fields=("job", "scheduled_at"), name="dcron_run_occurrence"),
            models.UniqueConstraint(
                fields=("job", "idempotency_key"), name="dcron_run_idempotency"
            ),
            models.UniqueConstraint(fields=("slot", "job", "slot_number"), name="dcron_run_slot"),
            # On PostgreSQL, the indexes of idempotency key, slot and rerun contain only the runs
            # that have one (``use_partial_indexes`` in the migration).
            models.CheckConstraint(
                condition=Q(slot_number=0) | Q(slot=Slot.BACKFILL.value, slot__isnull=False),
                name="dcron_run_slot_number",
            ),
        )
        indexes = (
            models.Index(fields=("state", "due_at"), name="dcron_run_due"),
            # The admin's list reads this index backwards.
            models.Index(fields=("scheduled_at", "id"), name="dcron_run_latest"),
            models.Index(fields=("rerun_of",), name="dcron_run_rerun"),
        )

    def __str__(self) -> str:
        return self.label.translate(translation)

    @property
    def label(self) -> TranslatableText:
        """The job's name and the scheduled time. In logs and stored texts, it's in English."""
        time = f"{localtime(self.scheduled_at):%Y-%m-%d %H:%M:%S %Z}"
        return TranslatableText(gettext_noop("%(job)s at %(time)s"), job=str(self.job), time=time)

    @property
    def is_final(self) -> bool:
        return State(self.state) in FINAL

    @property
    def shown_trigger(self) -> Trigger:
        """What created the run, for users. Reruns that queue have the trigger of a backfill."""
        is_rerun = self.rerun_of_id is not None or self.original_deleted
        return Trigger.RERUN if is_rerun else Trigger(self.trigger)

    @property
    def shown_trigger_label(self) -> str:
        return str(dict(TRIGGER_LABELS)[self.shown_trigger])

    @property
    def has_other_arguments(self) -> bool:
        """Whether the run's arguments differ from the job's."""
        pairs = ((self.args, self.job.args), (self.kwargs, self.job.kwargs))
        return any(own is not None and not same_json(own, default) for own, default in pairs)

    @property
    def dispatched_at(self) -> datetime | None:
        """When the current attempt was dispatched, or None.

        A retry keeps ``queued_at`` but resets ``deliveries``.
        """
        return self.queued_at if self.deliveries else None

    @property
    def sent_at(self) -> datetime | None:
        """When the current attempt was last sent to a worker, or None.

        Unlike ``dispatched_at``, this includes a delivery that no longer counts, such as one before
        a freeze. A retry keeps ``queued_at`` of the attempt before it, which was sent before the
        retry was due. A run that waited for another run or a limit has no ``queued_at`` until it is
        sent again.
        """
        is_of_attempt = self.queued_at and (self.attempt == 1 or self.queued_at > self.due_at)
        return self.queued_at if self.deliveries or is_of_attempt else None
