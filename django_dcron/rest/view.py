"""What every view of the API is: closed unless it says what it takes, JSON in and out, errors as problem details.

Authentication, throttling and further permissions are the project's own (``REST_FRAMEWORK``); all that decides what our
document says is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from django.db import models
from django.urls import reverse
from django.utils.functional import cached_property
from rest_framework.exceptions import NotFound
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.serializers import Serializer
from rest_framework.views import APIView

from django_dcron.observability.scope import Scope
from django_dcron.rest import problems
from django_dcron.rest.parsing import Parser
from django_dcron.rest.permissions import HasPermissions, project_permissions
from django_dcron.rest.rendering import OneFormat, Renderer
from django_dcron.rest.schema import Operation, Schema
from django_dcron.rest.scope import scope_of
from django_dcron.targets import redacted

LARGEST_KEY = 2**63 - 1

ARGUMENTS = ("args", "kwargs", "declared")
MAY_SEE_SECRETS = "django_dcron.change_job"

M = TypeVar("M", bound=models.Model)


class View(APIView):
    renderer_classes: Sequence[type[BaseRenderer]] = (Renderer,)
    parser_classes = (Parser,)
    content_negotiation_class = OneFormat
    metadata_class = None
    versioning_class = None
    http_method_names = ["get", "head", "post", "put", "patch", "delete"]
    schema: Schema | None = Schema()

    operations: ClassVar[Mapping[str, Operation]] = {}
    """By method."""

    @cached_property
    def scope(self) -> Scope:
        """The rows that the request may see."""
        return scope_of(self.request)

    def get_permissions(self) -> list[Any]:
        return [HasPermissions(), *project_permissions()]

    def get_exception_handler(self) -> Callable[..., Any]:
        return problems.answer

    def finalize_response(self, request: Any, response: Any, *args: Any, **kwargs: Any) -> Any:
        """Leave secrets out of the arguments of a job or a run, unless the user may change jobs."""
        data = getattr(response, "data", None)
        if (
            isinstance(data, dict)
            and response.status_code < 300
            and not request.user.has_perm(MAY_SEE_SECRETS)
        ):
            response.data = {
                name: redacted(value) if name in ARGUMENTS else value for name, value in data.items()
            }
        return super().finalize_response(request, response, *args, **kwargs)

    def asked(self, serializer_class: type[Serializer[Any]], data: Any) -> dict[str, Any]:
        """What was sent, read. Raises ``ValidationError`` by field."""
        serializer = serializer_class(data=data, context={"scope": self.scope})
        serializer.is_valid(raise_exception=True)
        return dict(serializer.validated_data)

    def query(self, request: Request) -> dict[str, Any]:
        """Of the address, as the operation has it."""
        asked = self.operations["GET"].query
        return self.asked(asked, request.query_params) if asked else {}


def row_or_404(rows: models.QuerySet[M], key: Any) -> M:
    row = rows.filter(pk=key).first()
    if row is None:
        raise NotFound
    return row


def address_of(request: Request, name: str, key: object) -> str:
    """Of a row, wherever we are mounted: it may be inside another namespace."""
    mounted: Any = request.resolver_match
    return reverse(f"{mounted.namespace}:{name}", args=[key])


def number_or_404(text: str) -> int:
    """A key from an address: of digits alone, and one that a column can hold."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 19 and int(text) <= LARGEST_KEY):
        raise NotFound
    return int(text)
