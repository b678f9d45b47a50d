"""Exact text columns and comparisons, because MariaDB ignores case and accents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

if TYPE_CHECKING:
    CharField = models.CharField[str, str]
else:
    CharField = models.CharField  # generic only for type checkers


class ExactCharField(CharField):
    """A text field with exact comparison.

    MariaDB ignores case, accents and trailing spaces, so different texts could compare as equal. On
    MariaDB, the text is therefore stored as its UTF-8 bytes.
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


class ExactText(models.Func):
    """An exact text comparison.

    MariaDB's collations treat ``a`` and ``A`` as equal. ``H`` and comparisons in Python don't. Also
    use it to compare a column with an ``ExactCharField``.
    """

    template = "%(expressions)s"
    arity = 1

    def as_mysql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template="BINARY %(expressions)s", **context)
