"""The audit log: who changed which job, run, calendar, limit, freeze or incident, when and how.

Invariants:

- An entry is written in the transaction of its change (``jobs.audit.recording``).
- Entries are never changed. Only ``jobs.audit.retention`` deletes them.
- An entry has no foreign keys, so it stays when its object or user is deleted.
- Values are redacted before they are stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from django.db import models
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from django_dcron.exceptions import NotPossible
from django_dcron.models.exact_text import ExactCharField
from django_dcron.utils.messages import gettext_noop

LONGEST_ACTOR = 150
LONGEST_ADDRESS = 255
LONGEST_LABEL = 200
LONGEST_REASON = 255


class AuditAction(models.TextChoices):
    CREATE = "create", _("Created")
    CHANGE = "change", _("Changed")
    DELETE = "delete", _("Deleted")
    PAUSE = "pause", _("Paused")
    RESUME = "resume", _("Resumed")
    TRIGGER = "trigger", _("Triggered")
    RERUN = "rerun", _("Rerun")
    BACKFILL = "backfill", _("Backfilled")
    CANCEL = "cancel", _("Cancelled")
    FREEZE = "freeze", _("Frozen")
    UNFREEZE = "unfreeze", _("Freeze ended")


class AuditKind(models.TextChoices):
    JOB = "job", _("Job")
    RUN = "run", pgettext_lazy("of a job", "Run")
    CALENDAR = "calendar", _("Calendar")
    LIMIT = "limit", _("Limit")
    FREEZE = "freeze", _("Freeze")
    INCIDENT = "incident", _("Incident")


class Via(models.TextChoices):
    ADMIN = "admin", _("Admin")
    REST = "rest", _("REST API")
    CLI = "cli", _("Command line")
    CODE = "code", _("Code")
    SCHEDULER = "scheduler", _("Scheduler")


class AuditEntryQuerySet(models.QuerySet["AuditEntry"]):
    def update(self, **values: Any) -> NoReturn:
        raise _append_only()

    def delete(self) -> NoReturn:
        raise _append_only()

    def bulk_create(
        self, objs: Iterable[AuditEntry], *args: Any, update_conflicts: bool = False, **options: Any
    ) -> list[AuditEntry]:
        if update_conflicts or len(args) > 2:  # the third positional argument is update_conflicts
            raise _append_only()
        return super().bulk_create(objs, *args, **options)

    def delete_for_retention(self, keys: list[int]) -> int:
        """Delete the entries with these keys, for ``jobs.audit.retention`` only.

        Returns the number of deleted entries.
        """
        return self.filter(pk__in=keys)._raw_delete(self.db)


class AuditEntry(models.Model):
    at = models.DateTimeField(
        _("time"), help_text=_("When the change was made, by the database's clock.")
    )
    actor = models.CharField(
        _("user"),
        max_length=LONGEST_ACTOR,
        blank=True,
        help_text=_("Empty if the scheduler, or code without a user, made the change."),
    )
    address = models.CharField(
        _("address"),
        max_length=LONGEST_ADDRESS,
        blank=True,
        help_text=_("The client's IP address, or the host of the command or node."),
    )
    via = models.CharField(_("interface"), max_length=16, choices=Via)
    action = models.CharField(_("action"), max_length=16, choices=AuditAction)
    kind = models.CharField(_("object type"), max_length=16, choices=AuditKind)
    object_id = ExactCharField(_("object ID"), max_length=120)
    label = models.CharField(
        _("object"),
        max_length=LONGEST_LABEL,
        help_text=_("The object's name at the time of the change."),
    )
    job_id = models.BigIntegerField(
        _("job ID"), null=True, help_text=_("The ID of the job, or of the run's job.")
    )
    run_id = models.UUIDField(
        _("run ID"), null=True, help_text=_("The run's ID, if the object is a run.")
    )
    version = models.PositiveIntegerField(
        _("version"), null=True, help_text=_("The object's version after the change.")
    )
    before = models.JSONField(_("before"), default=dict, help_text=_("The old values."))
    after = models.JSONField(_("after"), default=dict, help_text=_("The new values."))
    reason = models.CharField(_("reason"), max_length=LONGEST_REASON, blank=True)

    objects = AuditEntryQuerySet.as_manager()

    class Meta:
        verbose_name = _("audit entry")
        verbose_name_plural = _("audit entries")
        ordering = ("-at", "-id")
        default_permissions = ("view",)
        indexes = (
            models.Index(fields=("at", "id"), name="dcron_audit_at"),
            models.Index(fields=("kind", "object_id", "at"), name="dcron_audit_object"),
            models.Index(fields=("job_id", "at"), name="dcron_audit_job"),
        )

    def __str__(self) -> str:
        return f"{self.get_action_display()}: {self.label}"

    def save(self, *args: Any, **options: Any) -> None:
        # Positional arguments, which Django 5.2 still accepts, may force an update.
        if args or not self._state.adding or options.get("force_update"):
            raise _append_only()
        # Without this, Django updates the existing row that has the key of the instance.
        super().save(**options | {"force_insert": True})

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise _append_only()


def _append_only() -> NotPossible:
    return NotPossible(
        gettext_noop("Entries of the audit log can't be changed or deleted."), code="append_only"
    )
