"""No lost update: the ETag of a job or a calendar is its version, and a change says which one it was made on.

Invariant: what is written was made on the version that the row has as it is locked (``definition.lock_version``): between the
comparison here and the lock nobody gets in unnoticed.
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

from django_dcron.exceptions import Conflict
from django_dcron.models import Calendar, Job
from django_dcron.rest.problems import PreconditionFailed, PreconditionRequired

IF_MATCH = OpenApiParameter(
    "If-Match",
    str,
    OpenApiParameter.HEADER,
    required=True,
    description='The ETag that it was read with, such as "3". With * whatever it is now.',
)
ETAG = OpenApiParameter(
    "ETag", str, OpenApiParameter.HEADER, response=[200, 201], required=True, description="Its version."
)
REFUSALS = {
    412: "It has another version by now; nothing was saved.",
    428: "There is no If-Match.",
}


def etag(row: Job | Calendar) -> str:
    return f'"{row.version}"'


def check_match(request: Request, row: Job | Calendar) -> None:
    """Raises what the answer is if ``request`` was not made on the version that ``row`` was read with."""
    header = request.headers.get("If-Match")
    if header is None:
        raise PreconditionRequired
    if not (tags := parse_etags(header)):
        told = _("%(sent)s is no ETag; write it as %(etag)s.")
        raise ValidationError({"If-Match": [told % {"sent": header, "etag": etag(row)}]})
    # What compresses the answer on its way makes the tag a weak one; it is the version all the same.
    if tags != ["*"] and etag(row) not in (tag.removeprefix("W/") for tag in tags):
        told = _("%(job)s was changed meanwhile: its ETag is %(etag)s, not %(sent)s; nothing was saved.")
        raise PreconditionFailed(told % {"job": row, "etag": etag(row), "sent": header})


@contextmanager
def conflict_is_mismatch() -> Iterator[None]:
    try:
        yield
    except Conflict as error:
        raise PreconditionFailed(error.said(translation)) from None
