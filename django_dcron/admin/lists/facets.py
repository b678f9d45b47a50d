"""Filters of jobs whose choices show how many jobs match.

Invariants:

- A filter counts the jobs that the search and the other filters match. A count is the number of
  jobs that its link lists.
- A filter needs one query for its counts, whatever the number of choices. State and last outcome
  share one. Namespaces and tags need none while the list isn't filtered, because the query for the
  choices counts them.
- A count that could be incomplete is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from django.contrib.admin.utils import build_q_object_from_lookup_parameters
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest
from django.utils.formats import number_format
from django.utils.functional import cached_property

from django_dcron.admin.lists import filters
from django_dcron.admin.lists.base import ShortRowsChangeList
from django_dcron.admin.lists.filters import (
    NO_OUTCOME,
    JobStateFilter,
    LastOutcomeFilter,
    NamespaceFilter,
    TagFilter,
)
from django_dcron.admin.visibility import admin_scope
from django_dcron.diagnosis.job_filters.tags import count_tags
from django_dcron.diagnosis.scope import Scope
from django_dcron.models import Job

Counts = Mapping[Any, int]
JobFilter = TypeVar("JobFilter", JobStateFilter, LastOutcomeFilter)
ALL = "all"


class FacetChangeList(ShortRowsChangeList):
    """A list of jobs that also finds the jobs that match without some of its filters."""

    def get_filters(self, request: HttpRequest) -> Any:
        found = super().get_filters(request)
        self._request = request
        self._other_lookups: dict[str, Any] = dict(found[2])
        return found

    def is_narrowed_without(self, excluded: Any) -> bool:
        """Return whether the search or any filter except ``excluded`` is in use."""
        others = (spec for spec in self.filter_specs if spec is not excluded)
        return bool(
            self.query or self._other_lookups or any(each.used_parameters for each in others)
        )

    def jobs_without(self, *excluded: Any) -> QuerySet[Job]:
        """Return the jobs that the search and all filters except ``excluded`` match."""
        model_admin: Any = self.model_admin
        rows: QuerySet[Job] = admin_scope(self._request, model_admin.admin_site).jobs
        for spec in self.filter_specs:
            narrowed = spec.queryset(self._request, rows) if spec not in excluded else None
            rows = rows if narrowed is None else narrowed
        rows = rows.filter(build_q_object_from_lookup_parameters(self._other_lookups))
        rows, _is_ambiguous = model_admin.get_search_results(self._request, rows, self.query)
        return rows.order_by()

    def filter_of(self, kind: type[JobFilter]) -> JobFilter | None:
        return next((spec for spec in self.filter_specs if isinstance(spec, kind)), None)

    @cached_property
    def state_table(self) -> dict[str, Counter[str]]:
        """The number of jobs by last outcome and state, as if neither filter was in use.

        The state ``ALL`` has the jobs in all states.
        """
        by_state, by_outcome = self.filter_of(JobStateFilter), self.filter_of(LastOutcomeFilter)
        conditions: dict[Any, Q] = {}
        if by_state:
            conditions = {value: by_state.condition(value) for value, _ in by_state.lookup_choices}
        # The prefix keeps the names apart from the fields of Job.
        numbers = {f"in_{value}": Count("pk", filter=each) for value, each in conditions.items()}
        jobs = self.jobs_without(by_state, by_outcome).values("statistics__last_state")
        table: dict[str, Counter[str]] = {}
        rows: Iterable[Any] = jobs.annotate(**numbers, **{f"in_{ALL}": Count("pk")})
        for row in rows:
            counts = {value: row[f"in_{value}"] for value in (*conditions, ALL)}
            outcome = row["statistics__last_state"] or NO_OUTCOME
            table.setdefault(outcome, Counter()).update(counts)
        return table


class _Facets:
    """Add the number of jobs to each choice of a filter."""

    lookup_choices: list[tuple[Any, Any]]
    totals: Counts | None = None
    """The counts of all visible jobs, if the query for the choices has counted them."""

    def counts(self, changelist: FacetChangeList) -> Counts | None:
        """Return the number of jobs for each choice; choices without jobs may be missing."""
        raise NotImplementedError

    def choices(self, changelist: Any) -> Iterator[Any]:
        every, *others = super().choices(changelist)  # type: ignore[misc]  # of the filter
        counts = self.totals
        if counts is None or changelist.is_narrowed_without(self):
            counts = self.counts(changelist)
        yield every
        for choice, (value, _label) in zip(others, self.lookup_choices, strict=True):
            if counts is not None:
                number = number_format(counts.get(value, 0), use_l10n=True, force_grouping=True)
                choice["display"] = f"{choice['display']} ({number})"
            yield choice


class JobStateFacet(_Facets, JobStateFilter):
    def counts(self, changelist: FacetChangeList) -> Counts:
        by_outcome, table = changelist.filter_of(LastOutcomeFilter), changelist.state_table
        if by_outcome and by_outcome.value():
            return table.get(str(by_outcome.value()), Counter())
        return sum(table.values(), Counter())


class LastOutcomeFacet(_Facets, LastOutcomeFilter):
    def counts(self, changelist: FacetChangeList) -> Counts:
        by_state = changelist.filter_of(JobStateFilter)
        chosen = by_state.value() if by_state else None
        known = {value for value, _label in by_state.lookup_choices} if by_state else set()
        column = str(chosen) if chosen in known else ALL
        return {outcome: row[column] for outcome, row in changelist.state_table.items()}


class NamespaceFacet(_Facets, NamespaceFilter):
    def values(self, scope: Scope) -> Iterable[str]:
        found = _count_namespaces(scope.jobs.order_by("namespace"))[: filters.CHOICES_LISTED]
        self.totals = totals = dict(found)
        if selected := self.value():  # it may not be among the first ones
            self.totals = totals if selected in totals else None
        return totals

    def counts(self, changelist: FacetChangeList) -> Counts:
        listed = Q(namespace__in=[value for value, _label in self.lookup_choices])
        return dict(_count_namespaces(changelist.jobs_without(self).filter(listed)))


class TagFacet(_Facets, TagFilter):
    def values(self, scope: Scope) -> Iterable[str]:
        self.totals = count_tags(scope.jobs)
        return super().values(scope) if self.totals is None else self.totals

    def counts(self, changelist: FacetChangeList) -> Counts | None:
        return count_tags(changelist.jobs_without(self))


def _count_namespaces(jobs: QuerySet[Job]) -> Any:
    return jobs.values_list("namespace").annotate(number=Count("pk"))
