"""The base classes of all views: explicit permissions, JSON in and out, problem details.

Authentication, throttling and further permissions come from the project (``REST_FRAMEWORK``). All
settings that affect the OpenAPI document are fixed here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from django.db import models
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.functional import cached_property
from rest_framework.exceptions import NotFound
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.serializers import Serializer
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSetMixin

from django_dcron.contrib.rest import problems
from django_dcron.contrib.rest.base_serializers import EmptySerializer
from django_dcron.contrib.rest.parsing import Parser
from django_dcron.contrib.rest.permissions import HasPermissions, project_permissions
from django_dcron.contrib.rest.rendering import OneFormat, Renderer
from django_dcron.contrib.rest.schema import Operation, Schema
from django_dcron.contrib.rest.scope import rest_scope
from django_dcron.diagnosis.scope import Scope
from django_dcron.jobs.audit.actor import acting, request_actor
from django_dcron.jobs.representation import redact_document
from django_dcron.models import Via

LARGEST_KEY = 2**63 - 1

MAY_SEE_SECRETS = "django_dcron.change_job"

M = TypeVar("M", bound=models.Model)


class BaseView(APIView):
    renderer_classes: Sequence[type[BaseRenderer]] = (Renderer,)
    parser_classes = (Parser,)
    content_negotiation_class = OneFormat
    metadata_class = None
    versioning_class = None
    http_method_names = ["get", "head", "post", "put", "patch", "delete"]
    schema: Schema | None = None

    @property
    def operation(self) -> Operation | None:
        """The requested operation. None if the view doesn't support the request's method."""
        return None

    @cached_property
    def scope(self) -> Scope:
        """The rows that the request may see."""
        return rest_scope(self.request)

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Attribute the changes of the request to its user, in the audit log."""
        with acting(lambda: request_actor(self.request, Via.REST)):
            return super().dispatch(request, *args, **kwargs)

    def get_permissions(self) -> list[Any]:
        return [HasPermissions(), *project_permissions()]

    def get_exception_handler(self) -> Callable[..., Any]:
        return problems.problem_response

    def finalize_response(self, request: Any, response: Any, *args: Any, **kwargs: Any) -> Any:
        """Redact secrets in the arguments of a job or a run, unless the user may change jobs."""
        data = getattr(response, "data", None)
        if (
            isinstance(data, dict)
            and response.status_code < 300
            and not request.user.has_perm(MAY_SEE_SECRETS)
        ):
            response.data = redact_document(data)
        return super().finalize_response(request, response, *args, **kwargs)


class BaseViewSet(ViewSetMixin, BaseView):
    """A viewset whose actions are decorated with ``operation``."""

    schema = Schema()
    lookup_value_converter = "str"

    @property
    def operation(self) -> Operation | None:
        found: Operation | None = getattr(getattr(self, self.action or "", None), "operation", None)
        return found

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if self.operation is not None and self.operation.query is None:
            self.validate(EmptySerializer, request.query_params)

    def validate(self, serializer_class: type[Serializer[Any]], data: Any) -> dict[str, Any]:
        """Return the validated data of a request. Raises ``ValidationError`` by field."""
        serializer = serializer_class(data=data, context={"scope": self.scope})
        serializer.is_valid(raise_exception=True)
        return dict(serializer.validated_data)


def row_or_404(rows: models.QuerySet[M], key: Any) -> M:
    row = rows.filter(pk=key).first()
    if row is None:
        raise NotFound
    return row


def row_url(request: Request, name: str, key: object) -> str:
    """Return the URL of a row. The API may be mounted within another namespace."""
    mounted: Any = request.resolver_match
    return reverse(f"{mounted.namespace}:{name}-detail", args=[key])


def number_or_404(text: str) -> int:
    """Parse a key from a URL.

    Raises ``NotFound`` unless it consists of digits and fits the column.
    """
    if not (text.isascii() and text.isdecimal() and len(text) <= 19 and int(text) <= LARGEST_KEY):
        raise NotFound
    return int(text)
