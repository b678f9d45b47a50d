"""Draw the failed attempts of an incident over time as bars, with the total as text."""

from __future__ import annotations

from datetime import datetime

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import ngettext

from django_dcron.policies.incidents import Trend, trend_in_steps

STEP_WIDTH, BAR_WIDTH, HEIGHT = 5, 4, 24  # pixels
MIN_BAR_HEIGHT = 2
"""Pixels, so that the bar of a few failures stays visible."""


def render_trend(trend: Trend, now: datetime, hours: int, steps: int) -> SafeString:
    """Return an image of the last ``steps`` intervals of ``hours`` hours.

    It has a bar for each interval that has failed attempts. Empty if there were none.
    """
    counts = trend_in_steps(trend, now, hours, steps)
    most = max(counts)
    if not most:
        return SafeString("")
    heights = [
        max(round(HEIGHT * count / most), MIN_BAR_HEIGHT) if count else 0 for count in counts
    ]
    bars = (
        (STEP_WIDTH * number, HEIGHT - height, BAR_WIDTH, height)
        for number, height in enumerate(heights)
        if height
    )
    label = _label(sum(counts), hours * steps)
    return format_html(
        '<svg class="dcron-trend" width="{}" height="{}" role="img" aria-label="{}">'
        '<title>{}</title><path class="dcron-trend-base" d="M0 {}h{}"/>{}</svg>',
        STEP_WIDTH * steps,
        HEIGHT + 1,
        label,
        label,
        HEIGHT + 0.5,
        STEP_WIDTH * steps,
        format_html_join(
            "",
            '<rect class="dcron-fill dcron-failed" x="{}" y="{}" width="{}" height="{}"/>',
            bars,
        ),
    )


def _label(count: int, hours: int) -> str:
    days, rest = divmod(hours, 24)
    if days > 1 and not rest:
        return ngettext(
            "%(count)d failed attempt in %(days)d days",
            "%(count)d failed attempts in %(days)d days",
            count,
        ) % {"count": count, "days": days}
    return ngettext(
        "%(count)d failed attempt in %(hours)d h", "%(count)d failed attempts in %(hours)d h", count
    ) % {"count": count, "hours": hours}
