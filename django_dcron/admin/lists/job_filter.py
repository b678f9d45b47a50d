"""Filter runs by job: a few jobs as links, and a text input that finds any job by its name.

Invariants:

- Without JavaScript, the input filters by the typed text. With htmx, it also suggests names while
  the user types.
- The cost doesn't depend on the number of jobs, except that a name is searched without an index.
- Suggestions contain only jobs that the user may see, and only their names are matched.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import Field, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext as _

from django_dcron.admin.display import may_view
from django_dcron.admin.lists.base import search_words
from django_dcron.admin.lists.filters import Choices, filter_by_jobs, other_parameters
from django_dcron.admin.visibility import admin_scope
from django_dcron.models import Job, Run
from django_dcron.policies.job_labels import split_label

PARAMETER = "job_name"
JOBS_LISTED = 20
"""If there are more jobs, the filter lists only the selected one."""
JOBS_SUGGESTED = 20
SUGGESTIONS_URL = "django_dcron_job_suggestions"


class JobListFilter(admin.RelatedFieldListFilter):
    template = "admin/django_dcron/job_filter.html"
    parameter_name = PARAMETER

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        typed: Any = self.used_parameters.pop(PARAMETER, [""])
        self.typed = str(typed[-1] if isinstance(typed, list) else typed).strip()
        self.others: list[tuple[str, str]] = []
        """The other filters, which the form submits again."""
        model_admin: Any = args[4] if len(args) > 4 else kwargs["model_admin"]
        site = model_admin.admin_site
        self.site = site
        self.suggestions_url = reverse(f"admin:{SUGGESTIONS_URL}", current_app=site.name)

    def expected_parameters(self) -> list[str | None]:
        return [*super().expected_parameters(), PARAMETER]

    def has_output(self) -> bool:
        return True

    @property
    def is_filled_in(self) -> bool:
        return bool(self.typed)

    def field_choices(
        self, field: Field[Any, Any], request: HttpRequest, model_admin: Any
    ) -> Choices:
        scope = admin_scope(request, model_admin.admin_site)
        visible = scope.jobs.order_by("namespace", "name")
        jobs = list(visible.only("namespace", "name")[: JOBS_LISTED + 1])
        if len(jobs) > JOBS_LISTED:
            jobs = []
        try:
            selected = [Job._meta.pk.clean(value, None) for value in self.lookup_val or ()]
        except ValidationError as error:
            raise IncorrectLookupParameters(error) from error
        # Also a deleted job with a history.
        others = scope.rows(Job).filter(pk__in=selected).exclude(pk__in=[job.pk for job in jobs])
        jobs += others.order_by("namespace", "name")
        return [(job.pk, str(job)) for job in jobs]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        rows = super().queryset(request, queryset)
        if not self.typed or rows is None:
            return rows if rows is not None else queryset
        visible = admin_scope(request, self.site).rows(Job)  # also deleted jobs with a history
        return filter_by_jobs(rows, _jobs_named(self.typed, visible))

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        own = [name for name in self.expected_parameters() if name]
        self.others = other_parameters(changelist, own)
        selected = {str(value) for value in self.lookup_val or ()}
        yield {
            "selected": not selected and not self.typed,
            "query_string": changelist.get_query_string(remove=own),
            "display": _("All"),
        }
        for key, name in self.lookup_choices:
            yield {
                "selected": str(key) in selected,
                "query_string": changelist.get_query_string({self.lookup_kwarg: key}, remove=own),
                "display": name,
            }


def suggest_jobs(model_admin: admin.ModelAdmin[Run], request: HttpRequest) -> HttpResponse:
    """Return the names of visible jobs that match the typed text, as options of the input."""
    site = model_admin.admin_site
    if not (model_admin.has_view_permission(request) and may_view(request, Job, site)):
        raise PermissionDenied
    visible = admin_scope(request, site).rows(Job)  # also deleted jobs with a history
    visible = visible.filter(name_has_words(request.GET.get(PARAMETER, "")))
    jobs = visible.order_by("namespace", "name").only("namespace", "name")[:JOBS_SUGGESTED]
    context = {"names": [str(job) for job in jobs]}
    return TemplateResponse(request, "admin/django_dcron/job_suggestions.html", context)


def _jobs_named(text: str, visible: QuerySet[Job]) -> QuerySet[Job]:
    """Return the visible job with exactly this name, or all those whose names contain the words."""
    key = split_label(text)
    exact = visible.filter(namespace=key.namespace, name=key.name)
    job_ids = list(exact.values_list("pk", flat=True)[:1])
    return (
        Job.with_deleted.filter(pk__in=job_ids) if job_ids else visible.filter(name_has_words(text))
    )


def name_has_words(text: str) -> Q:
    """Return the condition that each word of ``text`` is in the name or namespace of a job."""
    condition = Q()
    for word in search_words(text.replace("\0", "").replace("/", " ")):
        condition &= Q(name__icontains=word) | Q(namespace__icontains=word)
    return condition
