"""The tags of jobs: which there are, and which jobs have one. A job's tags are a JSON list of words."""

from __future__ import annotations

from typing import Any

from django.db.models import BooleanField, F, Func, JSONField, QuerySet, Value

from django_dcron.models import Job

LISTS_LOOKED_AT = 1_000
"""Different lists of tags, for the choice of words."""


class _Shares(Func):
    """Whether a JSON list has the one word of another as an item, as each database spells it."""

    output_field: BooleanField[Any, Any] = BooleanField()

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        template = "EXISTS (SELECT value FROM JSON_EACH(%(expressions)s))"
        return self.as_sql(
            compiler,
            connection,
            template=template,
            arg_joiner=") INTERSECT SELECT value FROM JSON_EACH(",
            **context,
        )

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template="(%(expressions)s)", arg_joiner=" @> ", **context)

    def as_mysql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, function="JSON_CONTAINS", **context)


def tagged(jobs: QuerySet[Job], word: str) -> QuerySet[Job]:
    return jobs.filter(_Shares(F("tags"), Value([word], JSONField())))


def words_in_use(jobs: QuerySet[Job]) -> set[str]:
    """The tags of ``jobs``; not all, if there are very many different lists of them."""
    lists = jobs.exclude(tags=[]).order_by().values_list("tags", flat=True).distinct()
    return {word for words in lists[:LISTS_LOOKED_AT] for word in words if isinstance(word, str)}
