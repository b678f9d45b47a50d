"""The dashboard's tiles: a number each, with a link to a list of jobs or runs where one fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib import admin
from django.utils.formats import number_format
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_dcron.admin.dashboard.viewer import Viewer
from django_dcron.admin.display import (
    EMPTY,
    duration_or_empty,
    list_url,
    render_time,
)
from django_dcron.admin.lists.time_filter import PRESET
from django_dcron.diagnosis.figures import (
    JobFigures,
    LimitedCount,
    RecentStarts,
    RunFigures,
    job_figures,
    percentile,
    read_figures,
    run_figures,
)
from django_dcron.diagnosis.overdue import takeover_time
from django_dcron.models import Job, Run


@dataclass(frozen=True, slots=True)
class Tile:
    name: str
    """A name that doesn't depend on the language."""
    label: str
    value: str
    note: str
    url: str
    """The list that the tile links to. Empty if there is none.

    The list may have more rows than the tile counts, such as unfinished runs, or fewer, because a
    missed occurrence may have no row.
    """
    kind: str = ""
    """The run state whose color the tile has. Empty: no color."""


def context(viewer: Viewer) -> dict[str, Any]:
    now, scope = viewer.now, viewer.scope
    jobs, runs = None, None
    if viewer.may_view(Job, Run):
        figures = read_figures(now, scope)
        jobs, runs = figures.jobs, figures.runs
    elif viewer.may_view(Job):
        jobs = job_figures(now, scope)
    elif viewer.may_view(Run):
        runs = run_figures(now, scope)
    return {
        "tiles": [
            *(_job_tiles(jobs, now, viewer.site) if jobs else ()),
            *(_run_tiles(runs, viewer.site) if runs else ()),
        ]
    }


def _job_tiles(jobs: JobFigures, now: datetime, site: admin.AdminSite) -> Iterator[Tile]:
    counted = (
        (jobs.enabled, _("%(number)s enabled")),
        (jobs.paused, _("%(number)s paused")),
        (jobs.finished, _("%(number)s finished")),
        (jobs.quarantined, _("%(number)s quarantined")),
    )
    parts = [text % {"number": _number(number)} for number, text in counted if number]
    note = ", ".join(parts)
    yield Tile("jobs", _("Jobs"), _number(jobs.total), note, list_url(Job, site))
    first = _("none due")
    if jobs.held_back >= jobs.due_soon.number > 0:
        first = _("held back by a freeze")
    elif jobs.held_back:
        first = _("%(count)s held back by a freeze") % {"count": _number(jobs.held_back)}
    elif jobs.next_at and jobs.next_at <= now - takeover_time():
        first = format_html(_("overdue since {}"), render_time(jobs.next_at, near=now))
    elif jobs.next_at and jobs.next_at <= now:
        first = _("the first one now")
    elif jobs.next_at:
        first = format_html(_("first at {}"), render_time(jobs.next_at, near=now))
    yield Tile("due_soon", _("Jobs due in the next hour"), _count_text(jobs.due_soon), first, "")


def _run_tiles(runs: RunFigures, site: admin.AdminSite) -> Iterator[Tile]:
    since = runs.since.isoformat()
    # The preset filters by ``scheduled_at``. The index of ``due_at`` needs a filter by state, too.
    in_24_hours = list_url(Run, site, **{PRESET: "24h"})
    waiting = {"queued": _count_text(runs.queued), "waiting": _count_text(runs.waiting)}
    yield Tile(
        "running",
        _("Running now"),
        _count_text(runs.running),
        _("%(queued)s queued, %(waiting)s waiting") % waiting,
        list_url(Run, site, state__exact="running"),
        "running" if runs.running.number else "",
    )
    yield _success_rate_tile(runs, in_24_hours)

    def url_of(state: str) -> str:
        return list_url(Run, site, state__exact=state, due_at__gte=since)

    yield Tile(
        "failed",
        _("Failed runs (24 h)"),
        _count_text(runs.failed),
        _("after all attempts"),
        url_of("failed"),
        "failed" if runs.failed.number else "",
    )
    yield Tile(
        "missed",
        _("Missed occurrences (24 h)"),
        _missed_value(runs),
        _missed_note(runs),
        url_of("missed"),
        "missed" if runs.missed_occurrences else "",
    )
    yield Tile(
        "skipped",
        _("Skipped runs (24 h)"),
        _count_text(runs.skipped),
        _("because of another run of the job"),
        url_of("skipped"),
        "skipped" if runs.skipped.number else "",
    )
    yield _start_delay_tile(runs.starts, in_24_hours)


def _success_rate_tile(runs: RunFigures, url: str) -> Tile:
    rate = runs.success_rate
    percent = rate.percent
    ended = rate.succeeded + rate.failed
    if percent is None:
        note = _without_rate_note(runs.starts)
        return Tile("success_rate", _("Success rate (24 h)"), EMPTY, note, url)
    text = (
        _("of the latest %(count)s started runs")
        if rate.sampled
        else ngettext("of %(count)s run", "of %(count)s runs", ended)
    )
    value = _("%(percent)s%%") % {"percent": number_format(percent, decimal_pos=1)}
    # The rate is about the runs that started. While others are missed, it doesn't look perfect.
    kind = "succeeded" if percent == 100 and not runs.missed_occurrences else ""
    return Tile(
        "success_rate", _("Success rate (24 h)"), value, text % {"count": _number(ended)}, url, kind
    )


def _without_rate_note(starts: RecentStarts) -> str:
    """Say why there is no success rate. Shadow runs have none."""
    if not starts.shadows:
        return _("no finished runs")
    count = _number(starts.shadows)
    text = ngettext(
        "%(count)s shadow run, which executes nothing",
        "%(count)s shadow runs, which execute nothing",
        starts.shadows,
    )
    return text % {
        "count": _("%(count)s or more") % {"count": count} if starts.truncated else count
    }


def _missed_value(runs: RunFigures) -> str:
    """Return the number of missed occurrences, including those that later runs count."""
    total = _number(runs.missed_occurrences)
    return _("%(count)s or more") % {"count": total} if _is_lower_bound(runs) else total


def _is_lower_bound(runs: RunFigures) -> bool:
    return bool(runs.missed_occurrences) and (runs.missed.truncated or runs.is_lower_bound)


def _missed_note(runs: RunFigures) -> str:
    """Describe the missed occurrences. One run may count many of them."""
    if not (others := runs.counted_by_later_runs):
        if runs.starts.truncated:
            return _("in the latest %(count)s started runs") % {
                "count": _number(runs.starts.number)
            }
        return _("not started in time")
    text = ngettext(
        "%(count)s counted by a later run",
        "%(count)s counted by later runs",
        others,
    )
    if _is_lower_bound(runs):
        text = _("%(count)s counted by later runs. Older runs weren't read.")
    return text % {"count": _number(others)}


def _start_delay_tile(starts: RecentStarts, url: str) -> Tile:
    p50, p99 = (percentile(starts.start_delays, percent) for percent in (50, 99))
    if p50 is None:
        return Tile(
            "start_delay", _("Start delay (p50 / p99)"), EMPTY, _("no started runs in 24 h"), url
        )
    text = (
        _("of the latest %(count)s started runs")
        if starts.truncated
        else ngettext("of %(count)s started run", "of %(count)s started runs", starts.number)
    )
    value = _("%(p50)s / %(p99)s") % {
        "p50": duration_or_empty(p50),
        "p99": duration_or_empty(p99),
    }
    return Tile(
        "start_delay",
        _("Start delay (p50 / p99)"),
        value,
        text % {"count": _number(starts.number)},
        url,
    )


def _number(value: int) -> str:
    return number_format(value, force_grouping=True)


def _count_text(count: LimitedCount) -> str:
    number = _number(count.number)
    return _("more than %(limit)s") % {"limit": number} if count.truncated else number
