"""Optimistic locking: the ETag of a job, a calendar or a limit is its version.

A change sends the version that it is based on as ``If-Match``.

Invariant: a change is written only if the locked row still has that version
(``jobs.locking``). So no change between the comparison here and the lock is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.utils import translation
from django.utils.http import parse_etags
from django.utils.translation import gettext as _
from drf_spectacular.utils import OpenApiParameter
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request

from django_dcron.contrib.rest.problems import PreconditionFailed, PreconditionRequired
from django_dcron.exceptions import Conflict
from django_dcron.models import Calendar, Job, Limit

IF_MATCH = OpenApiParameter(
    "If-Match",
    str,
    OpenApiParameter.HEADER,
    required=True,
    description='The ETag of the version that was read, such as "3". `*` matches any version.',
)
OPTIONAL_IF_MATCH = OpenApiParameter(
    "If-Match",
    str,
    OpenApiParameter.HEADER,
    description="If sent, the ETag of the version that was read. `*` matches any version.",
)
ETAG = OpenApiParameter(
    "ETag",
    str,
    OpenApiParameter.HEADER,
    response=[200, 201],
    required=True,
    description="The version of the row.",
)
VERSION_MISMATCH = {412: "The row has another version. Nothing was saved."}
ERROR_RESPONSES = VERSION_MISMATCH | {
    428: "The If-Match header is missing.",
}


def etag(row: Job | Calendar | Limit) -> str:
    return f'"{row.version}"'


def check_match(request: Request, row: Job | Calendar | Limit) -> None:
    """Raise an API exception unless ``If-Match`` is the version of ``row``."""
    header = request.headers.get("If-Match")
    if header is None:
        raise PreconditionRequired
    if not (tags := parse_etags(header)):
        message = _("%(sent)s is not a valid ETag. Send one such as %(etag)s.")
        raise ValidationError({"If-Match": [message % {"sent": header, "etag": etag(row)}]})
    # Middleware or a proxy that compresses the response makes the ETag weak. The version is the
    # same.
    if tags != ["*"] and etag(row) not in (tag.removeprefix("W/") for tag in tags):
        message = _(
            "%(job)s has changed: its ETag is %(etag)s, not %(sent)s. Nothing was saved. "
            "Read it again and retry."
        )
        raise PreconditionFailed(message % {"job": row, "etag": etag(row), "sent": header})


def check_match_if_sent(request: Request, row: Job | Calendar | Limit) -> None:
    """Raise an API exception if ``If-Match`` was sent and isn't the version of ``row``."""
    if "If-Match" in request.headers:
        check_match(request, row)


@contextmanager
def conflict_as_precondition_failed() -> Iterator[None]:
    try:
        yield
    except Conflict as error:
        raise PreconditionFailed(error.translate(translation)) from None
