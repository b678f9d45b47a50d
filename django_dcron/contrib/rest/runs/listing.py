"""The list of runs, for millions of rows: each request follows the order of an index.

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
from rest_framework.exceptions import PermissionDenied, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from django_dcron.contrib.rest import fields
from django_dcron.contrib.rest.pagination import Order, PageQuery, next_url, page_of, read_cursor
from django_dcron.contrib.rest.permissions import may
from django_dcron.contrib.rest.runs.representation import (
    RunPageSerializer,
    RunSerializer,
    short_runs,
)
from django_dcron.contrib.rest.schema import Operation
from django_dcron.contrib.rest.view import LARGEST_KEY, View
from django_dcron.diagnosis.scope import Scope
from django_dcron.diagnosis.tags import with_tag
from django_dcron.models import Job, Run
from django_dcron.policies.lifecycle import State, Trigger

ORDERINGS = ("-scheduled_at", "scheduled_at", "-due_at", "due_at")
OF_JOBS = ("job", "namespace", "tag")


class RunQuery(PageQuery):
    job = serializers.IntegerField(required=False, min_value=1, max_value=LARGEST_KEY)
    namespace = serializers.CharField(required=False, max_length=64)
    tag = serializers.CharField(required=False, max_length=255)
    state = serializers.ChoiceField([state.value for state in State], required=False)
    trigger = serializers.ChoiceField([trigger.value for trigger in Trigger], required=False)
    since = fields.Instant(
        required=False,
        help_text="The start of the range (included) of `due_at` if that is the order, "
        "otherwise of `scheduled_at`.",
    )
    until = fields.Instant(
        required=False, help_text="The end of the range (excluded) of the same time."
    )
    ordering = serializers.ChoiceField(
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


class Runs(View):
    operations = {
        "GET": Operation(
            "list_runs",
            "List runs, latest first",
            {200: RunPageSerializer()},
            needs=("view_run",),
            query=RunQuery,
        )
    }

    def get(self, request: Request) -> Response:
        asked = self.query(request)
        if any(name in asked for name in OF_JOBS) and not may(request.user, "view_job"):
            raise PermissionDenied(
                _(
                    "You don't have permission to view jobs, so you can't filter by job, "
                    "namespace or tag."
                )
            )
        order = _order(asked)
        after = read_cursor(asked["cursor"], order, Run) if "cursor" in asked else None
        found = page_of(
            _filter_by_index(asked, self.scope),
            order,
            limit=asked["limit"],
            after=after,
            narrow=_narrowing(asked, self.scope),
        )
        results = RunSerializer(found.rows, many=True).data
        return Response({"next": next_url(request, found, order), "results": results})


def _order(asked: dict[str, Any]) -> Order:
    name = asked["ordering"]
    # Within a job, ``scheduled_at`` is unique. With a second field, no index would have the order.
    columns = (name.removeprefix("-"), *(() if "job" in asked else ("id",)))
    return Order(name, columns, descending=name.startswith("-"))


def _filter_by_index(asked: dict[str, Any], scope: Scope) -> QuerySet[Run]:
    runs, column, jobs = short_runs(scope), asked["ordering"].removeprefix("-"), _jobs(asked, scope)
    if jobs is not None and not jobs.exists():
        return runs.none()
    if "job" in asked:
        runs = runs.filter(job=asked["job"])
    if column == "due_at":
        runs = runs.filter(state=asked["state"])
    if "since" in asked:
        runs = runs.filter(**{f"{column}__gte": asked["since"]})
    if "until" in asked:
        runs = runs.filter(**{f"{column}__lt": asked["until"]})
    return runs


def _narrowing(
    asked: dict[str, Any], scope: Scope
) -> Callable[[QuerySet[Run]], QuerySet[Run]] | None:
    """Return the filters that no index of the order supports, or None if there are none."""
    columns = [name for name in ("state", "trigger") if name in asked]
    if asked["ordering"].endswith("due_at"):
        columns.remove("state")
    jobs = _jobs(asked, scope)
    if not columns and jobs is None:
        return None

    def narrow(runs: QuerySet[Run]) -> QuerySet[Run]:
        # As expressions, these filters keep a database from using the index on states and sorting
        # its rows.
        for name in columns:
            runs = runs.alias(**{f"of_{name}": Coalesce(F(name), Value(""))}).filter(
                **{f"of_{name}": asked[name]}
            )
        if jobs is not None:
            runs = runs.alias(of_job=F("job_id") + 0).filter(of_job__in=jobs.values("pk"))
        return runs

    return narrow


def _jobs(asked: dict[str, Any], scope: Scope) -> QuerySet[Job] | None:
    """Return the jobs whose runs are requested, or None for all jobs."""
    if "namespace" not in asked and "tag" not in asked:
        return None
    jobs: QuerySet[Job] = scope.jobs.order_by()
    jobs = jobs.filter(namespace=asked["namespace"]) if "namespace" in asked else jobs
    return with_tag(jobs, asked["tag"]) if "tag" in asked else jobs
