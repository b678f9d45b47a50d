"""Filters and tags for the admin's templates: ``{% load dcron %}``."""

from typing import Any

from django.apps import apps
from django.template import Context, Library
from django.utils.safestring import SafeString
from django_htmx.jinja import htmx_script

from django_dcron.admin import display
from django_dcron.admin.dashboard.index_line import index_line
from django_dcron.observability import lengths

register = Library()
register.filter("moment", display.moment)
register.filter("exact_moment", display.exact_moment)
register.filter("span", display.span)
register.filter("state_badge", display.state_badge)
register.filter("outcome_badge", display.outcome_badge)
register.filter("lateness", lengths.lateness)
register.filter("duration", lengths.duration)


@register.inclusion_tag("admin/django_dcron/health_line.html", takes_context=True)
def dcron_health(context: Context) -> dict[str, Any]:
    """One line on how the system is, for those who may view the dashboard: ``{% dcron_health %}``."""
    return index_line(context["request"])


@register.simple_tag
def htmx() -> str:
    """htmx's own script; without ``django_htmx`` among the installed apps its file is not served."""
    return htmx_script(version=2) if apps.is_installed("django_htmx") else SafeString()
