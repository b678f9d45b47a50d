"""``manage.py dcron doctor``: look at everything, write nothing, and say what is wrong and what to do.

Exit codes: 0 all is well; 1 findings; 2 cannot look (no database, no tables, options that make no sense).
"""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_dcron.domain.counts_in_words import number_of
from django_dcron.domain.system_health import Severity
from django_dcron.locks import get_lock
from django_dcron.management.dcron import times
from django_dcron.management.dcron.exits import cannot, no
from django_dcron.management.dcron.numbers import whole
from django_dcron.management.dcron.output import Output, add_json
from django_dcron.management.dcron.plain_text import printable
from django_dcron.models import Job
from django_dcron.models.database import alias_for, database_now
from django_dcron.observability.doctor.report import Report, examine
from django_dcron.observability.doctor.window import Window, at

HELP = "Look for lost or doubled occurrences, stuck runs, dead nodes and the like. Writes nothing. Exit code 1: findings."
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
        help=f"account for occurrences after this: {times.time_help('UTC')} ({DEFAULT_SINCE})",
    )
    parser.add_argument("--until", metavar="TIME", help="up to this, in the same forms (now)")
    parser.add_argument("--namespace", default="", help="look at the jobs of this namespace only (all)")
    parser.add_argument(
        "--limit",
        type=whole(1, 1_000_000),
        default=1000,
        metavar="N",
        help="account for at most the latest N occurrences of each job (1000)",
    )
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    report = examine(_window(options), get_lock())
    if options["json"]:
        Output(command, options).json(report.as_json())
    else:
        _print(command, report)
    if not report.healthy:
        found = report.findings.counts.total()
        raise no(f"{number_of(found, 'finding')}.")


def _window(options: dict[str, Any]) -> Window:
    now = database_now(alias_for(Job))
    since, until = times.instant("--since", options["since"], now), now
    if options["until"]:
        until = min(times.instant("--until", options["until"], now), now)
    if since >= until:
        raise cannot(f"--since, {at(since)}, is not before --until, {at(until)}.")
    return Window(since, until, now, options["namespace"], runs_per_job=options["limit"])


def _print(command: BaseCommand, report: Report) -> None:
    out, window, totals = command.stdout, report.window, report.totals
    out.write(f"{at(window.since)} to {at(window.until)}")
    out.write(
        f"{number_of(report.verdict.facts.live_nodes, 'live node')}, {number_of(report.jobs, 'job')}; "
        f"{number_of(totals.occurrences, 'occurrence')} of {number_of(totals.jobs, 'job')} "
        f"against {number_of(totals.runs, 'run')}; {number_of(report.runs, 'run')} one by one"
    )
    for finding in report.findings.listed:
        style = getattr(command.style, STYLES[finding.severity])
        out.write(f"{style(f'{finding.severity.value:7} {finding.code.value:22}')} {printable(str(finding))}")
    for code, number in sorted(report.findings.more.items()):
        out.write(f"        {code.value:22} and {number} more")
    for note in report.notes:
        out.write(f"note: {printable(note)}")
    if report.healthy:
        out.write(command.style.SUCCESS("Nothing is wrong."))
