"""``manage.py dcron calendar``: write a calendar from an iCalendar file."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings as django_settings
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandParser

from django_dcron import control
from django_dcron.contrib.ics import (
    LONGEST_FILE,
    MAX_YEARS,
    YEARS_READ,
    OmittedEvent,
    read_ics,
    years_later,
)
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.exceptions import Conflict, InvalidSchedule
from django_dcron.management.dcron.exits import negative_result, usage_error
from django_dcron.management.dcron.output import GOOD, WARNING, Output, add_json
from django_dcron.models import Calendar
from django_dcron.schedules.zones import check_zone
from django_dcron.utils.bounded_text import first_distinct
from django_dcron.utils.counts import number_of

HELP = (
    "Write a calendar from an iCalendar file (.ics). The events of the file replace the excluded "
    "dates and times of the calendar, which is created if it doesn't exist. Exit code 1: some "
    "events can't be expressed and were omitted; the others were written. Exit code 2: the file "
    "can't be used, and nothing was written."
)
EXAMPLES = """
calendar "bank days" --ics holidays.ics --dry-run
calendar maintenance --ics - --timezone Europe/Berlin --years 2
"""
STANDARD_INPUT = "-"
REASONS_LISTED = 5
"""The number of distinct events with their reasons in an error message."""


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("name", help="the calendar")
    parser.add_argument(
        "--ics",
        required=True,
        metavar="FILE",
        help="the iCalendar file, or - for the standard input",
    )
    parser.add_argument(
        "--years",
        type=_years,
        default=YEARS_READ,
        metavar="NUMBER",
        help="how many years ahead events are read, from today on (default: 5). Events that a "
        "calendar can repeat without an end, such as each year on the same date, have no limit",
    )
    parser.add_argument(
        "--timezone",
        metavar="ZONE",
        help="convert times to this time zone, which should be that of the schedules that use the "
        "calendar (default: the site's TIME_ZONE)",
    )
    parser.add_argument("--dry-run", action="store_true", help="show the entries and write nothing")
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    output, name = Output(command, options), options["name"]
    try:
        zone = ZoneInfo(check_zone(options["timezone"] or django_settings.TIME_ZONE))
        first = database_now(alias_for(Calendar)).astimezone(zone).date()
        last = years_later(first, options["years"])
        read = read_ics(_content(options["ics"]), zone=zone, first=first, last=last)
        if not read.dates:
            reasons = (f"{_name_of(each)}: {each.reason}" for each in read.omitted)
            listed = "; ".join(first_distinct(reasons, REASONS_LISTED))
            raise usage_error(f"Nothing was written, because all events were omitted. {listed}.")
        found = Calendar.objects.using(alias_for(Calendar)).filter(pk=name).first()
        calendar = found or Calendar(name=name)
        before, calendar.dates = calendar.dates, read.dates
        calendar.clean_fields()
        outcome = "change" if before != calendar.dates else "keep"
        if found is None:
            outcome = "create"
        if outcome != "keep" and not options["dry_run"]:
            control.save_calendar(calendar)
    except ValidationError as error:
        raise usage_error(f"Nothing was written. {' '.join(error.messages)}") from None
    except (InvalidSchedule, Conflict) as error:
        raise usage_error(f"Nothing was written. {error}") from None
    _print(output, calendar, outcome, read.omitted, dry_run=options["dry_run"])
    if read.omitted:
        omitted = number_of(len(read.omitted), "event was", "events were")
        raise negative_result(f"{omitted} omitted.")


def _print(
    output: Output,
    calendar: Calendar,
    outcome: str,
    omitted: tuple[OmittedEvent, ...],
    *,
    dry_run: bool,
) -> None:
    if output.is_json:
        output.json(
            {
                "version": 1,
                "calendar": calendar.name,
                "outcome": outcome,
                "written": outcome != "keep" and not dry_run,
                "dates": calendar.dates.splitlines(),
                "omitted": [
                    {"event": each.summary, "reason": str(each.reason)} for each in omitted
                ],
            }
        )
        return
    for line in calendar.dates.splitlines():
        output.line(line)
    for each in omitted:
        output.line(f"omitted: {_name_of(each)}: {each.reason}", WARNING)
    texts = {"create": ("created", "would be created"), "change": ("changed", "would be changed")}
    what = texts[outcome][dry_run] if outcome in texts else "unchanged"
    output.line(f"{calendar.name}: {what}", GOOD)


def _name_of(event: OmittedEvent) -> str:
    return event.name or "event without a title"


def _content(path: str) -> bytes:
    try:
        if path == STANDARD_INPUT:
            return sys.stdin.buffer.read(LONGEST_FILE + 1)
        with Path(path).open("rb") as file:
            return file.read(LONGEST_FILE + 1)
    except OSError as error:
        raise usage_error(f"{path!r} can't be read: {error.strerror}.") from None


def _years(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MAX_YEARS:
        raise ArgumentTypeError(f"{text!r} isn't a whole number from 1 to {MAX_YEARS}")
    return int(text)
