"""A run: one job at one ``scheduled_at``.

UNIQUE (job, scheduled_at) is promise 1. Occurrences fall on whole seconds and a run made by hand never does, so that
neither can take the other's place. ``slot`` is unique where it is set: the overlap policy's only arbiter, and the place
of a backfilled run that waits for its turn.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Collection
from datetime import datetime

from django.db import models
from django.db.models import F
from django.utils.translation import gettext_lazy as _

from django_dcron.domain.json_values import same_json
from django_dcron.domain.lifecycle import FINAL, STARTABLE, State, Trigger
from django_dcron.domain.overlap import first_turn_of
from django_dcron.models.job import Job
from django_dcron.models.statement import Given

STATE_LABELS = [
    (State.PENDING.value, _("pending")),
    (State.QUEUED.value, _("queued")),
    (State.RUNNING.value, _("running")),
    (State.WAITING.value, _("waiting")),
    (State.SUCCEEDED.value, _("succeeded")),
    (State.FAILED.value, _("failed")),
    (State.SKIPPED.value, _("skipped")),
    (State.MISSED.value, _("missed")),
    (State.CANCELLED.value, _("cancelled")),
]
TRIGGER_LABELS = [
    (Trigger.SCHEDULE.value, _("schedule")),
    (Trigger.MANUAL.value, _("by hand")),
    (Trigger.RERUN.value, _("rerun")),
    (Trigger.BACKFILL.value, _("backfill")),
    (Trigger.CHAIN.value, _("chain")),
]

REASON_LIMIT = 500


def new_run_id() -> uuid.UUID:
    """A UUID version 7 (RFC 9562): random, and ascending in time, so that inserts stay at the index's end."""
    value = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10))
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return uuid.UUID(int=value)


class RunQuerySet(models.QuerySet["Run"]):
    def pending(self) -> RunQuerySet:
        return self.filter(state=State.PENDING)

    def queued(self) -> RunQuerySet:
        return self.filter(state=State.QUEUED)

    def running(self) -> RunQuerySet:
        return self.filter(state=State.RUNNING)

    def waiting(self) -> RunQuerySet:
        return self.filter(state=State.WAITING)

    def startable(self) -> RunQuerySet:
        return self.filter(state__in=STARTABLE)

    def finished(self) -> RunQuerySet:
        return self.filter(state__in=FINAL)

    def due(self, horizon: datetime | Given) -> RunQuerySet:
        return self.filter(due_at__lte=horizon)

    def lock_holder(self, slot: int) -> Run | None:
        """The run in ``slot``, locked until the transaction ends. None also if it left as it was looked for: whoever takes the
        slot for free learns by the unique column if another was faster.

        Looked up first and locked by its key, as by whoever ends it. A lock by the slot's index takes, on MariaDB, the index
        before the row, and those two would wait for each other.
        """
        holder = self.filter(slot=slot)
        run_id = holder.order_by().values_list("pk", flat=True).first()
        return holder.select_for_update().filter(pk=run_id).first() if run_id else None

    def in_line(self, job_id: int) -> RunQuerySet:
        """The backfilled runs of the job that wait for their turn, oldest first."""
        return self.filter(slot__gte=first_turn_of(job_id), slot__lt=first_turn_of(job_id + 1)).order_by(
            "slot"
        )

    def in_shards(self, shards: Collection[int], of: int) -> RunQuerySet:
        if len(shards) == of:
            return self
        return self.alias(shard=F("job_id") % of).filter(shard__in=shards)


class Run(models.Model):
    id = models.UUIDField(primary_key=True, default=new_run_id, editable=False)
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="runs", db_index=False)
    scheduled_at = models.DateTimeField(_("scheduled at"))
    trigger = models.CharField(
        _("trigger"), max_length=8, choices=TRIGGER_LABELS, default=Trigger.SCHEDULE.value
    )
    state = models.CharField(_("state"), max_length=10, choices=STATE_LABELS, default=State.PENDING.value)
    reason = models.CharField(
        _("reason"), max_length=REASON_LIMIT, blank=True, help_text=_("Why it is in this state.")
    )
    attempt = models.PositiveSmallIntegerField(
        _("attempt"), default=1, help_text=_("The current or next one, from 1.")
    )

    args = models.JSONField(_("arguments"), null=True, help_text=_("Null: the job's own."))
    kwargs = models.JSONField(_("keyword arguments"), null=True, help_text=_("Null: the job's own."))
    idempotency_key = models.CharField(_("idempotency key"), max_length=120, null=True)
    rerun_of = models.ForeignKey("self", on_delete=models.SET_NULL, null=True, related_name="reruns")

    missed_before = models.PositiveIntegerField(
        _("missed before"),
        default=0,
        help_text=_("How many earlier occurrences this row stands for, which were not started in time."),
    )
    missed_from = models.DateTimeField(
        _("missed from"), null=True, help_text=_("The oldest of those occurrences.")
    )

    due_at = models.DateTimeField(
        _("due at"), help_text=_("Scheduled time plus jitter; for a retry, after its backoff.")
    )
    claimed_at = models.DateTimeField(_("claimed at"))
    queued_at = models.DateTimeField(_("queued at"), null=True)
    started_at = models.DateTimeField(_("started at"), null=True, help_text=_("Of the latest attempt."))
    finished_at = models.DateTimeField(_("finished at"), null=True)

    node = models.CharField(
        max_length=190, blank=True, help_text=_("The node on whose agenda it is; empty: on nobody's yet.")
    )
    deliveries = models.PositiveSmallIntegerField(_("deliveries"), default=0)
    heartbeat_at = models.DateTimeField(_("heartbeat at"), null=True)
    cancel_requested_at = models.DateTimeField(_("cancel requested at"), null=True)
    slot = models.BigIntegerField(null=True, editable=False)

    objects = RunQuerySet.as_manager()

    class Meta:
        verbose_name = _("run")
        verbose_name_plural = _("runs")
        ordering = ("-id",)
        permissions = (("cancel_run", _("Can cancel runs")), ("rerun_run", _("Can run finished runs again")))
        constraints = (
            models.UniqueConstraint(fields=("job", "scheduled_at"), name="dcron_run_occurrence"),
            models.UniqueConstraint(fields=("job", "idempotency_key"), name="dcron_run_idempotency"),
            models.UniqueConstraint(fields=("slot",), name="dcron_run_slot"),
        )
        indexes = (
            models.Index(fields=("state", "due_at"), name="dcron_run_due"),
            models.Index(
                fields=("scheduled_at", "id"), name="dcron_run_latest"
            ),  # read backwards by the admin's list
        )

    def __str__(self) -> str:
        return f"{self.job} at {self.scheduled_at:%Y-%m-%d %H:%M:%S}"

    @property
    def is_final(self) -> bool:
        return State(self.state) in FINAL

    @property
    def has_other_arguments(self) -> bool:
        """Whether its arguments differ from the job's."""
        own = ((self.args, self.job.args), (self.kwargs, self.job.kwargs))
        return any(mine is not None and not same_json(mine, jobs) for mine, jobs in own)

    @property
    def handed_over_at(self) -> datetime | None:
        """When the current attempt was: ``queued_at`` stays through a retry, ``deliveries`` counts anew."""
        return self.queued_at if self.deliveries else None
