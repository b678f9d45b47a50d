"""The health line: the most urgent problem, or a message that all is well.

Invariants:

- The index of the admin always shows the line. The app's other pages show it only while something
  is wrong. On these, a script loads it, so that the page doesn't wait for the queries.
- Only users who may view the dashboard see it.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db import DatabaseError, InterfaceError
from django.http import HttpRequest
from django.urls import reverse
from django.utils.translation import gettext as _

from django_dcron.admin.dashboard import health
from django_dcron.admin.dashboard.viewer import Viewer
from django_dcron.admin.display import list_url, may_view, site_of
from django_dcron.db.contention import is_contention
from django_dcron.models import Dashboard

STATUS_URL = "django_dcron_status_line"
RENDERED = "_dcron_health_is_shown"
"""The attribute of a request whose page already contains the line.

The index of one app extends the index of all apps, and both templates call the tag.
"""


def index_line(request: HttpRequest) -> dict[str, Any]:
    """Return the context of the line.

    It's empty for users who may not view the dashboard, and for a second call in one request.
    """
    site = site_of(request)
    if hasattr(request, RENDERED) or not may_view(request, Dashboard, site):
        return {}
    setattr(request, RENDERED, True)
    return line_context(request, site)


def status_line_url(request: HttpRequest) -> dict[str, Any]:
    """Return the URL of the line, or nothing for users who may not view the dashboard."""
    site = site_of(request)
    if not may_view(request, Dashboard, site):
        return {}
    return {"status_url": reverse(f"admin:{STATUS_URL}", current_app=site.name)}


def line_context(
    request: HttpRequest, site: admin.AdminSite, *, allow_cached: bool = False
) -> dict[str, Any]:
    """Return the most urgent line, the number of other problems and the dashboard's URL."""
    try:
        lines = health.context(Viewer.of(request, site), allow_cached=allow_cached)["health"]
    except (DatabaseError, InterfaceError) as error:
        text = (
            _(
                "Another session has locked tables of django-dcron in the database. Until it ends, "
                "runs may not start, and the scheduler's status can't be read."
            )
            if is_contention(error)
            else _(
                "The scheduler's status can't be read from the database. If tables are missing, "
                "run manage.py migrate."
            )
        )
        lines = [health.HealthLine(text, kind="error")]
    return {"line": lines[0], "others": len(lines) - 1, "dashboard_url": list_url(Dashboard, site)}
