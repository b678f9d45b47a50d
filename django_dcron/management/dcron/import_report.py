"""``manage.py dcron import SOURCE --report``: compare the old scheduler's runs with its shadows."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from django_dcron.contrib.importers.found import Reading, SourceProblem
from django_dcron.contrib.importers.report import (
    LATE,
    Beside,
    Coverage,
    Difference,
    Why,
    beside,
)
from django_dcron.contrib.importers.sources import SCHEDULERS
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.management.dcron.exits import negative_result, usage_error
from django_dcron.management.dcron.output import BAD, Output, iso, moment
from django_dcron.management.dcron.times import instant
from django_dcron.models import Job
from django_dcron.utils.counts import number_of

SECOND = timedelta(seconds=1)


def report(out: Output, options: dict[str, Any], reading: Reading) -> None:
    if options["source"] not in SCHEDULERS:
        raise usage_error(f"--report needs a scheduler as source: {', '.join(SCHEDULERS)}.")
    now = database_now(alias_for(Job))
    since = instant("--since", options["since"], now, timezone.get_current_timezone())
    try:
        ran = SCHEDULERS[options["source"]].ran(since - LATE)
    except SourceProblem as error:
        raise usage_error(str(error)) from error
    namespace = options["namespace"] or "default"
    shadows = beside(reading.found, namespace, ran, since, now, reading.source)
    if not shadows and not ran.unread:
        raise usage_error(
            "There are no shadow jobs. To create them: manage.py dcron import "
            f"{options['source']} --shadow --apply"
        )
    coverage = Coverage.of(shadows)
    if out.is_json:
        document = _report_document(options, since, now, shadows)
        out.json(document | {"unread": dict(ran.unread), "coverage": asdict(coverage)})
    else:
        for origin, why in ran.unread.items():
            out.line(f"unread {origin}: {why}", BAD)
        _show_report(out, since, shadows, coverage)
    above = "" if out.is_json else ", see above"
    if differing := sum(each.differs for each in shadows):
        raise negative_result(f"{differing} of {len(shadows)} shadow jobs differ{above}.")
    if ran.unread:
        raise negative_result(
            f"{number_of(len(ran.unread), 'entry', 'entries')} with unknown run times{above}."
        )
    if not coverage.suffices(options["at_least"]):
        raise usage_error(
            f"Too little to compare: {coverage.compared} of {coverage.due} shadows that ran, and "
            f"--at-least is {options['at_least']} %. Wait for more runs, or use an earlier --since."
        )


def _show_report(out: Output, since: datetime, shadows: list[Beside], coverage: Coverage) -> None:
    for each in shadows:
        for one in each.there:
            out.line(f"only there {each.job} {moment(one.at)}: {reason(one)}", BAD)
        for one in each.here:
            out.line(f"only here {each.job} {moment(one.at)}: {reason(one)}", BAD)
    same = sum(each.same for each in shadows)
    there, here = (sum(len(getattr(each, side)) for each in shadows) for side in ("there", "here"))
    text = f"{number_of(same, 'run')} in both, {there} only there, {here} only here"
    out.line(f"{number_of(len(shadows), 'shadow')}, since {moment(since)}: {text}.")
    out.line(
        f"Compared: {coverage.compared} of {coverage.due} shadows that ran, "
        f"{coverage.compared_runs} of {number_of(coverage.runs, 'run')} here."
    )
    if silent := coverage.shadows - coverage.due:
        out.line(f"Nothing to compare: {number_of(silent, 'shadow')} without a run.")
    if late := max((each.late for each in shadows), default=timedelta()):
        out.line(f"Maximum delay of the other scheduler for the same run: {_seconds(late)}.")


def reason(one: Difference) -> str:
    match one.why:
        case Why.LATE if one.other is not None:
            return (
                f"possibly the run of {moment(one.other)}, late by "
                f"{_seconds(abs(one.at - one.other))}"
            )
        case Why.TWICE if one.other is not None:
            return f"ran again there for {moment(one.other)}"
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
            "runs": each.runs,
            "compared": each.compared,
            "same": each.same,
            "there_alone": [_difference(one) for one in each.there],
            "here_alone": [_difference(one) for one in each.here],
            "late": each.late / SECOND,
        }
        for each in shadows
    ]
    return {
        "version": 1,
        "source": options["source"],
        "since": iso(since),
        "at": iso(now),
        "jobs": jobs,
    }


def _difference(one: Difference) -> dict[str, Any]:
    return {"at": iso(one.at), "why": one.why, "other": iso(one.other) if one.other else None}
