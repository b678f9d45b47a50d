"""Filters and tags of the admin's templates: ``{% load dcron %}``."""

from typing import Any

from django.apps import apps
from django.template import Context, Library
from django.templatetags.static import static
from django.utils.html import format_html
from django.utils.safestring import SafeString

from django_dcron.admin import display
from django_dcron.admin.dashboard.index_line import index_line, status_line_url
from django_dcron.admin.freeze import banner
from django_dcron.admin.jobs.palette import palette_context
from django_dcron.admin.themes import theme
from django_dcron.diagnosis import run_durations

register = Library()
register.filter("moment", display.render_time)
register.filter("exact_moment", display.render_exact_time)
register.filter("format_duration", display.duration_or_empty)
register.filter("state_badge", display.state_badge)
register.filter("outcome_badge", display.outcome_badge)
register.filter("duration", run_durations.run_duration)


@register.inclusion_tag("admin/django_dcron/health_line.html", takes_context=True)
def dcron_health(context: Context) -> dict[str, Any]:
    """Render the health line for users who may view the dashboard: ``{% dcron_health %}``."""
    return index_line(context["request"])


@register.inclusion_tag("admin/django_dcron/page_header.html", takes_context=True)
def dcron_page_header(context: Context) -> dict[str, Any]:
    """Render the freezes, the health line if something is wrong, and the command palette.

    Each needs a permission. A script loads the health line into an empty element.
    """
    request = context["request"]
    return {
        **banner(request),
        **status_line_url(request),
        **palette_context(request, display.site_of(request)),
        "request": request,
    }


@register.inclusion_tag("admin/django_dcron/freezes.html", takes_context=True)
def dcron_freezes(context: Context) -> dict[str, Any]:
    """Render the freezes in force for users who may view jobs, on the indexes and the dashboard."""
    return banner(context["request"])


@register.inclusion_tag("admin/django_dcron/palette.html", takes_context=True)
def dcron_palette(context: Context) -> dict[str, Any]:
    """Render the command palette for users who may view jobs, on the dashboard."""
    request = context["request"]
    return {**palette_context(request, display.site_of(request)), "request": request}


@register.simple_tag
def htmx() -> str:
    """Return the script tag of htmx, or nothing if ``django_htmx`` isn't an installed app."""
    if not apps.is_installed("django_htmx"):
        return SafeString("")
    # Not django_htmx's own tag: if DEBUG is on, it also loads a script that replaces the whole page
    # with the response of a failed refresh, and the page would never recover.
    return format_html('<script src="{}" defer></script>', static("django_htmx/htmx-2.min.js"))


@register.simple_tag
def dcron_theme() -> str:
    """Return the name of the admin's theme if it needs its own markup, or an empty string."""
    return theme()
