"""``manage.py dcron simulate``: show what would run between two times.

Exit codes:

- 0: success.
- 2: the request can't be processed.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.utils import timezone

from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.job_filters.selection import JobSelection
from django_dcron.diagnosis.simulation import LONGEST, FullMinute, Simulation, simulate
from django_dcron.management.dcron import option_values
from django_dcron.management.dcron.exits import usage_error
from django_dcron.management.dcron.lookup import require_namespace
from django_dcron.management.dcron.option_values import parse_whole_number
from django_dcron.management.dcron.output import (
    QUIET,
    WARNING,
    Cell,
    Column,
    Output,
    StyledText,
    add_json,
    iso,
    time_text,
)
from django_dcron.models import Job
from django_dcron.models.job_states import IS_PAUSED
from django_dcron.schedules.crowding import CrowdedMinute
from django_dcron.utils.counts import number_of

HELP = (
    "Show what would run between two times with the current schedules: the occurrences of each "
    f"job, the load, the busiest minutes and the jobs that start together. At most {LONGEST.days} "
    "days. Ignores paused jobs, jitter, retries and policies. Numbers are approximate on the day "
    "of a clock change."
)
EXAMPLES = """
simulate
simulate --from 2027-01-01T00:00 --until 2027-01-02T00:00
simulate --until +2h --namespace shop --top 5
simulate --until +7d --json
"""
TOP = 10
BAR = 24
IN_MINUTES = 61
"""Up to this many minutes are shown minute by minute; a longer time is shown by the hour.

An hour that doesn't begin at a whole minute is part of 61 minutes.
"""


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "--from",
        dest="since",
        default="now",
        metavar="TIME",
        help=f"{option_values.time_help()} (default: now)",
    )
    parser.add_argument(
        "--until", default="+1d", metavar="TIME", help="same formats (default: +1d)"
    )
    parser.add_argument(
        "--namespace", default="", help="only jobs of this namespace (default: all)"
    )
    parser.add_argument(
        "--search", default="", metavar="TEXT", help="only jobs whose name contains TEXT"
    )
    parser.add_argument(
        "--top",
        type=parse_whole_number(1, 1000),
        default=TOP,
        metavar="N",
        help=f"number of jobs and minutes to show (default: {TOP})",
    )
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    out, now = Output(command, options), database_now(alias_for(Job))
    zone = timezone.get_current_timezone()
    since = option_values.parse_time_option("--from", options["since"], now, zone)
    until = option_values.parse_time_option("--until", options["until"], now, zone)
    if since >= until:
        raise usage_error(
            f"--from ({iso(since)}) must be before --until ({iso(until)}). For a span in the "
            "future, write --until +2h."
        )
    if until - since > LONGEST:
        raise usage_error(
            f"--from {iso(since)} --until {iso(until)}: the maximum is {LONGEST.days} days."
        )
    require_namespace(options["namespace"])
    selection = JobSelection(options["namespace"], options["search"])
    found = simulate(since, until, selection, options["top"])
    if out.is_json:
        out.json(_document(found, options["top"]))
    else:
        paused = Job.objects.using(alias_for(Job)).filter(IS_PAUSED, **selection.lookups())
        _print(out, found, paused.count(), options["top"])


def _print(out: Output, found: Simulation, paused: int, top: int) -> None:
    _print_totals(out, found, paused)
    if not found.total:
        return
    out.line()
    _print_jobs(out, found, top)
    out.line()
    _print_load(out, found)
    for crowd in found.crowded_minutes:
        out.line(f"! {_advice(found, crowd)}", WARNING)


def _print_totals(out: Output, found: Simulation, paused: int) -> None:
    out.line(f"{time_text(found.since)} to {time_text(found.until)}")
    out.line(
        f"{number_of(found.jobs, 'job')}; {number_of(found.total, 'occurrence')} of "
        f"{len(found.by_job)} of them; several jobs start together in {found.clashes} of "
        f"{number_of(len(found.occurrences), 'minute')}"
    )
    if found.in_every_minute:
        starting = number_of(found.in_every_minute, "job starts", "jobs start")
        out.line(f"{starting} in every minute, not counted as starting together")
    if paused:
        out.line(f"not counting {number_of(paused, 'paused job')}")


def _print_jobs(out: Output, found: Simulation, top: int) -> None:
    jobs = (
        (_name(each.job), each.schedule, each.timezone, each.occurrences)
        for each in found.by_job[:top]
    )
    columns = [
        Column("Job", wraps=True),
        Column("Schedule", wraps=True),
        Column("Zone"),
        _number("Occurrences"),
    ]
    out.table(columns, jobs)
    if (more := len(found.by_job) - top) > 0:
        out.line(f"and {number_of(more, 'more job')}")


def _print_load(out: Output, found: Simulation) -> None:
    """Print the load over time, and the fullest minutes."""
    columns = [
        _time_column("From"),
        _number("Occurrences"),
        _number("Per minute"),
        _number("Together"),
        Column(""),
    ]
    out.table(columns, list(_load(found)))
    if found.fullest:
        out.line()
        columns = [
            _time_column("Minute"),
            _number("Together"),
            _number("Occurrences"),
            Column("Jobs", wraps=True),
        ]
        out.table(columns, (_full_minute(each) for each in found.fullest))


def _advice(found: Simulation, crowd: CrowdedMinute) -> str:
    minute = timezone.localtime(found.minute(crowd.minute)).minute
    hours = number_of(len(crowd.hours), "hour")
    return (
        f"Up to {crowd.jobs} jobs start at minute {minute} of {hours}. With "
        f"{', '.join(crowd.forms)} as their minute, at most {crowd.at_most} start per minute. "
        f"Their most common schedule: {crowd.texts[0][0]}"
    )


def _name(key: str) -> str:
    """Return the job's name as ``str(job)`` does."""
    return key.removeprefix("default/")


def _number(title: str) -> Column:
    return Column(title, right=True)


def _time_column(title: str) -> Column:
    return Column(f"{title} ({timezone.get_current_timezone_name()})")


def _clock(instant: datetime) -> str:
    return f"{timezone.localtime(instant):%Y-%m-%d %H:%M}"


def _load(found: Simulation) -> Iterator[list[Cell]]:
    """Yield rows by hour or by minute.

    Columns: occurrences, the maximum of occurrences in one minute, the maximum of jobs that start
    in one minute.
    """
    step = 1 if len(found.occurrences) <= IN_MINUTES else 60
    slices = range(0, len(found.occurrences), step)
    most = max(sum(found.occurrences[start : start + step]) for start in slices)
    for start in slices:
        occurrences = found.occurrences[start : start + step]
        starting = found.starting[start : start + step]
        bar = "#" * -(-sum(occurrences) * BAR // most)
        yield [
            _clock(found.minute(start)),
            sum(occurrences),
            max(occurrences),
            max(starting),
            StyledText(bar, QUIET),
        ]


def _full_minute(each: FullMinute) -> list[Cell]:
    names = list(map(_name, each.names))
    more = each.jobs - len(names)
    return [
        _clock(each.at),
        each.jobs,
        each.occurrences,
        ", ".join([*names, f"and {more} more"] if more > 0 else names),
    ]


def _document(found: Simulation, top: int) -> dict[str, Any]:
    return {
        "version": 1,
        "since": iso(found.since),
        "until": iso(found.until),
        "jobs": found.jobs,
        "occurrences": found.total,
        "clashing_minutes": found.clashes,
        "jobs_in_every_minute": found.in_every_minute,
        "by_job": [
            {
                "job": each.job,
                "schedule": each.schedule,
                "timezone": each.timezone,
                "occurrences": each.occurrences,
            }
            for each in found.by_job[:top]
        ],
        "more_jobs": max(len(found.by_job) - top, 0),
        "occurrences_per_minute": list(found.occurrences),
        "jobs_per_minute": list(found.starting),
        "fullest": [
            {
                "at": iso(each.at),
                "jobs": each.jobs,
                "occurrences": each.occurrences,
                "names": list(each.names),
            }
            for each in found.fullest
        ],
    }
