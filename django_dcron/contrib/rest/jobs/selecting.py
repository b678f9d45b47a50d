"""Select the jobs of a bulk request: by their ids, or by the filters of the command line.

Invariants:

- A request changes at most ``MAX_JOBS`` jobs. If more match, ``next`` of the response is the
  ``after`` of the next request. So no job is changed twice or left out.
- A hidden job is refused like a missing one, and no filter matches it.
- A body without ids and filters is refused. ``all: true`` selects all jobs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from django.utils import translation
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from django_dcron.contrib.rest import fields
from django_dcron.contrib.rest.base_serializers import StrictSerializer
from django_dcron.contrib.rest.jobs.bulk import MAX_JOBS
from django_dcron.contrib.rest.jobs.listing import QUEUE_HELP
from django_dcron.contrib.rest.viewsets import LARGEST_KEY
from django_dcron.diagnosis.job_filters.job_filter import JobCondition, JobFilter, jobs_matching
from django_dcron.diagnosis.scope import Scope
from django_dcron.models import Job
from django_dcron.models.job import JobQuerySet
from django_dcron.utils.messages import TranslatableText

FILTERS = {
    "namespace": "namespace",
    "pattern": "pattern",
    "search": "text",
    "source": "source",
    "queue": "queue",
}
"""The fields of ``JobFilter`` by the names that the API and the command line use."""
MAX_WILDCARDS = 2
"""The maximum number of ``*`` in each part of a pattern.

The time to match a name grows with its length to the power of this number.
"""
LONGEST_PATTERN = 190
AFTER_WITH_IDS = gettext_lazy("Send either ids or after. A request with ids is never continued.")

ReasonsById = dict[int, str]
"""Why jobs aren't changed, by job id."""


class JobFilterSerializer(StrictSerializer):
    ids = serializers.ListField(
        child=fields.StrictIntegerField(min_value=1, max_value=LARGEST_KEY),
        required=False,
        allow_empty=False,
        max_length=MAX_JOBS,
        help_text="The jobs. Without ids, the filters select the jobs.",
    )
    all = fields.StrictBooleanField(
        required=False, help_text="True selects all jobs, without ids and filters."
    )
    namespace = fields.StrictCharField(
        required=False, max_length=64, help_text="Only jobs of this namespace."
    )
    pattern = fields.StrictCharField(
        required=False,
        max_length=LONGEST_PATTERN,
        help_text="Only jobs whose `namespace/name` matches, such as `shop/*`. `*` is any text, "
        "`?` one character. A pattern without a namespace matches jobs of `namespace`, or of the "
        "namespace `default`.",
    )
    tags = serializers.ListField(
        child=fields.StrictCharField(max_length=255),
        required=False,
        allow_empty=False,
        max_length=20,
        help_text="Only jobs that have all of these tags.",
    )
    search = fields.StrictCharField(
        required=False,
        max_length=120,
        help_text="Only jobs whose name, target or description contains this text.",
    )
    source = fields.StrictCharField(  # type: ignore[assignment]  # DRF removes it from the class
        required=False,
        max_length=190,
        help_text="Only jobs from this source: `code`, `admin`, or the source of an import.",
    )
    queue = fields.StrictCharField(required=False, max_length=120, help_text=QUEUE_HELP)
    state = fields.StrictChoiceField(
        [condition.value for condition in JobCondition],
        required=False,
        help_text="Only jobs in this state. `failing`: enabled, and has failed since its last "
        "success.",
    )

    def validate_pattern(self, pattern: str) -> str:
        if any(part.count("*") > MAX_WILDCARDS for part in pattern.rpartition("/")):
            message = _("The pattern has more than %(most)d * in its name or namespace.")
            raise ValidationError(message % {"most": MAX_WILDCARDS})
        return pattern

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        has_filters = _filter_of(attrs) != JobFilter()
        if not has_filters and "ids" not in attrs and not attrs.get("all"):
            raise ValidationError(_("Nothing is selected. Send ids, a filter or all: true."))
        if has_filters + ("ids" in attrs) + ("all" in attrs) > 1:
            raise ValidationError(_("Send only one of: ids, filters, all."))
        return attrs


class SelectedJobsSerializer(JobFilterSerializer):
    """The jobs to change."""

    after = fields.StrictIntegerField(
        required=False,
        min_value=0,
        max_value=LARGEST_KEY,
        help_text=f"If more than {MAX_JOBS} jobs match: `next` of the previous response. Not with "
        "ids.",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if "ids" in attrs and "after" in attrs:
            raise ValidationError({"after": [AFTER_WITH_IDS]})
        return super().validate(attrs)


@dataclass(frozen=True, slots=True)
class SelectedJobs:
    rows: list[Job]
    missing: ReasonsById = field(default_factory=dict)
    skipped: ReasonsById = field(default_factory=dict)
    next_after: int | None = None
    """The key of the last examined job, if further jobs match."""


def matching_jobs(values: dict[str, Any], scope: Scope) -> JobQuerySet:
    """Return the visible jobs that the ids or filters select, unordered."""
    if "ids" in values:
        return scope.jobs.filter(pk__in=values["ids"])
    return jobs_matching(_filter_of(values), scope).order_by()


def select_jobs(
    values: dict[str, Any],
    scope: Scope,
    why_skipped: Callable[[Job], TranslatableText | None] = lambda job: None,
) -> SelectedJobs:
    """Return the jobs of a request, each once. Jobs that are selected by id aren't skipped."""
    if "ids" in values:
        found = scope.jobs.in_bulk(values["ids"])
        ids = list(dict.fromkeys(values["ids"]))
        missing = {pk: _("There is no job with this id.") for pk in ids if pk not in found}
        return SelectedJobs([found[pk] for pk in ids if pk in found], missing)
    candidates = matching_jobs(values, scope).filter(pk__gt=values.get("after", 0)).order_by("pk")
    jobs = list(candidates[: MAX_JOBS + 1])
    reasons = {job.pk: why_skipped(job) for job in jobs[:MAX_JOBS]}
    return SelectedJobs(
        [job for job in jobs[:MAX_JOBS] if reasons[job.pk] is None],
        skipped={pk: why.translate(translation) for pk, why in reasons.items() if why},
        next_after=jobs[MAX_JOBS - 1].pk if len(jobs) > MAX_JOBS else None,
    )


def _filter_of(values: dict[str, Any]) -> JobFilter:
    chosen = {FILTERS[name]: values[name] for name in FILTERS if name in values}
    condition = JobCondition(values["state"]) if "state" in values else None
    return JobFilter(tags=tuple(values.get("tags", ())), condition=condition, **chosen)
