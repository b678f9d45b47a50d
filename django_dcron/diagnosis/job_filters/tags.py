"""Query the tags of jobs. A job's tags are a JSON list of strings."""

from __future__ import annotations

from collections import Counter
from typing import Any

from django.db.models import BooleanField, Count, F, Func, JSONField, QuerySet, Value

from django_dcron.models import Job

LISTS_READ_LIMIT = 1_000
"""The maximum number of distinct tag lists to read for the tag filter and its counts."""


class _JsonListContains(Func):
    """SQL condition that the first JSON list contains the single item of the second list.

    Each database has its own SQL for this condition.
    """

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
        return self.as_sql(
            compiler, connection, template="(%(expressions)s)", arg_joiner=" @> ", **context
        )

    def as_mysql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, function="JSON_CONTAINS", **context)


def jobs_with_tag(jobs: QuerySet[Job], tag: str) -> QuerySet[Job]:
    return jobs.filter(_JsonListContains(F("tags"), Value([tag], JSONField())))


def tags_in_use(jobs: QuerySet[Job]) -> set[str]:
    """Return the tags of ``jobs``.

    The result is incomplete if there are more than ``LISTS_READ_LIMIT`` distinct lists of tags.
    """
    lists = jobs.exclude(tags=[]).order_by().values_list("tags", flat=True).distinct()
    return {tag for tags in lists[:LISTS_READ_LIMIT] for tag in tags if isinstance(tag, str)}


def count_tags(jobs: QuerySet[Job]) -> Counter[str] | None:
    """Return how many of ``jobs`` have each tag.

    Return None if there are more than ``LISTS_READ_LIMIT`` distinct lists of tags.
    """
    lists = jobs.exclude(tags=[]).order_by().values_list("tags").annotate(number=Count("pk"))
    rows = list(lists[: LISTS_READ_LIMIT + 1])
    if len(rows) > LISTS_READ_LIMIT:
        return None
    counts: Counter[str] = Counter()
    for tags, number in rows:
        counts.update(dict.fromkeys((tag for tag in tags if isinstance(tag, str)), number))
    return counts
