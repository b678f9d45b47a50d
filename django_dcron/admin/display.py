"""Render times, durations, states and links as HTML. Text from users and logs is escaped."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from django.contrib import admin
from django.contrib.admin.sites import all_sites
from django.db.models import Model
from django.http import HttpRequest
from django.urls import reverse
from django.utils import translation
from django.utils.functional import lazy
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.timezone import get_current_timezone_name, localtime
from django.utils.translation import gettext as _

from django_dcron.db import clock
from django_dcron.models import Job
from django_dcron.models.attempt import OUTCOME_LABELS
from django_dcron.models.run import STATE_LABELS
from django_dcron.policies.lifecycle import State
from django_dcron.utils import time_format
from django_dcron.utils.durations import write_duration

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

EMPTY = "-"
MINUTE = timedelta(minutes=1)

_STATES: dict[str, StrOrPromise] = dict(STATE_LABELS)
_OUTCOMES: dict[str, StrOrPromise] = dict(OUTCOME_LABELS)


def render_time(value: datetime | None, near: datetime | None = None, fraction: int = 0) -> str:
    """Render a time in the site's time zone, with the exact value as its title.

    The precision is seconds, plus ``fraction`` digits. The date is omitted if it's the date of
    ``near``.
    """
    if value is None:
        return EMPTY
    local = localtime(value)
    same_day = near is not None and localtime(near).date() == local.date()
    time = f"{local:%H:%M:%S}" + (f".{local:%f}"[: fraction + 1] if fraction else "")
    return format_html(
        '<time class="dcron-moment" datetime="{}" title="{}">{}</time>',
        value.isoformat(),
        f"{local:%Y-%m-%d %H:%M:%S.%f %Z}",
        time if same_day else f"{local:%Y-%m-%d} {time}",
    )


def render_exact_time(value: datetime | None, near: datetime | None = None) -> str:
    """Render a time with milliseconds."""
    return render_time(value, near, fraction=3)


def time_in_zone(value: datetime, zone: str) -> str:
    return f"{value.astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M:%S} {zone}"


def duration_or_empty(value: timedelta | None) -> str:
    return EMPTY if value is None else time_format.format_duration(value)


def time_ago_text(value: timedelta) -> str:
    """Format how long ago something happened, in the active language."""
    return time_format.format_time_ago(value).translate(translation)


def time_left(at: datetime) -> str:
    """Return the time left in whole minutes, so that a refreshed part changes once per minute."""
    left = at - clock.now()
    if left <= -MINUTE:
        late = -left
        span = write_duration(late - late % MINUTE, " ")
        return _("overdue by %(span)s") % {"span": span}
    if left <= timedelta():
        return _("now")
    if left < MINUTE:
        return _("in less than a minute")
    return _("in %(span)s") % {"span": write_duration(left - left % MINUTE, " ")}


def badge(kind: str, label: StrOrPromise) -> SafeString:
    """Render a colored label. The color adds no information to the label."""
    return format_html('<span class="dcron-badge dcron-{}">{}</span>', kind, label)


def state_badge(state: str) -> str:
    return badge(state, _STATES.get(state, state)) if state else EMPTY


def outcome_badge(outcome: str) -> str:
    """Render the outcome of an attempt. An attempt without an outcome is still running."""
    return (
        badge(outcome, _OUTCOMES.get(outcome, outcome)) if outcome else state_badge(State.RUNNING)
    )


def text_anchor(x: float, *, margin: float) -> str:
    """Return the text anchor of an SVG label at ``x`` percent of the image's width.

    Labels within ``margin`` percent of an end begin or end at ``x``, so that they stay inside.
    """
    if x < margin:
        return "start"
    return "end" if x > 100 - margin else "middle"


def render_muted(text: StrOrPromise) -> str:
    return format_html('<div class="dcron-quiet">{}</div>', text) if text else ""


def breakable(path: str) -> SafeString:
    """Render a dotted path that a browser may break after ``.``, ``:`` and ``_``."""
    parts = re.split(r"(?<=[.:_])(?=[^.:_])", path)
    return format_html_join(SafeString("<wbr>"), "{}", ((part,) for part in parts))


def preformatted(text: str) -> str:
    return format_html('<pre class="dcron-text">{}</pre>', text) if text else EMPTY


def change_url(obj: Model, site: admin.AdminSite) -> str:
    options = obj._meta
    name = f"admin:{options.app_label}_{options.model_name}_change"
    return reverse(name, args=[obj.pk], current_app=site.name)


def list_url(model: type[Model], site: admin.AdminSite, **lookups: str) -> str:
    """Return the URL of the list, filtered by ``lookups``."""
    options = model._meta
    name = f"admin:{options.app_label}_{options.model_name}_changelist"
    return reverse(name, current_app=site.name) + (f"?{urlencode(lookups)}" if lookups else "")


def link(obj: Model, site: admin.AdminSite, text: object = None) -> SafeString:
    """Return a link to the page of ``obj``. A deleted job has no page."""
    if isinstance(obj, Job) and obj.deleted_at is not None:
        return format_html("{}", obj if text is None else text)
    return format_html('<a href="{}">{}</a>', change_url(obj, site), obj if text is None else text)


def may_view(request: HttpRequest, model: type[Model], site: admin.AdminSite) -> bool:
    return site.is_registered(model) and site.get_model_admin(model).has_view_permission(request)


def site_of(request: HttpRequest) -> admin.AdminSite:
    """Return the admin site of the request's page."""
    name = getattr(request, "current_app", None) or getattr(
        getattr(request, "resolver_match", None), "namespace", None
    )
    return next((site for site in all_sites if site.name == name), admin.site)


Column = Callable[[Any, Any], str]


def with_site_zone(title: StrOrPromise) -> StrOrPromise:
    """Return a column's title that names the time zone of its times."""
    zoned: StrOrPromise = lazy(lambda: f"{title} ({get_current_timezone_name()})", str)()
    return zoned


def moment_column(
    field: str, title: StrOrPromise, near: str | None = None, show: Callable[..., str] = render_time
) -> Column:
    """Return a column or read-only field that shows a time.

    ``near`` is the name of a field with another time. The column omits the date if both times are
    on the same day.
    """

    @admin.display(description=title)
    def column(model_admin: object, obj: Model) -> str:
        return show(getattr(obj, field), getattr(obj, near) if near else None)

    return column
