"""The counters of a job at the last check for alerts. Only ``contrib.alerts`` writes them."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_dcron.models.job import Job


class AlertCheck(models.Model):
    job = models.OneToOneField(
        Job, on_delete=models.CASCADE, primary_key=True, related_name="alert_check"
    )
    succeeded = models.PositiveBigIntegerField(_("succeeded"), default=0)
    shadow_runs = models.PositiveBigIntegerField(_("runs of a shadow"), default=0)
    failed = models.PositiveBigIntegerField(_("failed"), default=0)
    missed = models.PositiveBigIntegerField(_("missed"), default=0)
    consecutive_failures = models.PositiveIntegerField(_("consecutive failures"), default=0)
    muted = models.PositiveIntegerField(
        _("muted failures"),
        default=0,
        help_text=_(
            "How many of the consecutive failures don't count for alerts: those of muted "
            "incidents, and those of a job that wasn't enabled at the first check."
        ),
    )
    unrecovered_failures = models.PositiveIntegerField(
        _("unrecovered failures"),
        default=0,
        help_text=_(
            "The most consecutive failures since the last success, except failures of muted "
            "incidents. Resuming the job doesn't reset them."
        ),
    )
    auto_paused = models.BooleanField(_("auto-paused"), default=False)
    success_at = models.DateTimeField(
        _("last success"),
        help_text=_(
            "The latest success at the last check. Without a success, when the job was first "
            "checked."
        ),
    )

    class Meta:
        verbose_name = _("alert check")
        verbose_name_plural = _("alert checks")
        default_permissions = ()

    def __str__(self) -> str:
        return f"alert check of job {self.job_id}"
