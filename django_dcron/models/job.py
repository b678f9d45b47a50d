"""A job: the stored definition of what runs, when, and by which policies.

``JobSettings`` has the fields that people set. The scheduler's position is in ``Cursor``, the
outcomes are in ``Statistics``.

Use ``django_dcron.control.save`` to write a job, because that function also moves the cursor. If a
job was written in another way (``QuerySet.update``, ``loaddata``, SQL), a node moves its cursor.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.core.exceptions import ValidationError
from django.db import models
from django.utils.translation import gettext_lazy as _

from django_dcron.models.exact_text import ExactCharField
from django_dcron.models.job_settings import JobSettings
from django_dcron.models.job_states import DISABLED_BY_SYNC, EXHAUSTED, HANDOVER_REASONS
from django_dcron.models.job_validation import definition_errors
from django_dcron.models.shards import ShardedQuerySet
from django_dcron.policies.job_labels import label_of


class JobQuerySet(ShardedQuerySet["Job"]):
    job_column = "id"

    def enabled(self) -> JobQuerySet:
        return self.filter(enabled=True)


AllJobsManager = models.Manager.from_queryset(JobQuerySet)


class JobManager(AllJobsManager["Job"]):
    """The jobs that haven't been deleted."""

    def get_queryset(self) -> JobQuerySet:
        return JobQuerySet(self.model, using=self._db).filter(deleted_at=None)


class Job(JobSettings):
    declared = models.JSONField(
        _("declared in code"),
        null=True,
        editable=False,
        help_text=_(
            "The fields as last declared with @cron. Null if the job isn't declared in code. "
            "Only sync writes this column."
        ),
    )
    import_source = models.CharField(
        _("import source"),
        max_length=120,
        blank=True,
        default="",
        editable=False,
        help_text=_(
            "The scheduler that the job was imported from, such as redbeat. Only the import "
            "writes this column."
        ),
    )
    import_key = ExactCharField(  # type: ignore[misc]  # its type has no None
        _("import key"),
        max_length=190,
        null=True,
        blank=True,
        editable=False,
        help_text=_("The entry's key in the import source. Null if the job wasn't imported."),
    )
    imported = models.JSONField(
        _("imported values"),
        null=True,
        blank=True,
        editable=False,
        help_text=_(
            "The fields as last imported. Null if the job wasn't imported. A field that differs "
            "was changed here, and the next import keeps it."
        ),
    )
    version = models.PositiveIntegerField(_("version"), default=1, editable=False)
    created_at = models.DateTimeField(_("created at"), auto_now_add=True)
    updated_at = models.DateTimeField(_("updated at"), auto_now=True)
    deleted_at = models.DateTimeField(
        _("deleted at"),
        null=True,
        blank=True,
        editable=False,
        help_text=_(
            "When the job was deleted. The row stays until the last of its runs is pruned."
        ),
    )

    with_deleted = JobQuerySet.as_manager()
    objects = JobManager()

    class Meta:
        # Django's own queries must find the jobs of all runs. Read jobs with ``objects``.
        default_manager_name = "with_deleted"
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        ordering = ("namespace", "name")
        permissions = (
            ("trigger_job", _("Can run and backfill jobs")),
            ("run_job_with_arguments", _("Can run jobs with custom arguments")),
            ("pause_job", _("Can pause and resume jobs")),
        )
        constraints = (
            models.UniqueConstraint(fields=("namespace", "name"), name="dcron_job_namespace_name"),
            models.UniqueConstraint(
                fields=("import_source", "import_key"), name="dcron_job_import_key"
            ),
        )
        indexes = (models.Index(fields=("paused_until",), name="dcron_job_paused_until"),)

    def __str__(self) -> str:
        return label_of(self.namespace, self.name)

    @property
    def is_finished(self) -> bool:
        """Whether the job is disabled because its schedule has no further occurrence."""
        return not self.enabled and self.paused_until is None and self.pause_reason == EXHAUSTED

    @property
    def is_paused(self) -> bool:
        """Whether a person, code or the job's failures have disabled the job."""
        return not self.enabled and not self.is_finished

    @property
    def is_disabled_by_sync(self) -> bool:
        """Whether a sync disabled the job and nobody has paused it since."""
        return not self.enabled and self.pause_reason in DISABLED_BY_SYNC

    @property
    def awaits_handover(self) -> bool:
        """Whether an import or a handover paused the job, and the next handover enables it."""
        # An import of an export may have paused the job, too. It has no handover.
        is_imported = bool(self.import_source)
        return is_imported and not self.enabled and self.pause_reason in HANDOVER_REASONS

    def clean_fields(
        self,
        exclude: Collection[str] | None = None,
        *,
        known_calendars: Collection[str] = (),
        known_limits: Collection[str] = (),
    ) -> None:
        """Validate each field, then the definition as a whole.

        The same rules apply to the admin, code and the API. ``known_calendars`` and
        ``known_limits``: names that exist, so that no query is needed.
        """
        errors: dict[str, Any] = {}
        known = [
            field
            for field, name, names in (
                ("calendar", self.calendar_id, known_calendars),
                ("limit", self.limit_id, known_limits),
            )
            if isinstance(name, str) and name in names
        ]
        try:
            super().clean_fields({*(exclude or ()), *known})
        except ValidationError as error:
            errors = error.error_dict
        errors |= definition_errors(self, invalid={*errors, *(exclude or ())})
        if errors:
            raise ValidationError(errors)
