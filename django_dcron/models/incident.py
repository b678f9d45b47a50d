"""An incident: the failures of one job that are alike. ``policies.incidents`` defines the rules.

UNIQUE (job, fingerprint): failures that are alike share one row until the incident is pruned.
Only ``runs.incidents`` writes failures, and only it and ``jobs.incidents`` write the state.
"""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_dcron.models.job import Job
from django_dcron.policies.incidents import MESSAGE_LIMIT, IncidentState

INCIDENT_LABELS = [
    (IncidentState.OPEN.value, _("Open")),
    (IncidentState.ACKNOWLEDGED.value, _("Acknowledged")),
    (IncidentState.MUTED.value, _("Muted")),
    (IncidentState.RESOLVED.value, _("Resolved")),
]

NOT_GROUPED = 0
"""The value of ``Attempt.incident`` of a failed attempt that no node has grouped yet."""


class Incident(models.Model):
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="incidents", db_index=False)
    fingerprint = models.CharField(
        max_length=32,
        editable=False,
        help_text=_("Hash of the exception and the message without its numbers."),
    )
    exception_class = models.CharField(_("exception"), max_length=255, blank=True)
    message = models.CharField(
        _("message"),
        max_length=MESSAGE_LIMIT,
        blank=True,
        help_text=_("The first line of the latest failure's message."),
    )
    state = models.CharField(
        _("state"), max_length=12, choices=INCIDENT_LABELS, default=IncidentState.OPEN.value
    )
    count = models.PositiveBigIntegerField(
        _("failed attempts"),
        default=0,
        help_text=_("Failed attempts, also those that were retried."),
    )
    first_seen_at = models.DateTimeField(_("first seen"))
    last_seen_at = models.DateTimeField(_("last seen"))
    returned_at = models.DateTimeField(
        _("returned"), null=True, help_text=_("When it last failed again after it was resolved.")
    )
    resolved_at = models.DateTimeField(_("resolved at"), null=True)
    last_run = models.UUIDField(
        _("last run"), null=True, help_text=_("The run of the latest failure. It may be deleted.")
    )
    last_attempt = models.BigIntegerField(
        null=True,
        help_text=_("The attempt of the latest failure. Null if the run failed without one."),
    )
    trend = models.JSONField(
        _("trend"), default=list, help_text=_("Failed attempts per hour in the last 14 days.")
    )
    changed_by = models.CharField(
        _("changed by"),
        max_length=150,
        blank=True,
        help_text=_("Who set the state. Empty if a failure or a success of the job did."),
    )
    changed_at = models.DateTimeField(_("changed at"), null=True)
    note = models.CharField(
        _("note"), max_length=255, blank=True, help_text=_("Why the state was set.")
    )

    class Meta:
        verbose_name = _("incident")
        verbose_name_plural = _("incidents")
        ordering = ("-last_seen_at", "-id")
        default_permissions = ("view",)
        permissions = (("acknowledge_incident", _("Can acknowledge, mute and resolve incidents")),)
        constraints = (
            models.UniqueConstraint(
                fields=("job", "fingerprint"), name="dcron_incident_fingerprint"
            ),
        )
        indexes = (
            models.Index(fields=("state", "last_seen_at"), name="dcron_incident_state"),
            models.Index(fields=("last_seen_at", "id"), name="dcron_incident_latest"),
        )

    def __str__(self) -> str:
        return f"{self.job}: {self.title}"

    @property
    def exception(self) -> str:
        """The name of the exception without its module."""
        return self.exception_class.rpartition(".")[2]

    @property
    def title(self) -> str:
        return ": ".join(filter(None, (self.exception, self.message))) or "-"

    @property
    def is_returning(self) -> bool:
        return self.returned_at is not None and self.state != IncidentState.RESOLVED
