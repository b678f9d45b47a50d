"""An imported job that was deleted here. The next import of the same source doesn't recreate it.

``jobs.deletion`` writes a row when it deletes an imported job. A handover, in either direction,
updates ``left_to_source``.
"""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_dcron.models.exact_text import ExactCharField


class DeletedImport(models.Model):
    import_source = models.CharField(_("import source"), max_length=120)
    import_key = ExactCharField(_("import key"), max_length=190)
    entry_name = models.TextField(
        _("entry name"), help_text=_("The entry's name in the import source.")
    )
    deleted_at = models.DateTimeField(_("deleted"))
    left_to_source = models.BooleanField(
        _("left to source"),
        default=False,
        help_text=_("Whether the source does the job's work, until the next handover."),
    )

    class Meta:
        verbose_name = _("deleted import")
        verbose_name_plural = _("deleted imports")
        default_permissions = ()
        constraints = (
            models.UniqueConstraint(
                fields=("import_source", "import_key"), name="dcron_deleted_import_key"
            ),
        )

    def __str__(self) -> str:
        return f"{self.import_source}: {self.entry_name}"
