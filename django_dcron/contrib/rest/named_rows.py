"""The endpoints of rows whose key is their name: calendars and limits.

Each change of a row requires its current version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from django.db.models import QuerySet
from django.utils.translation import gettext as _
from rest_framework import serializers
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import Serializer

from django_dcron.contrib.rest.base_serializers import DocumentSerializer
from django_dcron.contrib.rest.concurrency import check_match, conflict_as_precondition_failed, etag
from django_dcron.contrib.rest.pagination import (
    PageOrder,
    PageQuery,
    page_of,
    page_response,
)
from django_dcron.contrib.rest.permissions import has_model_permission
from django_dcron.contrib.rest.problems import ActionRefused
from django_dcron.contrib.rest.scope import require_visible_after
from django_dcron.contrib.rest.viewsets import BaseViewSet, row_or_404, row_url
from django_dcron.exceptions import NotPossible
from django_dcron.jobs.representation import FIELDS
from django_dcron.models import Calendar, Job, Limit
from django_dcron.utils.json_values import check_storable

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

N = TypeVar("N", Calendar, Limit)

ORDERS = {
    order.name: order
    for order in (PageOrder("name", ("name",)), PageOrder("-name", ("name",), descending=True))
}


class NamedRowQuery(PageQuery):
    search = serializers.CharField(
        required=False, max_length=120, help_text="Text that the name contains, such as `import`."
    )
    ordering = serializers.ChoiceField(list(ORDERS), default="name")


class ContentSerializer(DocumentSerializer):
    """A change of a row. The name is set once, at creation."""

    def other_errors(self, data: Any) -> dict[str, Any]:
        """Accept the unchanged name, so that a client can send back what it has read."""
        name = self.instance.name if self.instance else None
        if isinstance(data, Mapping) and data.get("name", name) != name:
            return {"name": [_("The name can't be changed.")]}
        return {}


def writable_fields(model: type[Calendar | Limit]) -> tuple[str, ...]:
    """Return the names of the fields that a change may set."""
    return tuple(name for name, field in FIELDS[model].items() if field.writable and name != "name")


class NamedRowViewSet(BaseViewSet, Generic[N]):
    """The implementation of the operations. Subclasses declare and document them."""

    model: type[N]
    url_name: ClassVar[str]
    serializer_class: ClassVar[type[DocumentSerializer]]
    content_serializer_class: ClassVar[type[ContentSerializer]]
    listed_serializer_class: ClassVar[type[DocumentSerializer]]
    save_row: Callable[..., N]
    delete_row: Callable[..., None]

    in_use_text: ClassVar[StrOrPromise]
    """Why a row can't be deleted, for users who may not know what uses it."""

    def _list(self, request: Request, rows: QuerySet[N]) -> Response:
        query = self.validate(NamedRowQuery, request.query_params)
        if "search" in query:
            rows = rows.filter(name__icontains=query["search"])
        page = page_of(rows, ORDERS[query["ordering"]], query)
        results = self.listed_serializer_class(page.rows, many=True).data
        return page_response(request, page, results)

    def _create(self, request: Request) -> Response:
        row = self.model(**self.validate(self.serializer_class, request.data))
        with require_visible_after(row, self.scope):
            self.save_row(row)
        headers = {"ETag": etag(row), "Location": row_url(request, self.url_name, row.pk)}
        data: Any = self.serializer_class(row).data
        return Response(data, status=201, headers=headers)

    def _retrieve(self, name: str) -> Response:
        return self._response(self._row(name))

    def _save(self, request: Request, name: str, *, partial: bool) -> Response:
        row = self._row(name)
        check_match(request, row)
        serializer = self.content_serializer_class(row, data=request.data, partial=partial)
        serializer.is_valid(raise_exception=True)
        serializer.set_validated_values()
        with conflict_as_precondition_failed(), require_visible_after(row, self.scope):
            self.save_row(row, expected_version=row.version)
        return self._response(row)

    def _destroy(self, request: Request, name: str) -> Response:
        row = self._row(name)
        check_match(request, row)
        try:
            with conflict_as_precondition_failed():
                self.delete_row(row, expected_version=row.version)
        except NotPossible:
            if has_model_permission(request.user, "view_job") and not self.scope.narrows(Job):
                raise
            raise ActionRefused(self.in_use_text % {"name": name}) from None
        return Response(status=204)

    def _row(self, name: str) -> N:
        try:
            check_storable(name)
        except ValueError:
            raise NotFound from None
        return row_or_404(self.scope.rows(self.model), name)

    def _response(self, row: N) -> Response:
        serializer: Serializer[Any] = self.serializer_class(row)
        return Response(serializer.data, headers={"ETag": etag(row)})
