"""An alert for one channel: written where something is noticed, sent later, and kept for a while as a record.

UNIQUE (channel, key): what two nodes notice is told once. ``try_at`` is null for what is over, sent or given up.
"""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_dcron.domain.alerting import Kind
from django_dcron.models.job import Job

KIND_LABELS = [
    (Kind.FAILED.value, _("failed")),
    (Kind.RECOVERED.value, _("recovered")),
    (Kind.MISSED.value, _("missed")),
    (Kind.PAUSED.value, _("paused itself")),
    (Kind.LATE.value, _("late")),
    (Kind.SILENT.value, _("silent")),
    (Kind.NODE_LOST.value, _("node lost")),
    (Kind.DEGRADED.value, _("degraded")),
    (Kind.UNHEALTHY.value, _("unhealthy")),
]


class Alert(models.Model):
    channel = models.CharField(_("channel"), max_length=64)
    kind = models.CharField(_("about"), max_length=10, choices=KIND_LABELS)
    key = models.CharField(max_length=190, editable=False, help_text=_("What it is about, told once."))
    job = models.ForeignKey(Job, on_delete=models.SET_NULL, null=True, related_name="+")
    subject = models.CharField(_("subject"), max_length=255)
    text = models.TextField(_("text"), blank=True)
    created_at = models.DateTimeField(_("created at"))
    try_at = models.DateTimeField(_("to be sent at"), null=True)
    tries = models.PositiveIntegerField(_("tries"), default=0)
    claim = models.UUIDField(null=True, editable=False, help_text=_("Of whoever is sending it."))
    sent_at = models.DateTimeField(_("sent at"), null=True)
    error = models.TextField(_("error"), blank=True, help_text=_("Why it was not sent."))

    class Meta:
        verbose_name = _("alert")
        verbose_name_plural = _("alerts")
        ordering = ("-id",)
        constraints = (models.UniqueConstraint(fields=("channel", "key"), name="dcron_alert_key"),)
        indexes = (
            models.Index(fields=("try_at",), name="dcron_alert_due"),
            models.Index(fields=("channel", "sent_at"), name="dcron_alert_sent"),
        )

    def __str__(self) -> str:
        return self.subject
