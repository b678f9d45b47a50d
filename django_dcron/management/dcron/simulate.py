"""``manage.py dcron simulate``: what would run between two times. Exit codes: 0; 2 it cannot be told."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.utils import timezone

from django_dcron.domain.counts_in_words import number_of
from django_dcron.domain.crowding import Crowd
from django_dcron.management.dcron import times
from django_dcron.management.dcron.exits import cannot
from django_dcron.management.dcron.numbers import whole
from django_dcron.management.dcron.output import (
    ODD,
    QUIET,
    Cell,
    Column,
    Output,
    Styled,
    add_json,
    iso,
    moment,
)
from django_dcron.models import Job
from django_dcron.models.database import alias_for, database_now
from django_dcron.observability.selection import Selection
from django_dcron.observability.simulation import LONGEST, FullMinute, Simulation, simulate

HELP = (
    "Show what would run between two times, by the schedules as they are now: the occurrences of each job, the load, the fullest "
    f"minutes and the jobs that start in them together. At most {LONGEST.days} days. Paused jobs are not in it; jitter, retries and what "
    "policies would skip are left aside. Around a change of clocks it goes by what clocks show."
)
EXAMPLES = """
simulate
simulate --from 2027-01-01T00:00 --until 2027-01-02T00:00
simulate --until +2h --namespace shop --top 5
simulate --until +7d --json
"""
TOP = 10
BAR = 24
IN_MINUTES = 60
"""A time of so many minutes is shown minute by minute, a longer one by hours."""


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "--from", dest="since", default="now", metavar="TIME", help=f"{times.time_help()} (now)"
    )
    parser.add_argument("--until", default="+1d", metavar="TIME", help="in the same forms (+1d)")
    parser.add_argument("--namespace", default="", help="the jobs of this namespace only (all)")
    parser.add_argument("--search", default="", metavar="TEXT", help="those with TEXT in their name")
    parser.add_argument(
        "--top", type=whole(1, 1000), default=TOP, metavar="N", help=f"so many jobs and minutes ({TOP})"
    )
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    out, now = Output(command, options), database_now(alias_for(Job))
    zone = timezone.get_current_timezone()
    since = times.instant("--from", options["since"], now, zone)
    until = times.instant("--until", options["until"], now, zone)
    if since >= until:
        raise cannot(f"--from, {iso(since)}, is not before --until, {iso(until)}.")
    if until - since > LONGEST:
        raise cannot(f"--from {iso(since)} --until {iso(until)}: allowed are at most {LONGEST.days} days.")
    selection = Selection(options["namespace"], options["search"])
    found = simulate(since, until, selection, options["top"])
    if out.is_json:
        out.json(_document(found, options["top"]))
    else:
        _print(out, found, options["top"])


def _print(out: Output, found: Simulation, top: int) -> None:
    out.line(f"{moment(found.since)} to {moment(found.until)}")
    out.line(
        f"{number_of(found.jobs, 'job')}; {number_of(found.total, 'occurrence')} of {len(found.by_job)} of them; "
        f"in {found.clashes} of {number_of(len(found.occurrences), 'minute')} several jobs start together"
    )
    if found.in_every_minute:
        out.line(
            f"not counting {number_of(found.in_every_minute, 'that starts', 'that start')} in every minute"
        )
    if not found.total:
        return
    out.line()
    jobs = ((_name(each.job), each.schedule, each.timezone, each.occurrences) for each in found.by_job[:top])
    columns = [
        Column("Job", wraps=True),
        Column("Schedule", wraps=True),
        Column("Zone"),
        _number("Occurrences"),
    ]
    out.table(columns, jobs)
    if (more := len(found.by_job) - top) > 0:
        out.line(f"and {number_of(more, 'more job')}")
    out.line()
    columns = [
        _zoned("From"),
        _number("Occurrences"),
        _number("In a minute"),
        _number("Together"),
        Column(""),
    ]
    out.table(columns, list(_load(found)))
    if found.fullest:
        out.line()
        columns = [
            _zoned("Minute"),
            _number("Together"),
            _number("Occurrences"),
            Column("Which", wraps=True),
        ]
        out.table(columns, (_full_minute(each) for each in found.fullest))
    for crowd in found.crowds:
        out.line(f"! {_advice(found, crowd)}", ODD)


def _advice(found: Simulation, crowd: Crowd) -> str:
    minute = timezone.localtime(found.minute(crowd.minute)).minute
    hours = number_of(len(crowd.hours), "hour")
    return (
        f"Up to {crowd.jobs} jobs start at minute {minute} of {hours}. With {', '.join(crowd.forms)} for the minute they would "
        f"spread: at most {crowd.at_most} a minute. Their most common schedule: {crowd.texts[0][0]}"
    )


def _name(key: str) -> str:
    """As ``str(job)`` has it."""
    return key.removeprefix("default/")


def _number(title: str) -> Column:
    return Column(title, right=True)


def _zoned(title: str) -> Column:
    return Column(f"{title} ({timezone.get_current_timezone_name()})")


def _clock(instant: datetime) -> str:
    return f"{timezone.localtime(instant):%Y-%m-%d %H:%M}"


def _load(found: Simulation) -> Iterator[list[Cell]]:
    """By hours, or by minutes: occurrences, the most of them in one minute, and the most jobs that start in one together."""
    step = 1 if len(found.occurrences) <= IN_MINUTES else 60
    slices = range(0, len(found.occurrences), step)
    most = max(sum(found.occurrences[start : start + step]) for start in slices)
    for start in slices:
        occurrences, starting = found.occurrences[start : start + step], found.starting[start : start + step]
        bar = "#" * -(-sum(occurrences) * BAR // most)
        yield [
            _clock(found.minute(start)),
            sum(occurrences),
            max(occurrences),
            max(starting),
            Styled(bar, QUIET),
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
