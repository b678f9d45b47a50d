"""What the undoing of a job's deletion needs (``jobs.restoring``).

Invariants:

- ``jobs.deletion`` writes the row. ``jobs.audit.retention`` deletes it with the audit entry of the
  deletion. ``jobs.restoring`` marks it when the deletion is undone.
- A deletion is undone once.
- A job whose row was loaded again, for example by ``loaddata``, may be deleted again. Then the row
  belongs to the latest deletion, and the earlier ones can't be undone.
- Values are whole. A value with secrets is omitted, because the row stays after the history has
  been erased.
"""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_dcron.models.audit_entry import LONGEST_LABEL
from django_dcron.models.exact_text import ExactCharField


class Deletion(models.Model):
    job_id = models.BigIntegerField(_("job ID"), primary_key=True)
    entry_id = models.BigIntegerField(_("audit entry"))
    """The ID of the audit entry of the deletion."""
    label = ExactCharField(_("job"), max_length=LONGEST_LABEL)
    deleted_at = models.DateTimeField(_("deleted at"))
    values = models.JSONField(
        _("values"), help_text=_("The job's fields, in the format of an export.")
    )
    phase = models.DateTimeField(
        _("phase"), null=True, help_text=_("An occurrence of the job. @every counts from it.")
    )
    restored_job_id = models.BigIntegerField(
        _("restored job"),
        null=True,
        db_index=True,
        help_text=_("The ID of the job that the undoing created. Null if it wasn't undone."),
    )

    class Meta:
        verbose_name = _("deletion")
        verbose_name_plural = _("deletions")
        default_permissions = ()
        indexes = (models.Index(fields=("label", "deleted_at"), name="dcron_deletion_label"),)

    def __str__(self) -> str:
        return self.label
