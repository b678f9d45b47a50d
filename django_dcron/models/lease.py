"""The row of a lock. Only ``locks.database`` reads and writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from django_dcron.db.now import UtcNow

if TYPE_CHECKING:
    CharField = models.CharField[str, str]
else:
    CharField = models.CharField  # generic only for type checkers


class ExactCharField(CharField):
    """A text field with exact comparison.

    MariaDB ignores case, accents and trailing spaces, so that two holders could compare as equal.
    On MySQL and MariaDB, the text is therefore stored as its UTF-8 bytes.
    """

    def db_type(self, connection: BaseDatabaseWrapper) -> str | None:
        if connection.vendor == "mysql":
            return f"varbinary({4 * (self.max_length or 0)})"
        return super().db_type(connection)

    def get_db_prep_value(
        self, value: Any, connection: BaseDatabaseWrapper, prepared: bool = False
    ) -> Any:
        value = super().get_db_prep_value(value, connection, prepared)
        return value.encode() if connection.vendor == "mysql" and isinstance(value, str) else value

    def from_db_value(self, value: Any, expression: Any, connection: BaseDatabaseWrapper) -> Any:
        return value.decode() if isinstance(value, bytes) else value


class Exactly(models.Func):
    """An exact text comparison.

    MariaDB's collations treat ``a`` and ``A`` as equal. ``H`` and comparisons in Python don't. Also
    use it to compare a column with an ``ExactCharField``.
    """

    template = "%(expressions)s"
    arity = 1

    def as_mysql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template="BINARY %(expressions)s", **context)


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
        # No index in addition to the primary key: see locks.database on deadlocks.

    def __str__(self) -> str:
        return str(self.name)
