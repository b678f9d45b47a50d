"""Restrict figures, lists and links to the rows that a reader may see; by default all rows.

Invariants:

- A query for a reader who may see all rows is the same as without a scope: same SQL, same plan.
- A scope adds a condition on the rows, at most a subquery. It never writes a list of keys into a
  query.
- Rows are read from the database to which they are written, so that no decision depends on a
  replica.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from django.db.models import Model, QuerySet

from django_dcron.db.routing import alias_for
from django_dcron.models import Attempt, Job, Run
from django_dcron.models.job import JobQuerySet
from django_dcron.models.run import RunQuerySet

M = TypeVar("M", bound=Model)


class Scope:
    """The rows that a reader may see.

    ``visible_rows`` returns the visible rows of a model, or None for all rows. The scope calls it
    once for each model that it needs.
    """

    def __init__(self, visible_rows: Callable[[type[Model]], QuerySet[Any] | None]) -> None:
        self._visible_rows = visible_rows
        self._cache: dict[type[Model], QuerySet[Any] | None] = {}

    def narrows(self, model: type[Model]) -> bool:
        """Return whether some rows of the model may be hidden."""
        return self._narrowed_rows(model) is not None

    def _narrowed_rows(self, model: type[Model]) -> QuerySet[Any] | None:
        if model not in self._cache:
            self._cache[model] = self._visible_rows(model)
        return self._cache[model]

    def rows(self, model: type[M]) -> QuerySet[M]:
        """Return the visible rows, unordered and without related rows.

        Deleted jobs are among them, so that their runs are visible.
        """
        all_rows = model._default_manager.using(alias_for(model)).order_by()
        narrowed = self._narrowed_rows(model)
        return all_rows if narrowed is None else _without_order_and_joins(narrowed, all_rows)

    @property
    def jobs(self) -> JobQuerySet:
        """The visible jobs, without deleted ones."""
        return self.rows(Job).filter(deleted_at=None)  # type: ignore[return-value]  # its manager

    @property
    def runs(self) -> RunQuerySet:
        return self.rows(Run)  # type: ignore[return-value]  # the class of its manager

    @property
    def attempts(self) -> QuerySet[Attempt]:
        return self.rows(Attempt)

    def of_jobs(self, rows: QuerySet[M], job_field: str) -> QuerySet[M]:
        """Return those of ``rows`` that belong to visible jobs.

        ``job_field`` is the name of the field with the job, or a path such as ``run__job``.
        """
        return rows.filter(**{f"{job_field}__in": self.keys(Job)}) if self.narrows(Job) else rows

    def of_runs(self, rows: QuerySet[M], run_field: str) -> QuerySet[M]:
        """Return those of ``rows`` that belong to visible runs, as ``of_jobs`` does for jobs."""
        return rows.filter(**{f"{run_field}__in": self.keys(Run)}) if self.narrows(Run) else rows

    def keys(self, model: type[Model]) -> QuerySet[Any, Any]:
        """Return the visible keys, for ``__in`` in a query on any database."""
        return self.rows(model).using(None).values("pk")

    def sees(self, row: Model) -> bool:
        """Return whether the row is visible, with one query if the rows are narrowed, else none."""
        return self.sees_all([row])

    def sees_all(self, rows: Sequence[Model]) -> bool:
        """Return whether all ``rows`` of one model are visible, as ``sees`` does for one."""
        if not rows or not self.narrows(type(rows[0])):
            return True
        keys = {row.pk for row in rows}
        return self.rows(type(rows[0])).filter(pk__in=keys).count() == len(keys)

    def row_if_visible(self, row: M | None) -> M | None:
        return row if row is not None and self.sees(row) else None


EVERYTHING = Scope(lambda model: None)
"""The scope of a reader who may see all rows."""


def is_narrowed(rows: QuerySet[Any]) -> bool:
    """Return whether ``rows`` may omit some rows of its table."""
    query = rows.query
    return bool(query.where) or query.is_sliced or bool(query.combinator)


def _without_order_and_joins(narrowed: QuerySet[M], all_rows: QuerySet[M]) -> QuerySet[M]:
    """Return the rows of ``narrowed`` as a queryset to count and to filter further."""
    query = narrowed.query
    if not query.is_sliced:  # the order decides which rows a slice has
        narrowed = narrowed.order_by()
    if query.is_sliced or query.distinct or query.combinator or query.group_by is not None:
        return all_rows.filter(pk__in=narrowed.using(None).values("pk"))
    return narrowed.using(all_rows.db).select_related(None).prefetch_related(None).defer(None)
