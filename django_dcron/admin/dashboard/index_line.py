"""The health line on the admin's index: the most urgent problem, or a message that all is well."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.sites import all_sites
from django.db import DatabaseError, InterfaceError
from django.http import HttpRequest
from django.utils.translation import gettext as _

from django_dcron.admin.dashboard import health
from django_dcron.admin.display import list_url, may_view
from django_dcron.models import Dashboard

RENDERED = "_dcron_health_is_shown"
"""The request attribute that records that the page contains the line.

The index of one app extends the index of all apps, and both templates call the tag.
"""


def index_line(request: HttpRequest) -> dict[str, Any]:
    """Return the template's context.

    It's empty for users who may not view the dashboard, and for a second call in one request.
    """
    site = _site_of(request)
    if hasattr(request, RENDERED) or not (
        site.is_registered(Dashboard) and may_view(request, Dashboard, site)
    ):
        return {}
    setattr(request, RENDERED, True)
    try:
        lines = health.context(request, site)["health"]
    except (DatabaseError, InterfaceError):
        lines = [
            health.HealthLine(
                _("The scheduler's status can't be read from the database."), kind="error"
            )
        ]
    return {"line": lines[0], "others": len(lines) - 1, "dashboard_url": list_url(Dashboard, site)}


def _site_of(request: HttpRequest) -> admin.AdminSite:
    name = getattr(request, "current_app", None)
    return next((site for site in all_sites if site.name == name), admin.site)
