"""An alert for one channel: created when an event is detected, sent later, kept for a while.

UNIQUE (channel, key): if two nodes detect an event, one alert is sent. ``try_at`` is null once the
alert was sent or given up.
"""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_dcron.models.incident import Incident
from django_dcron.models.job import Job
from django_dcron.policies.alerting import AlertKind

KIND_LABELS = [
    (AlertKind.FAILED.value, _("Failed")),
    (AlertKind.RECOVERED.value, _("Recovered")),
    (AlertKind.MISSED.value, _("Missed")),
    (AlertKind.PAUSED.value, _("Auto-paused")),
    (AlertKind.LATE.value, _("Late")),
    (AlertKind.SILENT.value, _("No recent success")),
    (AlertKind.NODE_LOST.value, _("Node lost")),
    (AlertKind.DEGRADED.value, _("Degraded")),
    (AlertKind.UNHEALTHY.value, _("Unhealthy")),
]


class Alert(models.Model):
    channel = models.CharField(_("channel"), max_length=64)
    kind = models.CharField(_("event"), max_length=10, choices=KIND_LABELS)
    key = models.CharField(
        max_length=190,
        editable=False,
        help_text=_("Identifies the event, so that each channel gets one alert for it."),
    )
    job = models.ForeignKey(Job, on_delete=models.SET_NULL, null=True, related_name="+")
    incident = models.ForeignKey(
        Incident,
        on_delete=models.SET_NULL,
        null=True,
        related_name="+",
        help_text=_("The incident of the reported failure."),
    )
    run = models.UUIDField(
        _("run"), null=True, help_text=_("The run that the alert reports. It may be deleted.")
    )
    subject = models.CharField(_("subject"), max_length=255)
    text = models.TextField(_("text"), blank=True)
    created_at = models.DateTimeField(_("created at"))
    try_at = models.DateTimeField(_("next try at"), null=True)
    tries = models.PositiveIntegerField(_("tries"), default=0)
    claim = models.UUIDField(
        null=True, editable=False, help_text=_("Identifies the process that is sending the alert.")
    )
    sent_at = models.DateTimeField(_("sent at"), null=True)
    error = models.TextField(_("error"), blank=True, help_text=_("Why the last try failed."))

    class Meta:
        verbose_name = _("alert")
        verbose_name_plural = _("alerts")
        ordering = ("-id",)
        constraints = (models.UniqueConstraint(fields=("channel", "key"), name="dcron_alert_key"),)
        indexes = (
            models.Index(fields=("try_at",), name="dcron_alert_due"),
            models.Index(fields=("channel", "sent_at"), name="dcron_alert_sent"),
            models.Index(fields=("kind", "id"), name="dcron_alert_kind"),
        )

    def __str__(self) -> str:
        return self.subject
