"""``manage.py dcron doctor``: check jobs, runs and nodes read-only, and report problems.

Exit codes:

- 0: no findings.
- 1: there are findings.
- 2: the check isn't possible (no database, no tables, invalid options).
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandParser
from django.utils import timezone

from django_dcron.conf import settings
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.doctor.findings import (
    CLUSTER,
    SUBJECTS_IN_LINE,
    Code,
    FindingGroup,
    Subject,
)
from django_dcron.diagnosis.doctor.report import Report, examine
from django_dcron.diagnosis.doctor.window import Window, format_moment
from django_dcron.diagnosis.system_health import count_with_names
from django_dcron.locks import Lock, get_lock
from django_dcron.management.dcron import option_values
from django_dcron.management.dcron.exits import negative_result
from django_dcron.management.dcron.lookup import require_namespace
from django_dcron.management.dcron.option_values import parse_whole_number
from django_dcron.management.dcron.output import Output, add_json
from django_dcron.models import Job
from django_dcron.policies.health.facts import NamedCount
from django_dcron.policies.health.problems import Severity
from django_dcron.utils.control_characters import escape_control_characters
from django_dcron.utils.counts import number_of
from django_dcron.utils.time_format import format_duration

HELP = (
    "Find lost or duplicate occurrences, stuck runs, dead nodes and other problems. Writes "
    "nothing. Exit code 1: there are findings."
)
EXAMPLES = """
doctor
doctor --since 6h --namespace shop
doctor --json
"""
DEFAULT_SINCE = "1h"
STYLES = {Severity.ERROR: "ERROR", Severity.WARNING: "WARNING"}


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "--since",
        default=DEFAULT_SINCE,
        metavar="TIME",
        help=(
            f"check occurrences after this time: {option_values.past_time_help()} (default: "
            f"{DEFAULT_SINCE})"
        ),
    )
    parser.add_argument(
        "--until",
        metavar="TIME",
        help="check occurrences until this time, same formats (default: now)",
    )
    parser.add_argument(
        "--namespace", default="", help="check only the jobs of this namespace (default: all)"
    )
    parser.add_argument(
        "--limit",
        type=parse_whole_number(1, 1_000_000),
        default=1000,
        metavar="N",
        help="check at most the latest N occurrences of each job (default: 1000)",
    )
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    window = _window(options)
    report = examine(window, _lock())
    _find_other_schedulers(window, report)
    if options["json"]:
        Output(command, options).json(report.as_json())
    else:
        _print(command, report, options["verbosity"])
    if not report.healthy:
        found = report.findings.counts.total()
        raise negative_result(f"{number_of(found, 'finding')}.")


def _find_other_schedulers(window: Window, report: Report) -> None:
    """Add a finding for each imported job that its old scheduler still runs.

    Also add one for each of these schedulers that holds its lock or has new entries, and a note for
    each whose entries have changed since the import, or whose jobs wait for the handover.
    """
    jobs = Job.objects.using(alias_for(Job)).exclude(import_source="")
    if window.namespace:
        jobs = jobs.filter(namespace=window.namespace)
    if not jobs.exists():
        return
    # Only projects that imported jobs need this code.
    from django_dcron.contrib.importers.other_schedulers import (
        awaiting_jobs,
        find_changes,
        find_other_runs,
    )
    from django_dcron.contrib.importers.sources import (
        can_hand_back,
        process_name,
        runs_in_workers,
        storing_note,
    )

    for each in find_other_runs(jobs, window.since, window.now):
        scheduler = process_name(each.source)
        remedy = f"Stop {scheduler} on every machine"
        if runs_in_workers(each.source):
            remedy += ", also in workers (celery worker -B)"
        if can_hand_back(each.source):
            back = f"manage.py dcron handover {each.source} --back"
            remedy += f", or hand the work back with {back}"
        if each.job is None:
            text = f"{scheduler} probably still runs: {each.reason}. {remedy}."
            report.findings.add(Code.OTHER_SCHEDULER_RUNS, CLUSTER, text)
        elif each.at is not None:
            ago = format_duration(window.now - each.at)
            check_again = (
                f"If you stopped {scheduler} after that, check again 5 minutes after the stop, "
                "with --since 5m."
            )
            report.findings.add(
                Code.OTHER_SCHEDULER_RUNS,
                Subject("job", str(each.job.pk), str(each.job)),
                f"{scheduler} also ran this job at {format_moment(each.at)}, {ago} ago.",
                at=each.at,
                advice=" ".join(
                    filter(None, (f"{remedy}.", storing_note(each.source), check_again))
                ),
            )
    gone: list[Job] = []
    for changes in find_changes(jobs, window.now):
        gone += changes.gone
        if changes.added:
            text = _added_text(changes.source, changes.added)
            report.findings.add(Code.ENTRY_NOT_IMPORTED, CLUSTER, text)
        if changes.edited:
            entries = number_of(
                len(changes.edited),
                "entry isn't imported or was changed since its import",
                "entries aren't imported or were changed since their import",
            )
            report.further_notes.append(
                f"In {changes.source}, {entries}: "
                f"{NamedCount.of(changes.edited).listed}. This has no effect here. To take over "
                f"the changes: manage.py dcron import {changes.source}"
            )
        if changes.disabled:
            report.further_notes.append(_disabled_text(changes.source, changes.disabled))
        if changes.gone:
            report.further_notes.append(_gone_text(changes.source, changes.gone))
    waiting = awaiting_jobs(jobs).exclude(pk__in=[job.pk for job in gone])
    waiting = waiting.order_by("import_source")
    for source in waiting.values_list("import_source", flat=True).distinct():
        named = count_with_names(waiting.filter(import_source=source))
        paused = number_of(named.number, "paused job waits", "paused jobs wait")
        report.further_notes.append(
            f"{paused} for the handover from {source}: "
            f"{named.listed}. To list all: manage.py dcron list --paused --source {source}. To "
            f"switch all, stop {process_name(source)} and run manage.py dcron handover {source}"
        )


def _added_text(source: str, names: Sequence[str]) -> str:
    from django_dcron.contrib.importers.sources import process_name

    entries = number_of(len(names), "entry isn't imported", "entries aren't imported")
    it = "it" if len(names) == 1 else "them"
    command, scheduler = f"manage.py dcron import {source}", process_name(source)
    return (
        f"In {source}, {entries}: {NamedCount.of(names).listed}. No job here runs {it}. To import "
        f"{it} while {scheduler} still runs: {command} --disabled --apply. If {scheduler} has "
        f"stopped: {command} --apply"
    )


def _disabled_text(source: str, jobs: Sequence[Job]) -> str:
    disabled = NamedCount.of([str(job) for job in jobs])
    entries = number_of(disabled.number, "entry was", "entries were")
    its, it = ("its job runs", "it") if disabled.number == 1 else ("their jobs run", "them")
    text = f"In {source}, {entries} disabled since the last import, but {its} here: "
    text += f"{disabled.listed}. "
    if disabled.number > len(disabled.names):
        return f"{text}To pause one: manage.py dcron pause JOB"
    return f"{text}To pause {it}: manage.py dcron pause {shlex.join(disabled.names)}"


def _gone_text(source: str, jobs: Sequence[Job]) -> str:
    names = [str(job) for job in jobs]
    if len(names) == 1:
        return (
            f"1 job is paused because its entry is gone from {source}: {names[0]}. To delete it: "
            f"manage.py dcron delete {shlex.quote(names[0])}"
        )
    return (
        f"{len(names)} jobs are paused because their entries are gone from {source}: "
        f"{NamedCount.of(names).listed}. To delete one: manage.py dcron delete JOB"
    )


def _lock() -> Lock:
    try:
        return get_lock()
    except ImproperlyConfigured:
        if settings.LOCK != "redis":
            raise
        # Without a Redis cache, only nodes with --embedded can run. They lock in the database.
        return get_lock("database")


def _window(options: dict[str, Any]) -> Window:
    now = database_now(alias_for(Job))
    zone = timezone.get_current_timezone()
    since, until = option_values.parse_past_time("--since", options["since"], now, zone), now
    if options["until"] is not None:
        until = min(option_values.parse_past_time("--until", options["until"], now, zone), now)
    option_values.require_before(since, until)
    require_namespace(options["namespace"])
    return Window(since, until, now, options["namespace"], occurrences_per_job=options["limit"])


def _print(command: BaseCommand, report: Report, verbosity: int) -> None:
    out, window, totals = command.stdout, report.window, report.totals
    later = (
        f", {number_of(totals.counted_later, 'missed occurrence')} counted by later runs"
        if totals.counted_later
        else ""
    )
    out.write(f"{format_moment(window.since)} to {format_moment(window.until)}")
    out.write(
        f"{number_of(report.verdict.facts.live_nodes, 'live node')}; checked the schedules of "
        f"{totals.jobs} of {number_of(report.jobs, 'job')} "
        f"({number_of(totals.occurrences, 'occurrence')}, {number_of(totals.runs, 'run')}{later}) "
        f"and the rows of {number_of(report.examined.number, 'run')}"
    )
    for group in report.findings.groups():
        style = getattr(command.style, STYLES[group.severity])
        title = style(f"{group.severity.value:7} {group.code.value:22}")
        if verbosity > 1:
            advice = ""
            for finding in group.listed:
                text = str(finding)
                if finding.advice and finding.advice == advice:
                    text = f"{finding.subject}: {finding.fact}"
                advice = finding.advice
                out.write(f"{title} {escape_control_characters(text)}")
                for explained in finding.explanation.explained if finding.explanation else ():
                    text = escape_control_characters(f"{explained.subject}: {explained.fact}")
                    out.write(f"        {group.code.value:22} {text}")
        else:
            out.write(f"{title} {escape_control_characters(_text_of(group))}")
    if verbosity > 1:
        for code, number in sorted(report.findings.more.items()):
            out.write(f"        {code.value:22} and {number_of(number, 'more finding')}")
    elif any(group.count > 1 for group in report.findings.groups()):
        out.write("To list the findings of each code: manage.py dcron doctor --verbosity 2")
    for note in report.notes:
        out.write(f"note: {escape_control_characters(note)}")
    if report.healthy and report.noted_issues:
        text = "No other problems found. Look at the note about queued runs."
        out.write(command.style.WARNING(text))
    elif report.healthy and report.jobs and not totals.jobs:
        text = "No problems found, but no schedule was checked. The reasons are in the notes."
        out.write(command.style.WARNING(text))
    elif report.healthy:
        out.write(command.style.SUCCESS("No problems found."))


def _text_of(group: FindingGroup) -> str:
    """Return one line: the number of findings, the oldest one in full, and further subjects."""
    first, *others = group.listed
    if group.count == 1:
        return str(first)
    also = [str(finding.subject) for finding in others[: SUBJECTS_IN_LINE - 1]]
    if more := group.count - 1 - len(also):
        also.append(f"and {more} more")
    oldest = f", the oldest at {format_moment(group.oldest)}" if group.oldest else ""
    return f"{group.count} findings{oldest}. {first} Also: {', '.join(also)}"
