"""A freeze of scheduling in one or all namespaces, with a reason and an optional end.

``policies.freezing`` defines which runs a freeze holds back.

Invariants:

- The table has one row for each namespace that was ever frozen, and one for freezes of all
  namespaces. A row remains after its freeze has ended. So each check is one query of a small
  table.
- Only ``jobs.freezing`` writes the rows.
"""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import Exists, OuterRef, Q
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_dcron.db.now import UtcNow
from django_dcron.models.exact_text import ExactCharField, ExactText
from django_dcron.policies.freezing import ALL_NAMESPACES, FreezeExtent


class FreezeQuerySet(models.QuerySet["Freeze"]):
    def in_force(self) -> FreezeQuerySet:
        """Freezes that haven't ended, by the database's clock."""
        return self.filter(Q(until=None) | Q(until__gt=UtcNow()))

    def covering(self, namespace: Any) -> FreezeQuerySet:
        """Freezes of this namespace and of all namespaces. Also takes an SQL expression."""
        return self.filter(Q(namespace=ALL_NAMESPACES) | Q(namespace=namespace))


class Freeze(models.Model):
    namespace = ExactCharField(
        _("namespace"),
        max_length=64,
        unique=True,
        blank=True,
        help_text=_("The namespace whose jobs don't start. Empty: all namespaces."),
    )
    reason = models.CharField(
        _("reason"), max_length=255, help_text=_("Why scheduling is frozen, such as deploy.")
    )
    frozen_by = models.CharField(_("frozen by"), max_length=150, blank=True)
    since = models.DateTimeField(_("since"))
    until = models.DateTimeField(
        _("until"),
        null=True,
        blank=True,
        help_text=_("The end, by the database's clock. Empty: until someone ends the freeze."),
    )
    ended_by = models.CharField(
        _("ended by"), max_length=150, blank=True, help_text=_("Empty if the end was planned.")
    )

    replaced: Freeze | None = None
    """The freeze in force that this one replaced or extended. Only ``freeze`` sets it."""

    objects = FreezeQuerySet.as_manager()

    class Meta:
        verbose_name = _("freeze")
        verbose_name_plural = _("freezes")
        ordering = ("namespace",)
        default_permissions = ()
        permissions = (("freeze_jobs", _("Can freeze and unfreeze scheduling")),)

    def __str__(self) -> str:
        return self.namespace or gettext("All namespaces")

    @property
    def extent(self) -> FreezeExtent:
        return FreezeExtent(self.namespace, self.since, self.until)


def namespace_is_frozen(namespace: Any) -> Exists:
    """Return the condition that a freeze of ``namespace``, a ``Placeholder``, is in force."""
    return Exists(Freeze.objects.in_force().covering(namespace))


def job_is_frozen(job: str, namespace: str, at: str = "") -> Exists:
    """Return the condition that a freeze in force holds back a row's job.

    ``job`` and ``namespace`` name the fields that lead to the job's key and its namespace. ``at``
    names a field with a time: the freeze must end after it.
    """
    # MariaDB caches the results of a subquery by the outer columns, which it compares without
    # regard to case. With the key, each job has its own result.
    key = models.ExpressionWrapper(OuterRef(job), output_field=models.BigIntegerField())
    freezes = Freeze.objects.in_force().covering(ExactText(OuterRef(namespace)))
    if at:
        freezes = freezes.filter(Q(until=None) | Q(until__gt=OuterRef(at)))
    return Exists(freezes.alias(job_key=key).filter(job_key__gte=0))
