"""``manage.py dcron import``: import jobs from another scheduler, a crontab or an export.

Exit codes:

- 0: success, or there is nothing to do.
- 1: some entries can't be imported (the others are; with ``--atomic``, none is), or ``--report``
  found a difference.
- 2: the source can't be read, or ``--report`` had too little to compare.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandParser
from django.db import transaction

from django_dcron.contrib.importers import calendars, sources
from django_dcron.contrib.importers.calendars import CalendarPlan
from django_dcron.contrib.importers.comparison import compare_entries, matches_name
from django_dcron.contrib.importers.entry_plans import (
    DIFFERENCES,
    PAUSE,
    PROBLEMS,
    ComparisonOptions,
    EntryPlan,
)
from django_dcron.contrib.importers.source_contents import SourceContents, SourceProblem
from django_dcron.contrib.importers.sources import (
    FILES_OF_OPTIONS,
    OPTIONS,
    SCHEDULERS,
    WITHOUT_SHELL_PROBLEM,
    FileFormat,
)
from django_dcron.contrib.importers.writing import (
    apply_entry_plans,
    refuse_without_calendar,
)
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.exceptions import InvalidSchedule
from django_dcron.jobs.representation import JOB_DEFINITION
from django_dcron.management.dcron.exits import negative_result, usage_error
from django_dcron.management.dcron.import_output import (
    gone_from_source,
    import_document,
    show_entry_plans,
    show_remaining_work,
)
from django_dcron.management.dcron.import_report import report
from django_dcron.management.dcron.import_texts import (
    show_calendars,
)
from django_dcron.management.dcron.option_values import parse_whole_number, past_time_help
from django_dcron.management.dcron.output import Output, add_json
from django_dcron.models import Job
from django_dcron.policies.job_labels import DEFAULT_NAMESPACE
from django_dcron.schedules.zones import check_zone
from django_dcron.utils.suggestions import did_you_mean

HELP = (
    "Import jobs from another scheduler, a crontab or an export. Shows what would be created and "
    "changed, field by field; --apply writes it. Exit codes: 0 if all entries are imported, except "
    "omitted ones, which can't be jobs; 1 if some entries are refused or conflict, each with its "
    "reason (the others are written, unless --atomic); 2 if the source can't be read or an option "
    "is invalid, and nothing was written. With --report: 1 if there are differences; 2 if too few "
    "runs could be compared."
)
EXAMPLES = """
import django-celery-beat
import django-celery-beat --apply --disabled
import django-celery-beat --apply --shadow
import django-celery-beat --report --since 10m
import redbeat --namespace shop --apply
import /etc/crontab --timezone Europe/Berlin
import jobs.yaml --apply --atomic
"""


def add_arguments(parser: CommandParser) -> None:
    names = ", ".join(SCHEDULERS)
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help=f"{names}; or a file: an export (.json, .yaml) or a crontab; - is standard input",
    )
    parser.add_argument(
        "--format",
        choices=[form.value for form in FileFormat],
        help="file format (default: by its name); lines of a system-crontab contain a user",
    )
    add_source_options(parser)
    parser.add_argument(
        "--without-shell",
        action="store_true",
        help="import lines of a crontab that call a management command of this project as "
        "command:NAME; variables and redirections are dropped, and flock becomes the overlap "
        "policy; the output lists what each job omits",
    )
    parser.add_argument(
        "--disabled",
        action="store_true",
        help="create new jobs paused, while the old scheduler is still running",
    )
    _add_modes(parser)
    parser.add_argument(
        "--atomic",
        action="store_true",
        help="with --apply: write all entries in one transaction, or none if one can't be imported",
    )
    parser.add_argument(
        "--shadow",
        action="store_true",
        help="create new jobs as shadows: scheduled and recorded, but not executed",
    )
    _add_exceptions(parser)
    _add_report_options(parser)
    add_json(parser)


def _add_modes(parser: CommandParser) -> None:
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--dry-run",
        action="store_true",
        help="show what would be done; write nothing (default)",
    )
    mode.add_argument("--apply", action="store_true", help="write the changes")
    mode.add_argument(
        "--report",
        action="store_true",
        help="compare the runs of the old scheduler with the runs of its shadow jobs",
    )


def _add_exceptions(parser: CommandParser) -> None:
    """Add the options that treat some fields or jobs differently."""
    parser.add_argument(
        "--overwrite",
        action="append",
        type=_field,
        default=[],
        metavar="FIELD",
        help="take the source's value even if someone changed this field here (repeatable)",
    )
    parser.add_argument(
        "--restore",
        action="append",
        default=[],
        metavar="NAME",
        help="create this job again although it was deleted here; * matches any text (repeatable)",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="only the entries of jobs with this name; * matches any text (repeatable)",
    )


def _add_report_options(parser: CommandParser) -> None:
    parser.add_argument(
        "--since", default="1h", help=f"start of --report: {past_time_help()} (default: 1h)"
    )
    parser.add_argument(
        "--at-least",
        type=parse_whole_number(0, 100),
        default=50,
        metavar="PERCENT",
        help="with --report: exit code 2 if it compares less than PERCENT of the shadows that ran "
        "(default: 50)",
    )


def add_source_options(parser: CommandParser) -> None:
    """Add the options that each command that reads a source has."""
    parser.add_argument(
        "--namespace",
        type=_namespace,
        help="namespace of the jobs (default: the namespace in an export, otherwise 'default')",
    )
    parser.add_argument(
        "--timezone",
        help="time zone of a crontab's machine (default: TIME_ZONE, for django-crontab that of "
        "this machine)",
    )
    users = ", ".join(name for name, allowed in OPTIONS.items() if "app" in allowed)
    parser.add_argument(
        "--app",
        metavar="PATH",
        help=f"dotted path of the instance to read, such as shop.queue.huey ({users}; default: "
        "that of its Django app)",
    )


@dataclass(frozen=True, slots=True)
class ImportResult:
    plans: Sequence[EntryPlan]
    """The plans of the jobs, as applied."""
    entries: int
    """The number of entries, including calendars."""
    problems: int
    """The number of entries that can't be imported."""
    applied: bool


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    if options["shadow"] and options["disabled"]:
        raise usage_error(
            "--shadow and --disabled can't be used together, because a paused shadow records no "
            "runs to compare. Use only --shadow to compare the schedulers first, or only "
            "--disabled to keep new jobs paused until the handover."
        )
    if options["report"] and options["only"]:
        raise usage_error("--only can't be combined with --report, which compares all shadow jobs.")
    out, contents = Output(command, options), read_source(options)
    if options["report"]:
        report(out, options, contents)
        return
    raise_for_problems(out, options, import_entries(out, options, contents))


def raise_for_problems(out: Output, options: dict[str, Any], result: ImportResult) -> None:
    """Raise ``CommandError`` if entries can't be imported."""
    if result.problems:
        nothing = "" if result.applied or not options["apply"] else " Nothing was written."
        raise negative_result(
            f"{result.problems} of {result.entries} entries can't be "
            f"imported{'' if out.is_json else ', see above'}.{nothing}"
        )


def import_entries(out: Output, options: dict[str, Any], contents: SourceContents) -> ImportResult:
    """Compare the entries with the jobs, write them if requested, and show the result."""
    calendar_plans, plans = _compare(options, contents)
    if options["apply"] and options["atomic"]:
        calendar_results, results, applied = _write_all(calendar_plans, plans)
    else:
        applied = options["apply"]
        calendar_results, results = (
            _write_each(calendar_plans, plans)
            if applied
            else _without_refused_calendars(calendar_plans, plans)
        )
    if out.is_json:
        job_results = list(results)
        gone = [] if options.get("only") else gone_from_source(contents, job_results)
        out.json(
            import_document(options, contents, calendar_results, job_results, gone, applied=applied)
        )
    else:
        show_calendars(out, calendar_results, applied=applied)
        job_results = show_entry_plans(
            out,
            contents,
            results,
            plans,
            applied=applied,
            source_stopped=options.get("take_over", False),
        )
        gone = [] if options.get("only") else gone_from_source(contents, job_results)
        show_remaining_work(out, options, gone, job_results)
    outcomes = [
        *(calendar.outcome for calendar in calendar_results),
        *(plan.outcome for plan in job_results),
    ]
    if DIFFERENCES & {*outcomes} and not options["apply"] and not out.is_json:
        out.line("Nothing was written. To write, use --apply.")
    problems = sum(outcome in PROBLEMS for outcome in outcomes)
    return ImportResult(job_results, len(outcomes), problems, applied)


def _compare(
    options: dict[str, Any], contents: SourceContents
) -> tuple[list[CalendarPlan], list[EntryPlan]]:
    """Compare the source with the existing calendars and jobs, as the options request."""
    calendar_plans = calendars.compare_calendars(contents.calendars)
    plans = compare_entries(
        contents.entries,
        options["namespace"] or DEFAULT_NAMESPACE,
        ComparisonOptions(
            disabled=options["disabled"],
            shadow=options["shadow"],
            source=contents.source,
            overwrite=options["overwrite"],
            restore=options["restore"],
            # There is no handover from a file.
            take_over=options.get("take_over", False) or contents.source not in SCHEDULERS,
            calendars=calendars.calendars_to_save(calendar_plans),
        ),
    )
    if plans:
        _require_entries(plans, options["restore"])
    if options.get("only"):
        plans = _chosen(plans, options["only"], contents)
    return calendars.refuse_for_problem_jobs(calendar_plans, plans), plans


def _chosen(plans: list[EntryPlan], names: list[str], contents: SourceContents) -> list[EntryPlan]:
    if not contents.source:
        raise usage_error("--only can't be used with an export. Export only these jobs instead.")
    _require_entries(plans, names)
    return [plan for plan in plans if matches_name(plan, names)]


def _require_entries(plans: Sequence[EntryPlan], names: Sequence[str]) -> None:
    """Raise ``CommandError`` if a name, which may be a pattern, matches no entry."""
    for name in names:
        if not any(matches_name(plan, [name]) for plan in plans):
            near = did_you_mean(name, [str(plan) for plan in plans])
            raise usage_error(f"No entry has a job named {name!r}.{near}")


def _write_each(
    calendar_plans: list[CalendarPlan], plans: list[EntryPlan]
) -> tuple[list[CalendarPlan], Iterable[EntryPlan]]:
    """Write all entries that can be written. Iterating over the result writes the jobs."""
    calendar_results, allowed = _without_refused_calendars(
        list(calendars.apply_calendar_plans(calendar_plans)), plans
    )
    return calendar_results, apply_entry_plans(allowed)


def _without_refused_calendars(
    calendar_results: list[CalendarPlan], plans: list[EntryPlan]
) -> tuple[list[CalendarPlan], Iterable[EntryPlan]]:
    """Refuse the jobs whose calendars are refused."""
    unwritten = {calendar.name for calendar in calendar_results if calendar.outcome in PROBLEMS}
    return calendar_results, refuse_without_calendar(unwritten, plans)


def _write_all(
    calendar_plans: list[CalendarPlan], plans: list[EntryPlan]
) -> tuple[list[CalendarPlan], Iterable[EntryPlan], bool]:
    """Write all entries, or none. Returns the outcomes, and whether the entries were written."""
    using = alias_for(Job)
    with transaction.atomic(using=using):
        calendar_results, results = _write_each(calendar_plans, plans)
        job_results = list(results)
        outcomes = {
            *(calendar.outcome for calendar in calendar_results),
            *(plan.outcome for plan in job_results),
        }
        if refused := bool(outcomes & PROBLEMS):
            transaction.set_rollback(True, using=using)
    return calendar_results, job_results, not refused


def _field(text: str) -> str:
    allowed = sorted({each.name for each in JOB_DEFINITION} - {"namespace", "declared", *PAUSE[1:]})
    if text not in allowed:
        raise ArgumentTypeError(
            f"unknown field {text!r}.{did_you_mean(text, allowed)} Allowed: {', '.join(allowed)}"
        )
    return text


def _namespace(text: str) -> str:
    try:
        Job._meta.get_field("namespace").clean(text, None)
    except ValidationError as error:
        raise ArgumentTypeError(f"{text!r}: {' '.join(error.messages)}") from None
    return text


def read_source(options: dict[str, Any]) -> SourceContents:
    """Read the source that the options name. Raises ``CommandError``."""
    source = options["source"]
    try:
        if source in SCHEDULERS:
            if options.get("without_shell"):
                raise SourceProblem(WITHOUT_SHELL_PROBLEM)
            source_options = {name: options[name] for name in FILES_OF_OPTIONS if options[name]}
            return sources.read_scheduler(source, database_now(alias_for(Job)), source_options)
        if options["app"]:
            raise usage_error(f"--app can't be used with a file. Sources: {', '.join(SCHEDULERS)}.")
        zone = check_zone(options["timezone"] or django_settings.TIME_ZONE)
        form = FileFormat(options["format"]) if options["format"] else None
        return sources.read_file(
            source,
            form,
            zone,
            options["namespace"] or "",
            zone_is_default=not options["timezone"],
            without_shell=options.get("without_shell", False),
        )
    except InvalidSchedule as error:
        raise usage_error(str(error)) from error
    except SourceProblem as error:
        known = "" if source in SCHEDULERS else f" Sources: {', '.join(SCHEDULERS)}, or a file."
        raise usage_error(f"{error}{known}") from error
