"""Read a source and import its entries, for ``dcron import`` and ``dcron handover``."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import CommandParser
from django.db import transaction

from django_dcron.contrib.importers import calendars, sources
from django_dcron.contrib.importers.calendars import CalendarPlan
from django_dcron.contrib.importers.comparison import compare_entries, matches_name
from django_dcron.contrib.importers.entry_plans import (
    DIFFERENCES,
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
from django_dcron.contrib.importers.writing import apply_entry_plans
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.exceptions import InvalidSchedule
from django_dcron.management.dcron.exits import usage_error
from django_dcron.management.dcron.import_output import (
    gone_from_source,
    import_document,
    show_entry_plans,
    show_remaining_work,
)
from django_dcron.management.dcron.import_texts import (
    is_disabled_problem,
    is_problem,
    show_calendars,
)
from django_dcron.management.dcron.output import Output
from django_dcron.models import Job
from django_dcron.policies.job_labels import DEFAULT_NAMESPACE
from django_dcron.utils.suggestions import did_you_mean


def add_source_options(parser: CommandParser) -> None:
    """Add the options that each command that reads a source has."""
    parser.add_argument(
        "--namespace",
        type=_namespace,
        help="namespace of the jobs (default: the namespace in an export, otherwise 'default')",
    )
    parser.add_argument(
        "--timezone",
        help="time zone of a crontab's machine (default: that of the last import, or else "
        "TIME_ZONE, for django-crontab that of this machine)",
    )
    users = ", ".join(name for name, allowed in OPTIONS.items() if "app" in allowed)
    parser.add_argument(
        "--app",
        metavar="PATH",
        help=f"dotted path of the instance to read, such as shop.queue.huey ({users}; default: "
        "that of its Django app)",
    )


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
        form = FileFormat(options["format"]) if options["format"] else None
        return sources.read_file(
            source,
            form,
            options["timezone"] or "",
            options["namespace"] or "",
            without_shell=options.get("without_shell", False),
        )
    except InvalidSchedule as error:
        raise usage_error(str(error)) from error
    except SourceProblem as error:
        known = "" if source in SCHEDULERS else f" Sources: {', '.join(SCHEDULERS)}, or a file."
        raise usage_error(f"{error}{known}") from error


@dataclass(frozen=True, slots=True)
class ImportResult:
    plans: Sequence[EntryPlan]
    """The plans of the jobs, as applied."""
    entries: int
    """The number of entries, including calendars."""
    problems: int
    """The number of entries that can't be imported, except those that no scheduler runs."""
    applied: bool
    needed_plans: Sequence[EntryPlan]
    """The plans, except those of entries that can't be imported and that no scheduler runs."""


def import_entries(out: Output, options: dict[str, Any], contents: SourceContents) -> ImportResult:
    """Compare the entries with the jobs, write them if requested, and show the result."""
    calendar_plans, plans = _compare(options, contents)
    if options["apply"] and options["atomic"]:
        calendar_results, results, applied = _write_all(contents, calendar_plans, plans)
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
    problems = _number_of_problems(contents, calendar_results, job_results)
    needed = [plan for plan in job_results if not is_disabled_problem(contents, plan)]
    return ImportResult(job_results, len(outcomes), problems, applied, needed)


def _number_of_problems(
    contents: SourceContents, calendar_results: Sequence[CalendarPlan], plans: Sequence[EntryPlan]
) -> int:
    """Return how many entries can't be imported, except those that no scheduler runs."""
    return sum(calendar.outcome in PROBLEMS for calendar in calendar_results) + sum(
        is_problem(contents, plan) for plan in plans
    )


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
            take_over=_takes_over(options, contents),
            calendars=calendars.calendars_to_save(calendar_plans),
        ),
    )
    if plans:
        _require_entries(plans, options["restore"])
    if options.get("only"):
        plans = _chosen(plans, options["only"], contents)
    return calendars.refuse_for_problem_jobs(calendar_plans, plans), plans


def _takes_over(options: dict[str, Any], contents: SourceContents) -> bool:
    """Return whether jobs that wait for their source to stop start now.

    A file has no handover. cron still runs the lines of a crontab that is imported with
    ``--disabled`` or ``--shadow``, and no scheduler runs the jobs of an export.
    """
    if contents.source in SCHEDULERS:
        return bool(options.get("take_over", False))
    return not contents.source or not (options["disabled"] or options["shadow"])


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
    return calendar_results, calendars.refuse_without_calendar(unwritten, plans)


def _write_all(
    contents: SourceContents, calendar_plans: list[CalendarPlan], plans: list[EntryPlan]
) -> tuple[list[CalendarPlan], Iterable[EntryPlan], bool]:
    """Write all entries, or none. Returns the outcomes, and whether the entries were written."""
    using = alias_for(Job)
    with transaction.atomic(using=using):
        calendar_results, results = _write_each(calendar_plans, plans)
        job_results = list(results)
        if refused := bool(_number_of_problems(contents, calendar_results, job_results)):
            transaction.set_rollback(True, using=using)
    return calendar_results, job_results, not refused
