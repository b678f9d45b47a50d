"""The row of a lock. Only ``locks.database`` reads and writes it.

One row is no lock: ``scheduler.outages`` stores the time of the nodes' last clean stop in it.
"""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from django_dcron.db.now import UtcNow
from django_dcron.models.exact_text import ExactCharField


class LockLeaseQuerySet(models.QuerySet["LockLease"]):
    def takeable(self, holder: str) -> LockLeaseQuerySet:
        """Leases that ``holder`` may take or renew: its own, released and expired ones."""
        return self.filter(Q(holder__in=[holder, ""]) | Q(expires_at__lte=UtcNow()))

    def held(self) -> LockLeaseQuerySet:
        return self.exclude(holder="").filter(expires_at__gt=UtcNow())


class LockLease(models.Model):
    name = ExactCharField(_("name"), primary_key=True, max_length=190)
    holder = ExactCharField(
        _("holder"), max_length=190, blank=True, help_text=_("Empty if the lock is released.")
    )
    expires_at = models.DateTimeField(_("expires at"), help_text=_("By the database's clock."))

    objects = LockLeaseQuerySet.as_manager()

    class Meta:
        verbose_name = _("lock lease")
        verbose_name_plural = _("lock leases")
        default_permissions = ()
        # No index in addition to the primary key: see locks.database on deadlocks.

    def __str__(self) -> str:
        return str(self.name)
