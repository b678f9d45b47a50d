"""The health endpoints of a Django site: the state of the process, its database and the system.

Invariants:

- A view reads the user only if it needs permissions, because a probe has no session.
- ``health`` shows names only to staff who may view them. All others get numbers.
- No view runs in a transaction, because opening one needs the database.
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

from django_dcron.db.contention import is_contention
from django_dcron.db.error_remedies import accepts_no_connections, remedy_for
from django_dcron.db.errors import in_one_line
from django_dcron.db.routing import alias_for
from django_dcron.db.session_limits import limited_lock_waits
from django_dcron.diagnosis.system_health import read_facts
from django_dcron.models import Run
from django_dcron.monitoring import health_json
from django_dcron.monitoring.http.response import RenderedResponse, json_response, text_response
from django_dcron.monitoring.migration_check import missing_migration
from django_dcron.policies.health.verdict import SystemStatus, assess

logger = logging.getLogger("django_dcron.monitoring")

DATABASE_UNUSABLE = "the database is unreachable or lacks the tables of django_dcron; see the log"
DATABASE_LOCKED = "another session has locked tables of django_dcron in the database; see the log"
DATABASE_FULL = "the database accepts no further connections; see the log"

View = Callable[[HttpRequest], HttpResponse]


def probe_view(respond: Callable[[HttpRequest], RenderedResponse]) -> View:
    """Return a view for GET and HEAD requests: no authentication, no caching, no transaction."""

    def view(request: HttpRequest) -> HttpResponse:
        status, content_type, body = respond(request)
        return HttpResponse(body, status=status, content_type=content_type)

    for alias in connections:
        view = transaction.non_atomic_requests(alias)(view)
    wrapped: View = login_not_required(never_cache(require_safe(view)))
    return wrapped


@probe_view
def livez(request: HttpRequest) -> RenderedResponse:
    """Answer that the process is alive, without using the database."""
    return text_response("ok", healthy=True)


@probe_view
def readyz(request: HttpRequest) -> RenderedResponse:
    """Check that the database is reachable and has the tables of this release."""
    try:
        missing = missing_migration()
    except (DatabaseError, InterfaceError) as error:
        _log(error)
        return text_response(_reason_for(error), healthy=False)
    return text_response(
        f"migration missing: {missing}; run manage.py migrate" if missing else "ok",
        healthy=not missing,
    )


@probe_view
def health(request: HttpRequest) -> RenderedResponse:
    """Return the health verdict that the dashboard and ``dcron doctor`` also show."""
    try:
        sees_jobs, sees_nodes = _may(request, "view_job"), _may(request, "view_node")
        with limited_lock_waits(alias_for(Run)):
            facts = read_facts(serves_requests=True)
            verdict = assess(facts.visible(jobs=sees_jobs, nodes=sees_nodes))
            content = health_json.verdict_as_json(verdict)
            if sees_nodes:
                content["nodes"] = health_json.nodes_as_json()
        return json_response(content, healthy=verdict.status is not SystemStatus.UNFIT)
    except (DatabaseError, InterfaceError) as error:
        _log(error)
        if is_contention(error):
            code, reason = "database_locked", DATABASE_LOCKED
        else:
            code, reason = "database_unusable", _reason_for(error)
        content = health_json.error_as_json(code, reason, remedy_for(error))
        return json_response(content, healthy=False)


def _reason_for(error: Exception) -> str:
    """Return what is known, without the error's text, which may contain secrets."""
    return DATABASE_FULL if accepts_no_connections(error) else DATABASE_UNUSABLE


def _may(request: HttpRequest, permission: str) -> bool:
    user: Any = getattr(request, "user", None)
    return (
        user is not None
        and user.is_active
        and user.is_staff
        and user.has_perm(f"django_dcron.{permission}")
    )


def _log(error: Exception) -> None:
    logger.warning("probe failed: error=%s", in_one_line(error), extra={"event": "probe_failed"})
