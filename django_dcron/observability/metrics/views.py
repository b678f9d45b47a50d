"""``/metrics`` of Django: counters name jobs, so it is closed unless one may see these.

Open to who sends ``DCRON_METRICS_TOKEN`` as a bearer token, as Prometheus does, and to people who may view jobs in the admin. A project
that keeps strangers out by other means puts ``Collector().answer`` into a view of its own.
"""

from __future__ import annotations

from contextlib import suppress
from http import HTTPStatus
from typing import Any

from django.db import DatabaseError, InterfaceError
from django.http import HttpRequest
from django.utils.crypto import constant_time_compare

from django_dcron.conf import settings
from django_dcron.observability.http.answer import Answer
from django_dcron.observability.metrics.exposition import Collector
from django_dcron.observability.views import for_probes

CLOSED = "Send DCRON_METRICS_TOKEN as a bearer token, or log in as staff who may view jobs."

_collector = Collector()


@for_probes
def metrics(request: HttpRequest) -> Answer:
    if _has_token(request) or _may_view_jobs(request):
        return _collector.answer(request.headers.get("Accept", ""))
    return Answer(HTTPStatus.FORBIDDEN, "text/plain; charset=utf-8", CLOSED.encode() + b"\n")


def _has_token(request: HttpRequest) -> bool:
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    wanted = settings.METRICS_TOKEN
    return bool(wanted) and kind.lower() == "bearer" and constant_time_compare(token.strip(), wanted)


def _may_view_jobs(request: HttpRequest) -> bool:
    with suppress(DatabaseError, InterfaceError):  # nobody can be told to be staff while the database is away
        user: Any = getattr(request, "user", None)
        return (
            user is not None and user.is_active and user.is_staff and user.has_perm("django_dcron.view_job")
        )
    return False
