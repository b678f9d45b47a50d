"""``manage.py dcron import SOURCE --report``: compare the old scheduler's runs with its shadows."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from django_dcron.contrib.importers import celery_beat
from django_dcron.contrib.importers.received_runs import runs_to_compare
from django_dcron.contrib.importers.report import (
    LATE,
    Coverage,
    Difference,
    DifferenceKind,
    ShadowComparison,
    compare_shadows,
)
from django_dcron.contrib.importers.source_contents import SourceContents, SourceProblem
from django_dcron.contrib.importers.sources import SCHEDULERS
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.management.dcron.exits import negative_result, usage_error
from django_dcron.management.dcron.import_output import here_and_there
from django_dcron.management.dcron.option_values import parse_past_time
from django_dcron.management.dcron.output import BAD, WARNING, Output, iso, time_text
from django_dcron.models import Job
from django_dcron.policies.health.facts import NamedCount
from django_dcron.policies.job_labels import DEFAULT_NAMESPACE
from django_dcron.utils.counts import number_of

SECOND = timedelta(seconds=1)
BEAT_STORES_LATER = "Beat stores its latest runs every 3 minutes: repeat the report after that."
SILENT_NAMED = 5
"""The maximum number of named shadows with nothing to compare."""


def report(out: Output, options: dict[str, Any], contents: SourceContents) -> None:
    if options["source"] not in SCHEDULERS:
        raise usage_error(
            f"--report needs a scheduler as source: {', '.join(SCHEDULERS)}. Crontabs and "
            "exports store no runs. To list the runs of a job: manage.py dcron history JOB"
        )
    now = database_now(alias_for(Job))
    since = parse_past_time("--since", options["since"], now, timezone.get_current_timezone())
    try:
        source_runs = runs_to_compare(options["source"], contents.entries, since - LATE)
    except SourceProblem as error:
        raise usage_error(str(error)) from error
    namespace = options["namespace"] or DEFAULT_NAMESPACE
    shadows = compare_shadows(contents.entries, namespace, source_runs, since, now, contents.source)
    if not (shadows or source_runs.unread):
        raise usage_error(
            "There are no shadow jobs. To create them: manage.py dcron import "
            f"{options['source']} --shadow --apply"
        )
    coverage = Coverage.of(shadows)
    if out.is_json:
        document = _report_document(options, since, now, shadows)
        document["unread"] = dict(source_runs.unread)
        document["coverage"] = asdict(coverage)
        out.json(document)
    else:
        for origin, problem in source_runs.unread.items():
            out.line(f"unread {origin}: {problem}", BAD)
        for shadow in shadows:
            if shadow.shared_task:
                out.line(
                    f"! {shadow.job} isn't compared: other entries also run {shadow.shared_task}, "
                    "and workers only know the task that they received from beat",
                    WARNING,
                )
        stores_latest_only = source_runs.missing_means_not_run and not source_runs.complete
        _show_report(out, since, shadows, coverage, stores_latest_only=stores_latest_only)
        if not source_runs.missing_means_not_run:
            out.line(
                "Beat stores no runs of this source. The report compares the latest tasks that the "
                "running workers have received from beat."
            )
    above = "" if out.is_json else ", see above"
    if differing := sum(shadow.differs for shadow in shadows):
        raise negative_result(f"{differing} of {len(shadows)} shadow jobs differ{above}.")
    if source_runs.unread:
        unread = number_of(len(source_runs.unread), "entry", "entries")
        raise negative_result(f"{unread} with unknown run times{above}.")
    if not coverage.shadows:
        raise usage_error(nothing_comparable_text(coverage))
    if not coverage.suffices(options["at_least"]):
        delay = f" {BEAT_STORES_LATER}" if options["source"] == celery_beat.SOURCE else ""
        raise usage_error(
            f"Too little to compare: compared {coverage.compared} of {coverage.due} shadows that "
            f"ran, but --at-least is {options['at_least']} %. Wait for more runs, or use an "
            f"earlier --since.{delay} Without workers, shadows never run: see manage.py dcron "
            "doctor."
        )


def nothing_comparable_text(coverage: Coverage) -> str:
    reasons, hint = [], ""
    if coverage.paused:
        shadows = number_of(coverage.paused, "shadow is", "shadows are")
        reasons.append(f"{shadows} paused here")
    if coverage.shared:
        shadows = number_of(coverage.shared, "shadow shares", "shadows share")
        reasons.append(f"{shadows} a task with other entries")
        hint = " Compare the log of beat with manage.py dcron history."
    return f"Nothing can be compared: {', and '.join(reasons)}.{hint}"


def _show_report(
    out: Output,
    since: datetime,
    shadows: list[ShadowComparison],
    coverage: Coverage,
    *,
    stores_latest_only: bool,
) -> None:
    for shadow in shadows:
        for difference in shadow.only_in_source:
            reason = difference_reason(difference)
            out.line(f"only in source {shadow.job} {time_text(difference.at)}: {reason}", BAD)
        for difference in shadow.only_in_shadow:
            reason = difference_reason(difference)
            out.line(f"only in shadow {shadow.job} {time_text(difference.at)}: {reason}", BAD)
        for name, (here, there) in shadow.edited.items():
            here_text, there_text = here_and_there(name, here, there)
            out.line(
                f"! {shadow.job} may differ because of its {name}: {here_text} here, {there_text} "
                "there",
                WARNING,
            )
    if paused := NamedCount.of([str(shadow.job) for shadow in shadows if shadow.is_left_out]):
        isnt = number_of(paused.number, "shadow isn't", "shadows aren't")
        out.line(f"! {isnt} compared: paused here: {paused.listed}", WARNING)
    comparable = [shadow for shadow in shadows if shadow.is_comparable]
    if paused := NamedCount.of([str(shadow.job) for shadow in comparable if shadow.paused]):
        paused_text = number_of(paused.number, "paused shadow is", "paused shadows are")
        out.line(f"! {paused_text} compared until the last shadow run: {paused.listed}", WARNING)
    matched = sum(shadow.matched for shadow in shadows)
    in_source = sum(len(shadow.only_in_source) for shadow in shadows)
    in_shadow = sum(len(shadow.only_in_shadow) for shadow in shadows)
    text = f"{number_of(matched, 'run')} in both, {in_source} only in source"
    out.line(
        f"{number_of(len(shadows), 'shadow')}, since {time_text(since)}: {text}, "
        f"{in_shadow} only in shadow."
    )
    out.line(
        f"Compared: {coverage.compared} of {coverage.due} shadows that ran, "
        f"{coverage.compared_runs} of {number_of(coverage.runs, 'shadow run')}."
    )
    if coverage.shared:
        out.line(
            f"Not counted: {number_of(coverage.shared, 'shadow')} that can't be compared, because "
            "other entries run the same task."
        )
    if stores_latest_only and coverage.compared_runs < coverage.runs:
        out.line(
            "The other scheduler stores only the latest run of each entry, so earlier shadow runs "
            "can't be compared."
        )
    if silent := [shadow.job for shadow in comparable if not (shadow.runs or shadow.compared)]:
        named = ", ".join(map(str, silent[:SILENT_NAMED]))
        more = ", ..." if len(silent) > SILENT_NAMED else ""
        out.line(
            f"Nothing to compare yet: {number_of(len(silent), 'shadow')} ({named}{more}). Runs "
            "count from a minute after the import on, and some schedulers store theirs minutes "
            "later."
        )
    unedited = [shadow for shadow in shadows if shadow.late and not shadow.edited]
    if latest := max(unedited, key=lambda shadow: shadow.late, default=None):
        out.line(
            "Maximum delay of the other scheduler for the same run: "
            f"{_seconds(latest.late)} ({latest.job})."
        )


def difference_reason(difference: Difference) -> str:
    match difference.kind:
        case DifferenceKind.LATE if difference.other is not None:
            return (
                f"possibly the run of {time_text(difference.other)}, late by "
                f"{_seconds(abs(difference.at - difference.other))}"
            )
        case DifferenceKind.TWICE if difference.other is not None:
            return f"second source run for {time_text(difference.other)}"
        case DifferenceKind.NOT_DUE:
            return "the shadow job wasn't due"
        case _:
            return "the source didn't run it"


def _seconds(span: timedelta) -> str:
    return f"{span / SECOND:.1f} s"


def _report_document(
    options: dict[str, Any], since: datetime, now: datetime, shadows: list[ShadowComparison]
) -> dict[str, Any]:
    jobs = [
        {
            "namespace": shadow.job.namespace,
            "name": shadow.job.name,
            "runs": shadow.runs,
            "compared": shadow.compared,
            "matched": shadow.matched,
            "only_in_source": [_difference(difference) for difference in shadow.only_in_source],
            "only_in_shadow": [_difference(difference) for difference in shadow.only_in_shadow],
            "late": shadow.late / SECOND,
            "shared_task": shadow.shared_task,
            "paused": shadow.paused,
            "edited": sorted(shadow.edited),
        }
        for shadow in shadows
    ]
    return {
        "version": 1,
        "source": options["source"],
        "since": iso(since),
        "at": iso(now),
        "jobs": jobs,
    }


def _difference(difference: Difference) -> dict[str, Any]:
    return {
        "at": iso(difference.at),
        "why": difference.kind,
        "other": iso(difference.other) if difference.other else None,
    }
