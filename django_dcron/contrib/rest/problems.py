"""Errors as problem details (RFC 9457).

Only the views of this package use this handler, so the project's ``EXCEPTION_HANDLER`` is
unaffected. ``errors`` maps invalid fields to their messages. Unexpected exceptions are raised, so
the project's error reporting sees them.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from http.client import responses
from typing import Any

from django.core.exceptions import NON_FIELD_ERRORS, PermissionDenied, ValidationError
from django.http import Http404
from django.utils import translation
from django.utils.translation import gettext_lazy as _
from rest_framework import exceptions, serializers
from rest_framework.exceptions import APIException
from rest_framework.response import Response
from rest_framework.settings import api_settings
from rest_framework.views import set_rollback

from django_dcron.contrib.rest.rendering import Renderer
from django_dcron.exceptions import (
    Conflict,
    IdempotencyKeyReused,
    InvalidArguments,
    InvalidSchedule,
    InvalidValue,
    NotPossible,
    UnknownTarget,
)
from django_dcron.jobs.saving import TAKEN

MEDIA_TYPE = "application/problem+json"
NON_FIELD_KEY = "non_field_errors"


class ActionRefused(APIException):
    """The state of the row doesn't allow the action."""

    status_code = HTTPStatus.CONFLICT
    default_code = "conflict"


class RefusedRows(ActionRefused):
    """Rows of a request were changed by someone else. ``errors``: messages by path."""

    def __init__(self, errors: Mapping[str, list[str]]):
        super().__init__(next(iter(errors.values()))[0])
        self.errors = dict(errors)


class PreconditionFailed(APIException):
    status_code = HTTPStatus.PRECONDITION_FAILED
    default_code = "version_mismatch"


class PreconditionRequired(APIException):
    status_code = HTTPStatus.PRECONDITION_REQUIRED
    default_code = "if_match_required"
    default_detail = _(
        "The If-Match header is missing. Send the ETag that you read, so "
        "that no change by someone else is lost."
    )


class KeyReused(APIException):
    status_code = HTTPStatus.UNPROCESSABLE_ENTITY
    default_code = "key_reused"


class ContentTooLarge(APIException):
    status_code = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    default_code = "too_large"


class AlreadyExists(exceptions.ValidationError):
    """A row has the name already, and the request is valid otherwise."""

    default_code = "already_exists"


class ProblemSerializer(serializers.Serializer[Any]):
    """Why a request was refused (RFC 9457)."""

    type = serializers.CharField(
        read_only=True, help_text="Always about:blank. The code identifies the problem."
    )
    title = serializers.CharField(read_only=True, help_text="The name of the HTTP status.")
    status = serializers.IntegerField(read_only=True)
    detail = serializers.CharField(read_only=True)
    code = serializers.CharField(read_only=True, help_text="A stable code of the kind of problem.")
    errors = serializers.DictField(  # type: ignore[assignment]  # DRF removes fields from the class
        child=serializers.ListField(child=serializers.CharField()),
        required=False,
        help_text="Messages by field, parameter or header. In a request for several jobs: by path, "
        "such as jobs.3.schedule.",
    )


def by_fields(error: ValidationError) -> exceptions.ValidationError:
    """Convert a model's validation error to one of REST framework, by field."""
    if not hasattr(error, "error_dict"):
        return exceptions.ValidationError({NON_FIELD_KEY: error.messages})
    kind = AlreadyExists if has_only_taken_names(error) else exceptions.ValidationError
    found = {
        NON_FIELD_KEY if name == NON_FIELD_ERRORS else name: texts
        for name, texts in error.message_dict.items()
    }
    return kind(found)


def has_only_taken_names(error: Exception) -> bool:
    """Return whether the row is refused only because another one has its name."""
    if not isinstance(error, ValidationError):
        return False
    codes = {each.code for errors in error.update_error_dict({}).values() for each in errors}
    return bool(codes) and codes <= TAKEN


def problem_response(error: Exception, context: dict[str, Any]) -> Response | None:
    """Return the response to an exception, as an ``EXCEPTION_HANDLER`` of REST framework does."""
    known = _as_api_exception(error)
    if known is None:
        return None
    headers = {}
    if auth_header := getattr(known, "auth_header", None):
        headers["WWW-Authenticate"] = auth_header
    if wait := getattr(known, "wait", None):
        headers["Retry-After"] = str(int(wait))
    set_rollback()
    request = context["request"]
    request.accepted_renderer, request.accepted_media_type = Renderer(), Renderer.media_type
    return Response(
        _body(known), status=known.status_code, headers=headers, content_type=MEDIA_TYPE
    )


def _as_api_exception(error: Exception) -> APIException | None:
    match error:
        case APIException():
            return error
        case Http404():
            return exceptions.NotFound()
        case PermissionDenied():
            return exceptions.PermissionDenied(*error.args)
        case InvalidArguments():
            return exceptions.ValidationError({error.field: [error.translate(translation)]})
        case InvalidValue():
            return exceptions.ValidationError({error.field: [error.problem.translate(translation)]})
        case ValidationError():
            return by_fields(error)
        case IdempotencyKeyReused():
            return KeyReused(error.translate(translation))
        case Conflict() | NotPossible() | UnknownTarget() | InvalidSchedule():
            return ActionRefused(error.translate(translation))
        case _:
            return None


def _body(error: APIException) -> dict[str, Any]:
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": responses.get(int(error.status_code), "Error"),
        "status": int(error.status_code),
    }
    if isinstance(error, RefusedRows):
        return body | _detail_and_code(error) | {"errors": error.errors}
    if not isinstance(error, exceptions.ValidationError):
        return body | _detail_and_code(error)
    detail = error.detail
    errors = detail if isinstance(detail, dict) else {NON_FIELD_KEY: detail}
    renamed_key = api_settings.NON_FIELD_ERRORS_KEY  # the project may have renamed the key
    texts = {
        NON_FIELD_KEY if name == renamed_key else str(name): _texts(each)
        for name, each in errors.items()
    }
    first_name, first_texts = next(iter(texts.items()))
    summary = first_texts[0] if first_name == NON_FIELD_KEY else f"{first_name}: {first_texts[0]}"
    return body | {"detail": summary, "code": error.default_code, "errors": texts}


def _detail_and_code(error: APIException) -> dict[str, Any]:
    """Return the items ``detail`` and ``code`` of a problem.

    The project's authentication may raise an object or a list. An object's ``detail`` item becomes
    the detail.
    """
    detail: Any = (
        error.detail.get("detail", error.detail) if isinstance(error.detail, dict) else error.detail
    )
    return {
        "detail": " ".join(_texts(detail)),
        "code": getattr(detail, "code", None) or error.default_code,
    }


def _texts(detail: Any) -> list[str]:
    """Return the messages of a field, which may contain nested lists and objects."""
    if isinstance(detail, dict):
        return [f"{name}: {text}" for name, inner in detail.items() for text in _texts(inner)]
    if isinstance(detail, list | tuple):
        return [text for inner in detail for text in _texts(inner)]
    return [str(detail)]
