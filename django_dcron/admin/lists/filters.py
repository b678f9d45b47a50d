"""Filters of the change lists.

Invariants:

- The number of choices is bounded, regardless of the number of jobs, runs and workers.
- An index bounds each query, except those for a selected queue and for unknown targets, which read
  the targets of all jobs.
- A filter of runs by namespace or tag looks up the jobs first. An index finds the runs by the jobs'
  ids. With a join, a database may start from the jobs and sort all their runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property, reduce
from operator import or_
from typing import Any, TypeVar

from django.contrib import admin
from django.contrib.admin.views.main import SEARCH_VAR
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from django_dcron.admin.visibility import admin_scope
from django_dcron.conf import settings
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.figures import latest_attempts
from django_dcron.diagnosis.job_filters.job_filter import JobCondition, query_of
from django_dcron.diagnosis.job_filters.queues import condition_of_queues, queues_in_use
from django_dcron.diagnosis.job_filters.source import ADMIN, CODE, jobs_from_source
from django_dcron.diagnosis.job_filters.tags import jobs_with_tag, tags_in_use
from django_dcron.diagnosis.overdue import overdue_cursors
from django_dcron.diagnosis.scope import Scope
from django_dcron.models import Attempt, Cursor, Job, Node, Run
from django_dcron.models.run import STATE_LABELS
from django_dcron.policies.lifecycle import FINAL
from django_dcron.targets import commands, is_known, shell

CHOICES_LISTED = 50
MAX_JOB_IDS = 500
"""A query contains at most this many ids. For more jobs, it contains a subquery."""
ATTEMPTS_READ_LIMIT = 1_000
"""The number of latest attempts whose workers are choices."""
PROCESS_ID = re.compile(r"(?<=.)/\d+\Z")
"""The end of a worker's name that identifies its process, as in ``celery@web-1/4242``."""

NO_OUTCOME = "none"
"""The value of the filter by last outcome for jobs without an outcome."""
OVERDUE = "overdue"
"""The value of the filter by state for jobs that no node schedules in time."""
UNKNOWN = "unknown"
"""The value of the filter by target for jobs whose target this process doesn't know."""

Choices = list[tuple[Any, Any]]
M = TypeVar("M", bound=Model)


def ids_of(jobs: QuerySet[Job]) -> list[int] | QuerySet[Any]:
    """Return the jobs' ids for an ``__in`` lookup, or a subquery if there are many jobs."""
    job_ids = list(jobs.order_by().values_list("pk", flat=True)[: MAX_JOB_IDS + 1])
    return jobs.order_by().values("pk") if len(job_ids) > MAX_JOB_IDS else job_ids


def filter_by_jobs(rows: QuerySet[M], jobs: QuerySet[Job]) -> QuerySet[M]:
    """Keep the rows of these jobs. An index on the job finds the rows, or that there are none."""
    return rows.filter(job__in=ids_of(jobs))


def job_ids_by_word(words: Sequence[str]) -> list[list[int] | QuerySet[Any]]:
    """Return for each word the ids of the jobs whose name contains it, as ``ids_of`` does.

    Deleted jobs are included, because their history is still listed. One query serves all words.
    """
    if not words:
        return []
    conditions = [Q(name__icontains=word) | Q(namespace__icontains=word) for word in words]
    annotations = {f"by_{number}": condition for number, condition in enumerate(conditions)}
    matching = Job.with_deleted.filter(reduce(or_, conditions)).order_by().annotate(**annotations)
    rows = list(matching.values_list("pk", *annotations)[: MAX_JOB_IDS + 1])
    if len(rows) > MAX_JOB_IDS:
        return [
            Job.with_deleted.filter(condition).order_by().values("pk") for condition in conditions
        ]
    return [[key for key, *matches in rows if matches[number]] for number in range(len(words))]


def other_parameters(changelist: Any, own: Sequence[str]) -> list[tuple[str, str]]:
    """Return the search and the filters of the list, except those in ``own``.

    A form of one filter submits them again.
    """
    search = [(SEARCH_VAR, changelist.query)] if changelist.query else []
    return search + [
        (name, value)
        for name, values in changelist.filter_params.items()
        if name not in own
        for value in values
    ]


def titled_filter(text: str | Promise) -> type[admin.ChoicesFieldListFilter]:
    """Return a collapsed filter by choices with this title.

    The field's own name may make sense only in a form.
    """

    class TitledFilter(admin.ChoicesFieldListFilter):
        template = "admin/django_dcron/closed_filter.html"

        def __init__(self, *args: Any, **kwargs: Any):
            super().__init__(*args, **kwargs)
            self.title = str(text)

    return TitledFilter


class _ValueFilter(admin.SimpleListFilter):
    """A filter by values of the rows. It lists the first values, and always the selected one."""

    def values(self, scope: Scope) -> Iterable[str]:
        raise NotImplementedError

    def lookups(self, request: HttpRequest, model_admin: Any) -> Choices:
        values = set(
            sorted(self.values(admin_scope(request, model_admin.admin_site)))[:CHOICES_LISTED]
        )
        if selected := self.used_parameters.get(self.parameter_name or ""):
            values.add(str(selected))
        return [(value, value) for value in sorted(values)]


class JobStateFilter(admin.SimpleListFilter):
    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Choices:
        """Return the states. Only the health line links to overdue jobs."""
        is_overdue = self.used_parameters.get(self.parameter_name) == OVERDUE
        return [
            ("enabled", pgettext_lazy("state of a job", "Enabled")),
            *([(OVERDUE, _("Overdue"))] if is_overdue else []),
            ("failing", _("Failing")),
            ("paused", _("Paused")),
            ("finished", _("Finished")),
            ("quarantined", _("Quarantined")),
            ("running", _("Running now")),
        ]

    def __init__(self, request: HttpRequest, params: Any, model: Any, model_admin: Any):
        super().__init__(request, params, model, model_admin)
        self._scope = admin_scope(request, model_admin.admin_site)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        return queryset.filter(self.condition(self.value()))

    def condition(self, value: Any) -> Q:
        if value == OVERDUE:
            return Q(pk__in=self._overdue)
        known = [condition.value for condition in JobCondition]
        return query_of(JobCondition(value), self._scope) if value in known else Q()

    @cached_property
    def _overdue(self) -> QuerySet[Any, Any]:
        """The keys of the jobs that the health verdict counts as overdue."""
        now = database_now(alias_for(Cursor))
        return overdue_cursors(Cursor.objects.all(), now).order_by().values("pk")


class LastOutcomeFilter(admin.SimpleListFilter):
    title = _("last outcome")
    parameter_name = "last"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Choices:
        return [
            *((value, label) for value, label in STATE_LABELS if value in FINAL),
            (NO_OUTCOME, _("None yet")),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        value = self.value()
        if value == NO_OUTCOME:
            return queryset.filter(Q(statistics=None) | Q(statistics__last_state=""))
        return queryset.filter(statistics__last_state=value) if value else queryset


class TargetKindFilter(admin.SimpleListFilter):
    """Filter by the prefix of the target. Only the registry distinguishes tasks and functions."""

    title = _("target")
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Choices:
        return [
            ("code", _("Task or function")),
            ("command", _("Management command")),
            ("shell", _("Shell command")),
            (UNKNOWN, _("Unknown target")),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        if self.value() == UNKNOWN:
            targets = queryset.order_by().values_list("target", flat=True).distinct()
            return queryset.filter(target__in=[each for each in targets if not is_known(each)])
        is_command = Q(target__startswith=commands.PREFIX)
        is_shell = Q(target__startswith=shell.PREFIX)
        conditions = {"code": ~is_command & ~is_shell, "command": is_command, "shell": is_shell}
        return queryset.filter(conditions.get(self.value() or "", Q()))


class _JobValueFilter(_ValueFilter):
    """Filter jobs by a value of theirs, or runs by a value of their jobs."""

    def __init__(self, request: HttpRequest, params: Any, model: Any, model_admin: Any):
        self.model = model
        super().__init__(request, params, model, model_admin)

    def values(self, scope: Scope) -> Iterable[str]:
        """Return the values of the jobs, then those of deleted jobs, which may still have runs."""
        values = sorted(self.values_of(scope.jobs))
        if self.model is Run and len(values) < CHOICES_LISTED:
            values += sorted(self.values_of(scope.rows(Job).exclude(deleted_at=None)))
        return [*dict.fromkeys(values)][:CHOICES_LISTED]

    def values_of(self, jobs: QuerySet[Job]) -> Iterable[str]:
        raise NotImplementedError


class NamespaceFilter(_JobValueFilter):
    """Filter jobs by namespace, or runs by the namespace of their jobs."""

    title = _("namespace")
    parameter_name = "namespace"

    def values_of(self, jobs: QuerySet[Job]) -> Iterable[str]:
        namespaces = jobs.order_by("namespace").values_list("namespace", flat=True)
        return namespaces.distinct()[:CHOICES_LISTED]

    def has_output(self) -> bool:
        return len(self.lookup_choices) > 1 or self.value() is not None

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if not self.value():
            return queryset
        return _filter_jobs_or_runs(queryset, Job.with_deleted.filter(namespace=self.value()))


class SourceFilter(admin.SimpleListFilter):
    """Filter jobs by what created them."""

    title = _("source")
    parameter_name = "source"
    template = "admin/django_dcron/closed_filter.html"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Choices:
        jobs = admin_scope(request, model_admin.admin_site).jobs
        sources = jobs.exclude(import_source="").order_by("import_source")
        imported = sources.values_list("import_source", flat=True).distinct()[:CHOICES_LISTED]
        return [
            (CODE, _("Code (@cron)")),
            (ADMIN, _("Created here")),
            *((source, source) for source in imported),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        return jobs_from_source(queryset, self.value() or "") if self.value() else queryset


class QueueFilter(_ValueFilter):
    """Filter jobs by the queue to which their runs are published."""

    title = _("queue")
    parameter_name = "queue"
    template = "admin/django_dcron/closed_filter.html"

    def __init__(self, request: HttpRequest, params: Any, model: Any, model_admin: Any):
        super().__init__(request, params, model, model_admin)
        self._scope = admin_scope(request, model_admin.admin_site)

    def values(self, scope: Scope) -> Iterable[str]:
        return queues_in_use(scope.jobs)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        return queryset.filter(self._condition) if self.value() else queryset

    @cached_property
    def _condition(self) -> Q:
        """The condition for all queries of the page. Reading it needs a query itself."""
        return condition_of_queues(self._scope.jobs, [self.value() or ""])


class TagFilter(_JobValueFilter):
    """Filter jobs by tag, or runs by the tags of their jobs."""

    title = _("tag")
    parameter_name = "tag"

    def values_of(self, jobs: QuerySet[Job]) -> Iterable[str]:
        return tags_in_use(jobs)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if not value:
            return queryset
        return _filter_jobs_or_runs(queryset, jobs_with_tag(Job.with_deleted.all(), value))


def _filter_jobs_or_runs(rows: QuerySet[Any], jobs: QuerySet[Job]) -> QuerySet[Any]:
    if rows.model is Run:
        return filter_by_jobs(rows, jobs)
    return rows.filter(pk__in=jobs.order_by().values("pk"))


class WorkerFilter(_ValueFilter):
    """List the workers of the latest attempts. The history may name thousands of workers.

    The processes of a worker are one choice. The value may also name one process.
    """

    title = _("worker")
    parameter_name = "worker"

    def values(self, scope: Scope) -> Iterable[str]:
        attempts = latest_attempts(scope).order_by("-pk")
        workers = attempts.values_list("worker", flat=True)[:ATTEMPTS_READ_LIMIT]
        return {PROCESS_ID.sub("", worker) for worker in workers}

    def queryset(self, request: HttpRequest, queryset: QuerySet[Attempt]) -> QuerySet[Attempt]:
        value = self.value()
        if not value:
            return queryset
        return queryset.filter(Q(worker=value) | Q(worker__startswith=f"{value}/"))


class LiveFilter(admin.SimpleListFilter):
    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Choices:
        return [("live", _("Live")), ("expired", _("Expired"))]

    def queryset(self, request: HttpRequest, queryset: Any) -> QuerySet[Node]:
        match self.value():
            case "live":
                queryset = queryset.live(settings.LEASE)
            case "expired":
                queryset = queryset.expired(settings.LEASE)
        nodes: QuerySet[Node] = queryset
        return nodes
