"""Django's ``/metrics`` endpoint, which requires authentication because counters name jobs.

It answers clients that send ``DCRON_METRICS_TOKEN`` as a bearer token, as Prometheus does. It also
answers staff who may view jobs. A project with other access control can serve
``Collector().response`` in its own view.
"""

from __future__ import annotations

from contextlib import suppress
from http import HTTPStatus
from typing import Any

from django.db import DatabaseError, InterfaceError
from django.http import HttpRequest
from django.utils.crypto import constant_time_compare

from django_dcron.conf import settings
from django_dcron.monitoring.http.response import RenderedResponse
from django_dcron.monitoring.metrics.exposition import Collector
from django_dcron.monitoring.views import probe_view

CLOSED = "Send DCRON_METRICS_TOKEN as a bearer token, or log in as a staff user who may view jobs."

_collector = Collector()


@probe_view
def metrics(request: HttpRequest) -> RenderedResponse:
    if _has_token(request) or _may_view_jobs(request):
        return _collector.response(request.headers.get("Accept", ""))
    return RenderedResponse(
        HTTPStatus.FORBIDDEN, "text/plain; charset=utf-8", CLOSED.encode() + b"\n"
    )


def _has_token(request: HttpRequest) -> bool:
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    wanted = settings.METRICS_TOKEN
    return (
        bool(wanted) and kind.lower() == "bearer" and constant_time_compare(token.strip(), wanted)
    )


def _may_view_jobs(request: HttpRequest) -> bool:
    # Without the database, nobody can be identified as staff.
    with suppress(DatabaseError, InterfaceError):
        user: Any = getattr(request, "user", None)
        return (
            user is not None
            and user.is_active
            and user.is_staff
            and user.has_perm("django_dcron.view_job")
        )
    return False
