"""What Django answers to probes: about this process, its database and the system's health.

No view asks who is there before it has to: a probe has no session. ``health`` shows names to staff who may view them, and
numbers to all others. None of the views is in a transaction, which would ask the database before they can.
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

from django_dcron.domain.system_health import SystemStatus, assess
from django_dcron.models.database import in_one_line as error_in_one_line
from django_dcron.observability import health_json
from django_dcron.observability.http.answer import Answer, as_json, in_one_line
from django_dcron.observability.migrated import missing_migration
from django_dcron.observability.system_health import read_facts

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
    """The verdict that the dashboard and the doctor show, too."""
    try:
        facts = read_facts()
        sees_nodes = _may(request, "view_node")
        verdict = assess(facts.visible(jobs=_may(request, "view_job"), nodes=sees_nodes))
        content = health_json.as_json(verdict)
        if sees_nodes:
            content["nodes"] = health_json.nodes_as_json()
        return as_json(content, well=verdict.status is not SystemStatus.UNFIT)
    except (DatabaseError, InterfaceError) as error:
        _log(error)
        content = {"status": SystemStatus.UNFIT.value, "summary": NO_ANSWER, "reasons": [NO_ANSWER]}
        return as_json(content, well=False)


def _may(request: HttpRequest, permission: str) -> bool:
    user: Any = getattr(request, "user", None)
    return (
        user is not None and user.is_active and user.is_staff and user.has_perm(f"django_dcron.{permission}")
    )


def _log(error: Exception) -> None:
    logger.warning("a probe was told so: %s", error_in_one_line(error), extra={"event": "probe_failed"})
