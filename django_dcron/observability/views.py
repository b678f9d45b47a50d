"""What Django answers to probes: of this process, its database and the cluster's nodes.

None asks who is there before it has to: a probe has no session. Names are for staff who may view nodes; to all others
``health`` tells numbers. None of the views is in a transaction, which would ask the database before they can.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.db import DatabaseError, InterfaceError, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from django_dcron.models.database import in_one_line as error_in_one_line
from django_dcron.observability import cluster_health
from django_dcron.observability.http.answer import Answer, as_json, in_one_line
from django_dcron.observability.migrated import missing_migration
from django_dcron.scheduler.health import Status

logger = logging.getLogger("django_dcron.observability")

NO_ANSWER = "the database does not answer, or has no tables of django_dcron; the log says more"

View = Callable[[HttpRequest], HttpResponse]


def for_probes(answer: Callable[[HttpRequest], Answer]) -> View:
    """A view that answers GET and HEAD, to anybody, at any time."""

    def view(request: HttpRequest) -> HttpResponse:
        status, content_type, body = answer(request)
        return HttpResponse(body, status=status, content_type=content_type)

    for alias in connections:
        view = transaction.non_atomic_requests(alias)(view)
    guarded: View = login_not_required(never_cache(require_safe(view)))
    return guarded


@for_probes
def livez(request: HttpRequest) -> Answer:
    """The process answers; nothing else is asked."""
    return in_one_line("ok", well=True)


@for_probes
def readyz(request: HttpRequest) -> Answer:
    """The database answers and has the tables of this release."""
    try:
        missing = missing_migration()
    except (DatabaseError, InterfaceError) as error:
        _log(error)
        return in_one_line(NO_ANSWER, well=False)
    return in_one_line(f"not migrated: {missing} is missing" if missing else "ok", well=not missing)


@for_probes
def health(request: HttpRequest) -> Answer:
    """The cluster, by the rows of its nodes."""
    try:
        read = cluster_health.read()
        return as_json(read.as_json(names=_may_see_names(request)), well=read.status.fit)
    except (DatabaseError, InterfaceError) as error:
        _log(error)
        return as_json({"status": Status.UNFIT.value, "reasons": [NO_ANSWER]}, well=False)


def _may_see_names(request: HttpRequest) -> bool:
    user: Any = getattr(request, "user", None)
    return user is not None and user.is_active and user.is_staff and user.has_perm("django_dcron.view_node")


def _log(error: Exception) -> None:
    logger.warning("a probe was told so: %s", error_in_one_line(error), extra={"event": "probe_failed"})
