"""A definition: a job's fields as a save stored them, or as a worker read them to start a run.

Invariants:

- The attempts that ran the same definition share one row (``Attempt.definition``).
- A row's content never changes. ``jobs.definitions`` writes it. ``jobs.definition_retention`` and
  ``jobs.deletion`` delete it.
- ``job_id`` isn't a foreign key. If a worker stores a row while the job is being deleted, retention
  deletes the row.
"""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class Definition(models.Model):
    id = models.UUIDField(
        _("ID"),
        primary_key=True,
        editable=False,
        help_text=_("Hash of the job and the content."),
    )
    job_id = models.BigIntegerField(_("job ID"))
    version = models.PositiveIntegerField(
        _("version"), help_text=_("The first version of the job with this definition.")
    )
    content = models.JSONField(
        _("content"), help_text=_("The job's fields, in the format of an export.")
    )
    current_since = models.DateTimeField(
        _("current since"),
        help_text=_("The latest time at which the job got this definition."),
    )

    class Meta:
        verbose_name = _("definition")
        verbose_name_plural = _("definitions")
        ordering = ("job_id", "-current_since")
        default_permissions = ()
        indexes = (models.Index(fields=("job_id", "current_since"), name="dcron_definition_job"),)

    def __str__(self) -> str:
        return f"{self.job_id}, version {self.version}"
