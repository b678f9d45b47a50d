"""The admin of rows that jobs use and whose key is their name: calendars and limits."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, ClassVar

from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_dcron.admin.base import M
from django_dcron.admin.conflicts import VersionedAdmin, needs_save
from django_dcron.admin.visibility import admin_scope
from django_dcron.diagnosis.scope import Scope
from django_dcron.exceptions import Conflict
from django_dcron.models import Job


class NamedRowAdmin(VersionedAdmin[M]):
    field_of_jobs: ClassVar[str]
    """The field of a job that names the row."""

    def save_row(self, row: M, expected_version: int | None) -> None:
        """Save the row with ``control``."""
        raise NotImplementedError

    def delete_row(self, row: M) -> None:
        """Delete the row with ``control``, which refuses to delete a row that a job uses."""
        raise NotImplementedError

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        if needs_save(obj):
            version = form.cleaned_data["seen_version"] if change else None
            self.save_row(obj, version)
        if not admin_scope(request, self.admin_site).sees(obj):  # the save is rolled back
            raise PermissionDenied

    def delete_model(self, request: HttpRequest, obj: M) -> None:
        with suppress(Conflict):  # another user has deleted the row already
            self.delete_row(obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[M]) -> None:
        for row in queryset:
            self.delete_model(request, row)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        answer = super().get_deleted_objects(objs, request)
        dependents = Job.objects.filter(**{f"{self.field_of_jobs}__in": list(objs)})
        return _without_hidden_jobs(answer, dependents, admin_scope(request, self.admin_site))


def _without_hidden_jobs(answer: Any, dependents: QuerySet[Job], scope: Scope) -> Any:
    """Return what ``get_deleted_objects`` returned, without the names of hidden jobs.

    ``dependents``: The jobs that prevent the deletion. Hidden ones are counted, but not named.
    """
    lines, counts, missing_permissions, protected = answer
    if not protected or not scope.narrows(Job):
        return answer
    visible = list(scope.of_jobs(dependents, "pk"))
    protected = [_("Job: %(job)s") % {"job": job} for job in visible]
    if hidden := dependents.count() - len(visible):
        text = ngettext(
            "%(count)d job that you don't have permission to view",
            "%(count)d jobs that you don't have permission to view",
            hidden,
        )
        protected.append(text % {"count": hidden})
    return lines, counts, missing_permissions, protected
