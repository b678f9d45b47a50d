"""Queries of the list of runs, for millions of rows: each follows the order of an index.

There are two orders: ``scheduled_at``, for all runs or the runs of one job, and ``due_at``, for the
runs in one state. ``since`` and ``until`` apply to the order's field. Other filters are applied
page by page (``pagination``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db.models import F, QuerySet, Value
from django.db.models.functions import Coalesce
from django.utils.translation import gettext as _
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from django_dcron.contrib.rest import fields
from django_dcron.contrib.rest.pagination import PageOrder, PageQuery
from django_dcron.contrib.rest.runs.serializers import list_runs
from django_dcron.contrib.rest.viewsets import LARGEST_KEY
from django_dcron.diagnosis.job_filters.tags import jobs_with_tag
from django_dcron.diagnosis.scope import Scope
from django_dcron.models import Job, Run
from django_dcron.models.run import SHOWN_TRIGGER
from django_dcron.policies.lifecycle import State, Trigger

ORDERINGS = ("-scheduled_at", "scheduled_at", "-due_at", "due_at")


class RunQuery(PageQuery):
    job = serializers.IntegerField(required=False, min_value=1, max_value=LARGEST_KEY)
    namespace = serializers.CharField(required=False, max_length=64)
    tag = serializers.CharField(required=False, max_length=255)
    state = fields.StrictChoiceField([state.value for state in State], required=False)
    trigger = fields.StrictChoiceField([trigger.value for trigger in Trigger], required=False)
    since = fields.UtcTimeField(
        required=False,
        help_text="The start of the range (included) of `due_at` if that is the order, "
        "otherwise of `scheduled_at`.",
    )
    until = fields.UtcTimeField(
        required=False, help_text="The end of the range (excluded) of the same time."
    )
    ordering = fields.StrictChoiceField(
        ORDERINGS,
        required=False,
        help_text="Defaults to `-due_at` with a state and no job, otherwise to "
        "`-scheduled_at`. Only requests with a state and no job can use `due_at`.",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        by_state = "state" in attrs and "job" not in attrs
        ordering = attrs.setdefault("ordering", "-due_at" if by_state else "-scheduled_at")
        if ordering.endswith("due_at") and not by_state:
            message = _("The order %(ordering)s requires a state and no job.")
            raise ValidationError({"ordering": message % {"ordering": ordering}})
        return attrs


def filters_by_job(query: dict[str, Any]) -> bool:
    """Return whether the request filters by data of jobs, which not all users may see."""
    return any(name in query for name in ("job", "namespace", "tag"))


def order_of(query: dict[str, Any]) -> PageOrder:
    name = query["ordering"]
    # Within a job, ``scheduled_at`` is unique. With a second field, no index would have the order.
    columns = (name.removeprefix("-"), *(() if "job" in query else ("id",)))
    return PageOrder(name, columns, descending=name.startswith("-"))


def filter_by_index(query: dict[str, Any], scope: Scope) -> QuerySet[Run]:
    runs, column, jobs = list_runs(scope), query["ordering"].removeprefix("-"), _jobs(query, scope)
    if jobs is not None and not jobs.exists():
        return runs.none()
    if "job" in query:
        runs = runs.filter(job=query["job"])
    if column == "due_at":
        runs = runs.filter(state=query["state"])
    if "since" in query:
        runs = runs.filter(**{f"{column}__gte": query["since"]})
    if "until" in query:
        runs = runs.filter(**{f"{column}__lt": query["until"]})
    return runs


def other_filters(
    query: dict[str, Any], scope: Scope
) -> Callable[[QuerySet[Run]], QuerySet[Run]] | None:
    """Return the filters that no index of the order supports, or None if there are none."""
    columns = [name for name in ("state", "trigger") if name in query]
    if query["ordering"].endswith("due_at"):
        columns.remove("state")
    jobs = _jobs(query, scope)
    if not columns and jobs is None:
        return None

    def narrow(runs: QuerySet[Run]) -> QuerySet[Run]:
        # As expressions, these filters keep a database from using the index on states and sorting
        # its rows.
        for name in columns:
            column = SHOWN_TRIGGER if name == "trigger" else Coalesce(F(name), Value(""))
            runs = runs.alias(**{f"of_{name}": column}).filter(**{f"of_{name}": query[name]})
        if jobs is not None:
            runs = runs.alias(of_job=F("job_id") + 0).filter(of_job__in=jobs.values("pk"))
        return runs

    return narrow


def _jobs(query: dict[str, Any], scope: Scope) -> QuerySet[Job] | None:
    """Return the jobs whose runs are requested, or None for all jobs."""
    if "namespace" not in query and "tag" not in query:
        return None
    jobs: QuerySet[Job] = scope.rows(Job).order_by()
    jobs = jobs.filter(namespace=query["namespace"]) if "namespace" in query else jobs
    return jobs_with_tag(jobs, query["tag"]) if "tag" in query else jobs
