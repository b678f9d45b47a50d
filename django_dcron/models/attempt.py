"""An attempt: one try at a run. Its row is made by the transaction that starts it: UNIQUE (run, number)."""

from __future__ import annotations

from datetime import timedelta

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_dcron.domain.lifecycle import Outcome
from django_dcron.models.run import Run

OUTCOME_LABELS = [
    (Outcome.SUCCEEDED.value, _("succeeded")),
    (Outcome.FAILED.value, _("failed")),
    (Outcome.TIMED_OUT.value, _("timed out")),
    (Outcome.LOST.value, _("lost")),
    (Outcome.CANCELLED.value, _("cancelled")),
]


class Attempt(models.Model):
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="attempts", db_index=False)
    number = models.PositiveSmallIntegerField(_("number"), help_text=_("From 1."))
    token = models.UUIDField(
        editable=False,
        help_text=_("Made by the execution that started it; tells its own writes from another's."),
    )
    worker = models.CharField(_("worker"), max_length=255)
    due_at = models.DateTimeField(_("due at"), null=True, help_text=_("For a retry, after its backoff."))
    queued_at = models.DateTimeField(_("queued at"), null=True)
    started_at = models.DateTimeField(_("started at"))
    finished_at = models.DateTimeField(_("finished at"), null=True)
    outcome = models.CharField(_("outcome"), max_length=10, choices=OUTCOME_LABELS, blank=True)
    late_outcome = models.CharField(
        _("late outcome"),
        max_length=10,
        choices=OUTCOME_LABELS,
        blank=True,
        help_text=_("What its worker reported after the attempt had been declared lost; it changed nothing."),
    )
    exception_class = models.CharField(_("exception"), max_length=255, blank=True)
    message = models.TextField(_("message"), blank=True)
    traceback = models.TextField(_("traceback"), blank=True)
    log = models.TextField(_("log"), blank=True)
    result = models.TextField(_("result"), blank=True, help_text=_("JSON; a mark says where it was cut."))
    progress_done = models.PositiveBigIntegerField(_("done"), null=True)
    progress_total = models.PositiveBigIntegerField(_("of"), null=True)
    progress_note = models.CharField(_("progress"), max_length=255, blank=True)

    class Meta:
        verbose_name = _("attempt")
        verbose_name_plural = _("attempts")
        ordering = ("run", "number")
        constraints = (models.UniqueConstraint(fields=("run", "number"), name="dcron_attempt_number"),)

    def __str__(self) -> str:
        return f"attempt {self.number}"

    @property
    def duration(self) -> timedelta | None:
        return self.finished_at - self.started_at if self.finished_at else None
