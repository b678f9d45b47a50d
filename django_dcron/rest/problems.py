"""Errors as problem details (RFC 9457), for our views alone: the project's own ``EXCEPTION_HANDLER`` is left as it is.

``errors`` is there when fields are to blame: their names, and what is wrong with each. What is nobody's fault but ours is raised
further, so that the project's own reports see it.
"""

from __future__ import annotations

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

from django_dcron.exceptions import (
    Conflict,
    InvalidArguments,
    InvalidSchedule,
    InvalidValue,
    NotPossible,
    UnknownTarget,
)
from django_dcron.rest.rendering import Renderer

MEDIA_TYPE = "application/problem+json"
OF_ALL = "non_field_errors"


class Refused(APIException):
    """The job or run, as it is, does not allow it."""

    status_code = HTTPStatus.CONFLICT
    default_code = "conflict"


class PreconditionFailed(APIException):
    status_code = HTTPStatus.PRECONDITION_FAILED
    default_code = "version_mismatch"


class PreconditionRequired(APIException):
    status_code = HTTPStatus.PRECONDITION_REQUIRED
    default_code = "if_match_required"
    default_detail = _("Send its ETag as If-Match, so that nobody's change is lost.")


class KeyReused(APIException):
    status_code = HTTPStatus.UNPROCESSABLE_ENTITY
    default_code = "key_reused"


class TooLarge(APIException):
    status_code = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    default_code = "too_large"


class ProblemSerializer(serializers.Serializer[Any]):
    """Why a request was refused (RFC 9457)."""

    type = serializers.CharField(read_only=True, help_text="about:blank: the title says it.")
    title = serializers.CharField(read_only=True, help_text="The status in words.")
    status = serializers.IntegerField(read_only=True)
    detail = serializers.CharField(read_only=True)
    code = serializers.CharField(read_only=True, help_text="The same for the same kind of problem.")
    errors = serializers.DictField(  # type: ignore[assignment]  # a field is taken out of the class
        child=serializers.ListField(child=serializers.CharField()),
        required=False,
        help_text="What is wrong with each field, parameter or header.",
    )


def by_fields(error: ValidationError) -> exceptions.ValidationError:
    """What a model has against its fields."""
    if not hasattr(error, "error_dict"):
        return exceptions.ValidationError({OF_ALL: error.messages})
    found = {
        OF_ALL if name == NON_FIELD_ERRORS else name: texts for name, texts in error.message_dict.items()
    }
    return exceptions.ValidationError(found)


def answer(error: Exception, context: dict[str, Any]) -> Response | None:
    """As REST framework asks its ``EXCEPTION_HANDLER``."""
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
    return Response(_body(known), status=known.status_code, headers=headers, content_type=MEDIA_TYPE)


def _as_api_exception(error: Exception) -> APIException | None:
    match error:
        case APIException():
            return error
        case Http404():
            return exceptions.NotFound()
        case PermissionDenied():
            return exceptions.PermissionDenied()
        case InvalidArguments():
            return exceptions.ValidationError({error.field: [error.said(translation)]})
        case InvalidValue():
            return exceptions.ValidationError({error.field: [error.problem.said(translation)]})
        case ValidationError():
            return by_fields(error)
        case Conflict() | NotPossible() | UnknownTarget() | InvalidSchedule():
            return Refused(error.said(translation))
        case _:
            return None


def _body(error: APIException) -> dict[str, Any]:
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": responses.get(int(error.status_code), "Error"),
        "status": int(error.status_code),
    }
    if not isinstance(error, exceptions.ValidationError):
        return body | _told(error)
    detail = error.detail
    errors = detail if isinstance(detail, dict) else {OF_ALL: detail}
    of_all = api_settings.NON_FIELD_ERRORS_KEY  # the project may call it something else
    texts = {OF_ALL if name == of_all else str(name): _texts(each) for name, each in errors.items()}
    first_name, first_texts = next(iter(texts.items()))
    told = first_texts[0] if first_name == OF_ALL else f"{first_name}: {first_texts[0]}"
    return body | {"detail": told, "code": "invalid", "errors": texts}


def _told(error: APIException) -> dict[str, Any]:
    """What the project's own authentication raises may be more than a text; of an object, its ``detail`` is the text."""
    told: Any = error.detail.get("detail", error.detail) if isinstance(error.detail, dict) else error.detail
    return {"detail": " ".join(_texts(told)), "code": getattr(told, "code", None) or error.default_code}


def _texts(detail: Any) -> list[str]:
    """Of a field, which may itself be a list or an object with problems inside."""
    if isinstance(detail, dict):
        return [f"{name}: {text}" for name, inner in detail.items() for text in _texts(inner)]
    if isinstance(detail, list | tuple):
        return [text for inner in detail for text in _texts(inner)]
    return [str(detail)]
