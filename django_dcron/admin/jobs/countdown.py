"""Render the time left until a run, which a script counts down.

Invariants:

- Without the script, the page shows the time left when it was loaded.
- The script gets the texts of the active language and the server's time, so that a browser with a
  wrong clock counts down correctly.
- The script counts down only to times in the future when they were rendered. Once such a time has
  passed, the script shows by how much the run is overdue, as ``time_left`` does.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.utils.html import format_html
from django.utils.translation import gettext as _

from django_dcron.admin.display import render_time
from django_dcron.db import clock
from django_dcron.policies.freezing import FreezeExtent
from django_dcron.utils.durations import write_duration

MINUTE = timedelta(minutes=1)


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
