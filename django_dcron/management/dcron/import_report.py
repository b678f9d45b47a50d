"""``manage.py dcron import SOURCE --report``: what the old scheduler ran, beside what was due of its shadows here."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from django_dcron.domain.counts_in_words import number_of
from django_dcron.management.dcron.exits import cannot, no
from django_dcron.management.dcron.output import BAD, Output, iso, moment
from django_dcron.management.dcron.times import instant
from django_dcron.models import Job
from django_dcron.models.database import alias_for, database_now
from django_dcron.moving.found import Reading
from django_dcron.moving.report import LATE, Beside, Difference, Why, beside
from django_dcron.moving.sources import SCHEDULERS

SECOND = timedelta(seconds=1)


def report(out: Output, options: dict[str, Any], reading: Reading) -> None:
    if options["source"] not in SCHEDULERS:
        raise cannot(f"--report is of a scheduler: {', '.join(SCHEDULERS)}.")
    now = database_now(alias_for(Job))
    since = instant("--since", options["since"], now, timezone.get_current_timezone())
    ran = SCHEDULERS[options["source"]].ran(since - LATE)
    shadows = beside(reading.found, options["namespace"] or "default", ran, since, now)
    if not shadows and not ran.unread:
        raise cannot(
            f"There are no shadows: manage.py dcron import {options['source']} --shadow --apply makes them."
        )
    if out.is_json:
        out.json(_report_document(options, since, now, shadows) | {"unread": dict(ran.unread)})
    else:
        for origin, why in ran.unread.items():
            out.line(f"unread {origin}: {why}", BAD)
        _show_report(out, since, shadows)
    above = "" if out.is_json else ", see above"
    if differing := sum(each.differs for each in shadows):
        raise no(f"{differing} of {len(shadows)} differ{above}.")
    if ran.unread:
        raise no(f"Of {number_of(len(ran.unread), 'entry', 'entries')} nobody knows when it ran{above}.")


def _show_report(out: Output, since: datetime, shadows: list[Beside]) -> None:
    for each in shadows:
        for one in each.there:
            out.line(f"there alone {each.job} {moment(one.at)}: {reason(one)}", BAD)
        for one in each.here:
            out.line(f"here alone {each.job} {moment(one.at)}: {reason(one)}", BAD)
    same = sum(each.same for each in shadows)
    there, here = (sum(len(getattr(each, side)) for each in shadows) for side in ("there", "here"))
    said = f"{number_of(same, 'run is', 'runs are')} the same, {there} there alone, {here} here alone"
    out.line(f"{number_of(len(shadows), 'shadow')}, since {moment(since)}: {said}.")
    if late := max((each.late for each in shadows), default=timedelta()):
        out.line(f"Of the same, those there came {_seconds(late)} after those here at most.")


def reason(one: Difference) -> str:
    match one.why:
        case Why.LATE if one.other is not None:
            return f"late there by {_seconds(abs(one.at - one.other))}, if it is that of {moment(one.other)}"
        case Why.TWICE if one.other is not None:
            return f"a second time there, for that of {moment(one.other)}"
        case Why.NOT_DUE:
            return "nothing was due here"
        case _:
            return "nothing ran there"


def _seconds(span: timedelta) -> str:
    return f"{span / SECOND:.1f} s"


def _report_document(
    options: dict[str, Any], since: datetime, now: datetime, shadows: list[Beside]
) -> dict[str, Any]:
    jobs = [
        {
            "namespace": each.job.namespace,
            "name": each.job.name,
            "same": each.same,
            "there_alone": [_difference(one) for one in each.there],
            "here_alone": [_difference(one) for one in each.here],
            "late": each.late / SECOND,
        }
        for each in shadows
    ]
    return {"version": 1, "source": options["source"], "since": iso(since), "at": iso(now), "jobs": jobs}


def _difference(one: Difference) -> dict[str, Any]:
    return {"at": iso(one.at), "why": one.why, "other": iso(one.other) if one.other else None}
