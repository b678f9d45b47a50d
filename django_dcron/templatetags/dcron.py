"""Filters for the admin's templates: ``{% load dcron %}``."""

from django.apps import apps
from django.template import Library
from django.utils.safestring import SafeString
from django_htmx.jinja import htmx_script

from django_dcron.admin import display
from django_dcron.observability import lengths

register = Library()
register.filter("moment", display.moment)
register.filter("exact_moment", display.exact_moment)
register.filter("span", display.span)
register.filter("state_badge", display.state_badge)
register.filter("outcome_badge", display.outcome_badge)
register.filter("lateness", lengths.lateness)
register.filter("duration", lengths.duration)


@register.simple_tag
def htmx() -> str:
    """htmx's own script; without ``django_htmx`` among the installed apps its file is not served."""
    return htmx_script(version=2) if apps.is_installed("django_htmx") else SafeString()
