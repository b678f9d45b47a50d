"""Render the time left until a run, which a script counts down.

Invariants:

- Without the script, the page shows the time left when it was loaded.
- The script gets the texts of the active language and the server's time, so that a browser with a
  wrong clock counts down correctly.
- The script counts down only to times in the future when they were rendered. Once such a time has
  passed, the script shows by how much the run is overdue, as ``time_left`` does.
"""

from __future__ import annotations

from datetime import datetime

from django.utils.html import format_html
from django.utils.translation import gettext as _

from django_dcron.admin.display import render_time, time_left
from django_dcron.db import clock
from django_dcron.policies.freezing import FreezeExtent


def time_until(at: datetime, freeze: FreezeExtent | None) -> str:
    """Render the time left until ``at``, or the end of the freeze that holds the run back."""
    if freeze is None:
        return countdown(at)
    if freeze.until is None:
        return _("frozen")
    return format_html(_("frozen until {until}"), until=render_time(freeze.until, near=clock.now()))


def countdown(at: datetime) -> str:
    """Render the time left until ``at``."""
    text = time_left(at)
    if at <= clock.now():
        return text
    return format_html(
        '<time class="dcron-countdown" datetime="{}" data-dcron-countdown>{}</time>',
        at.isoformat(),
        text,
    )


def countdown_texts() -> dict[str, str]:
    """Return the server's time and the texts for the script, with ``{span}`` for a duration."""
    placeholder = {"span": "{span}"}
    return {
        "now": clock.now().isoformat(),
        "ahead": _("in %(span)s") % placeholder,
        "due": _("now"),
        "past": _("overdue by %(span)s") % placeholder,
    }
