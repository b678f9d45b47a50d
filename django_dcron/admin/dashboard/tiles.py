"""The dashboard's tiles: a few figures, each linked to the list of what it counts if there is one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.formats import number_format
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_dcron.admin.display import EMPTY, list_url, may_view, moment, span
from django_dcron.admin.lists.time_filter import PRESET
from django_dcron.admin.visibility import scope_of
from django_dcron.models import Job, Run
from django_dcron.models.database import alias_for, database_now
from django_dcron.observability.figures import (
    Count,
    JobFigures,
    RunFigures,
    Starts,
    job_figures,
    percentile,
    run_figures,
)


@dataclass(frozen=True, slots=True)
class Tile:
    label: str
    value: str
    note: str
    url: str
    """Empty: no list has just what it counts."""
    kind: str = ""
    """A state whose colour it has."""


def context(request: HttpRequest, site: admin.AdminSite) -> dict[str, Any]:
    now, scope = database_now(alias_for(Run)), scope_of(request, site)
    tiles: list[Tile] = []
    if may_view(request, Job, site):
        jobs = job_figures(now, scope)
        tiles += _of_jobs(jobs, now, site)
    if may_view(request, Run, site):
        tiles += _of_runs(run_figures(now, scope), site)
    return {"tiles": tiles}


def _of_jobs(jobs: JobFigures, now: datetime, site: admin.AdminSite) -> Iterator[Tile]:
    parts = {
        "enabled": _number(jobs.enabled),
        "paused": _number(jobs.paused),
        "out": _number(jobs.out_of_scheduling),
    }
    note = (
        _("%(enabled)s enabled, %(paused)s paused, %(out)s out of scheduling")
        if jobs.out_of_scheduling
        else _("%(enabled)s enabled, %(paused)s paused")
    )
    yield Tile(_("Jobs"), _number(jobs.total), note % parts, list_url(Job, site))
    first = (
        format_html(_("the first at {}"), moment(jobs.next_at, near=now))
        if jobs.next_at
        else _("none is due")
    )
    yield Tile(_("Jobs due in the next hour"), _in_words(jobs.due_soon), first, "")


def _of_runs(runs: RunFigures, site: admin.AdminSite) -> Iterator[Tile]:
    since = runs.since.isoformat()
    # In whatever state: of the times, only that of this filter has an index then.
    in_24_hours = list_url(Run, site, **{PRESET: "24h"})
    waiting = {"queued": _in_words(runs.queued), "waiting": _in_words(runs.waiting)}
    yield Tile(
        _("Running now"),
        _in_words(runs.running),
        _("%(queued)s queued, %(waiting)s waiting") % waiting,
        list_url(Run, site, state__exact="running"),
        "running" if runs.running.number else "",
    )
    yield _success(runs, in_24_hours)
    ended: list[tuple[str, str, str, str, int]] = [
        (
            "failed",
            _("Failed, 24 h"),
            _in_words(runs.failed),
            _("after the last attempt"),
            runs.failed.number,
        ),
        ("missed", _("Missed, 24 h"), _missed(runs), _missed_note(runs), runs.missed_occurrences),
        (
            "skipped",
            _("Skipped, 24 h"),
            _in_words(runs.skipped),
            _("an earlier run was unfinished"),
            runs.skipped.number,
        ),
    ]
    for state, label, value, note, number in ended:
        url = list_url(Run, site, state__exact=state, due_at__gte=since)
        yield Tile(label, value, note, url, state if number else "")
    yield _lateness(runs.starts, in_24_hours)


def _success(runs: RunFigures, url: str) -> Tile:
    rate = runs.success_rate
    percent = rate.percent
    ended = rate.succeeded + rate.failed
    if percent is None:
        return Tile(_("Success rate, 24 h"), EMPTY, _("no run has ended"), url)
    text = (
        _("of the latest %(count)s runs that started")
        if rate.sampled
        else ngettext("of %(count)s run", "of %(count)s runs", ended)
    )
    value = _("%(percent)s %%") % {"percent": number_format(percent, decimal_pos=1)}
    kind = "succeeded" if percent == 100 else ""
    return Tile(_("Success rate, 24 h"), value, text % {"count": _number(ended)}, url, kind)


def _missed(runs: RunFigures) -> str:
    """All occurrences that were missed, whether or not they have a row of their own."""
    total = _number(runs.missed_occurrences)
    return _("%(count)s or more") % {"count": total} if runs.missed.more or runs.counted_at_least else total


def _missed_note(runs: RunFigures) -> str:
    """One run may stand for many missed occurrences, as the misfire policy has it."""
    if not (others := runs.counted_elsewhere):
        return _("not started in time")
    text = ngettext(
        "%(count)s of them counted on another run", "%(count)s of them counted on other runs", others
    )
    return text % {"count": _number(others)}


def _lateness(starts: Starts, url: str) -> Tile:
    middle, worst = (percentile(starts.lateness, percent) for percent in (50, 99))
    if middle is None:
        return Tile(_("Lateness, p50 / p99"), EMPTY, _("no run has started in 24 h"), url)
    text = (
        _("of the latest %(count)s runs that started")
        if starts.cut
        else ngettext("of %(count)s run that started", "of %(count)s runs that started", starts.number)
    )
    value = _("%(middle)s / %(worst)s") % {"middle": span(middle), "worst": span(worst)}
    return Tile(_("Lateness, p50 / p99"), value, text % {"count": _number(starts.number)}, url)


def _number(value: int) -> str:
    return number_format(value, force_grouping=True)


def _in_words(count: Count) -> str:
    number = _number(count.number)
    return _("more than %(limit)s") % {"limit": number} if count.more else number
