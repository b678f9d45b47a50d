"""The OpenAPI document, which says no more and no less than what the views do.

drf-spectacular reads it from our views alone. What a project has set for its own document (``SPECTACULAR_SETTINGS``) is put aside
while ours is made: once in a process, under a lock, in English.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Lock
from typing import Any

from django.utils import translation
from drf_spectacular.drainage import GENERATOR_STATS
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.settings import SPECTACULAR_DEFAULTS, patched_settings
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.serializers import Serializer

from django_dcron.rest.problems import MEDIA_TYPE, ProblemSerializer

LOCATION = OpenApiParameter(
    "Location", str, OpenApiParameter.HEADER, response=[201], required=True, description="Where it is."
)
PATHS = {
    "calendar_name": {"type": "string", "minLength": 1, "maxLength": 120},
    "job_id": {"type": "integer", "minimum": 1, "maximum": 2**63 - 1},
    "run_id": {"type": "string", "format": "uuid"},
}
REFUSALS = {
    400: "Something of it cannot be read, or is not allowed; `errors` says what.",
    401: "Who asks has not said who they are.",
    403: "Who asks may not do this.",
    404: "There is no such job, calendar or run.",
    413: "The body is larger than DATA_UPLOAD_MAX_MEMORY_SIZE.",
    415: "The body is not application/json.",
    429: "Asked too often; Retry-After says when to try again.",
}
OURS = {name: value for name, value in SPECTACULAR_DEFAULTS.items() if not name.startswith("SERVE_")} | {
    "TITLE": "django-dcron",
    "DESCRIPTION": "Jobs, their calendars, their runs, and the nodes that schedule them.",
    "VERSION": "1",
    "COMPONENT_SPLIT_REQUEST": True,
    "POSTPROCESSING_HOOKS": [],
    "SCHEMA_PATH_PREFIX": "/",
}
OURS.pop("DEFAULT_GENERATOR_CLASS")

_one_at_a_time = Lock()


@dataclass(frozen=True, slots=True)
class Operation:
    """What one method of a view takes and answers: the view goes by it, and the document is made of it."""

    name: str
    summary: str
    answers: Mapping[int | tuple[int, str], Any]
    """By status, and media type where it is not JSON: the serializer of what is answered; None: nothing."""
    needs: tuple[str, ...] = ()
    """Codenames of permissions, all of which it takes."""
    query: type[Serializer[Any]] | None = None
    body: Serializer[Any] | None = None
    headers: tuple[OpenApiParameter, ...] = ()
    """Those it takes, and those of its answers."""
    refusals: Mapping[int, str] = field(default_factory=dict)
    """Problems besides those that all such operations may have: their statuses, and when."""


class Schema(AutoSchema):
    """Of one view, by its operations."""

    def get_operation(self, *args: Any, **kwargs: Any) -> Any:
        made: Any = super().get_operation(*args, **kwargs)
        for status, description in sorted(self._refusals(made).items()):
            made["responses"][str(status)] = self._problem(description)
        return made

    def get_operation_id(self) -> str:
        return self._operation.name

    def get_summary(self) -> str:
        return self._operation.summary

    def get_description(self) -> str:  # type: ignore[override]
        needs = ", ".join(self._operation.needs)
        return f"Takes the permissions {needs}." if needs else ""

    def get_tags(self) -> list[str]:
        return [self.path.split("/")[1]]

    def get_request_serializer(self) -> Any:
        return self._operation.body

    def get_response_serializers(self) -> Any:
        return dict(self._operation.answers)

    def get_override_parameters(self) -> Any:
        query = self._operation.query
        return [*self._operation.headers, *([query] if query else [])]

    @property
    def _operation(self) -> Operation:
        found: Operation = self.view.operations[self.method]  # type: ignore[attr-defined]
        return found

    def _refusals(self, made: Any) -> dict[int, str]:
        statuses = {401, 403, 429}
        places = {parameter["in"] for parameter in made.get("parameters", ())}
        statuses |= {404} if "path" in places else set()
        statuses |= {400} if places & {"query", "header"} else set()
        statuses |= {400, 413, 415} if "requestBody" in made else set()
        return {status: REFUSALS[status] for status in statuses} | dict(self._operation.refusals)

    def _problem(self, description: str) -> dict[str, Any]:
        component: Any = self.resolve_serializer(ProblemSerializer(), "response")
        return {"description": description, "content": {MEDIA_TYPE: {"schema": component.ref}}}

    def _is_list_view(self, serializer: Any = None) -> bool:
        return False  # what is answered is what the operation says

    def _resolve_path_parameters(self, variables: Any) -> list[Any]:
        return [{"in": "path", "name": name, "required": True, "schema": PATHS[name]} for name in variables]

    def _map_basic_serializer(self, serializer: Any, direction: Any) -> Any:
        schema: Any = super()._map_basic_serializer(serializer, direction)  # type: ignore[no-untyped-call]
        return schema | {"additionalProperties": False} if direction == "request" else schema


@lru_cache(maxsize=1)
def _document() -> dict[str, Any]:
    from django_dcron.rest.urls import documented  # which import this module

    with _one_at_a_time, patched_settings(OURS), GENERATOR_STATS.silence(), translation.override("en"):
        generator: Any = SchemaGenerator
        made: dict[str, Any] = generator(patterns=documented).get_schema(public=True)
    return made


def document(request: Request, here: str) -> dict[str, Any]:
    """``here``: the end of the address it was asked for at; what is before that, the site has mounted us at."""
    return {**_document(), "servers": [{"url": request.path.removesuffix(here).rstrip("/") or "/"}]}
