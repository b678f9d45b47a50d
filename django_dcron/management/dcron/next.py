"""``manage.py dcron next``: what comes, of a job or of any schedule.

A text that can be read as a schedule is one; any other names a job.
``NAMESPACE/NAME`` names a job whatever it is called. Exit codes: 0; 1 there is no further occurrence; 2 it cannot be told.
"""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_dcron.domain.schedule import parse_schedule
from django_dcron.exceptions import InvalidSchedule
from django_dcron.management.dcron import times
from django_dcron.management.dcron.choosing import schedule_text
from django_dcron.management.dcron.exits import cannot, no
from django_dcron.management.dcron.finding import find_job
from django_dcron.management.dcron.numbers import whole
from django_dcron.management.dcron.output import EMPTY, ODD, Column, Output, add_json, iso, seconds, span
from django_dcron.models import Job
from django_dcron.models.database import alias_for, database_now
from django_dcron.observability.lookahead import OCCURRENCES, Lookahead, look_ahead
from django_dcron.observability.why.inquiry import zone_of

HELP = (
    "Show the next occurrences of a job, or of any schedule: in its time zone and in UTC, with the time between them and what its "
    "owner should know about them. A text that can be read as a schedule is taken for one (quote it for the shell), any other for a "
    "job. Exit code 1: there is no further occurrence."
)
EXAMPLES = """
next nightly-report
next "30 3 * * MON-FRI" --timezone Europe/Berlin
next "@every 90m" -n 5
next shop/import-orders --after 2027-03-27T00:00
"""
MOST = 1000


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "what", metavar="JOB|SCHEDULE", help="NAME, NAMESPACE/NAME or a job's number; or a schedule"
    )
    parser.add_argument(
        "-n",
        "--count",
        type=whole(1, MOST),
        default=OCCURRENCES,
        metavar="N",
        help=f"how many, at most {MOST} ({OCCURRENCES})",
    )
    parser.add_argument(
        "--timezone", metavar="ZONE", help="in which its times are meant (a schedule: UTC; a job: its own)"
    )
    parser.add_argument(
        "--after",
        default="now",
        metavar="TIME",
        help=f"those after it: {times.time_help('in that time zone')} (now)",
    )
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    out = Output(command, options)
    job = _read(options["what"], options["timezone"])
    after = times.instant("--after", options["after"], database_now(alias_for(Job)), zone_of(job))
    try:
        ahead = look_ahead(job, options["count"], after=after)
    except InvalidSchedule as error:
        raise cannot(str(error)) from error
    if out.is_json:
        out.json(_document(job, ahead))
    else:
        _print(out, job, ahead)
    if not ahead.occurrences:
        raise no("There is no further occurrence.")


def _read(text: str, zone: str | None) -> Job:
    """A job that is not stored, if it is a schedule."""
    try:
        return Job(schedule=parse_schedule(text, zone or "UTC").text, timezone=zone or "UTC")
    except InvalidSchedule as error:
        if str(error).startswith("timezone:"):
            raise cannot(str(error)) from error
        mistake = error
    try:
        job = find_job(text)
    except CommandError as error:
        if " " in text or text.startswith("@"):
            raise cannot(f"{error} It is no schedule either: {mistake}") from mistake
        raise
    job.timezone = zone or job.timezone
    return job


def _document(job: Job, ahead: Lookahead) -> dict[str, Any]:
    return {
        "version": 1,
        "job": {"id": job.pk, "namespace": job.namespace, "name": job.name} if job.pk else None,
        "schedule": job.schedule,
        "timezone": ahead.zone,
        "words": ahead.words,
        "enabled": job.enabled,
        "occurrences": occurrences_document(ahead),
        "cautions": cautions_document(ahead),
    }


def occurrences_document(ahead: Lookahead) -> list[dict[str, Any]]:
    return [
        {"at": iso(each.at), "local": each.local.isoformat(), "gap_seconds": seconds(each.gap)}
        for each in ahead.occurrences
    ]


def cautions_document(ahead: Lookahead) -> list[dict[str, str]]:
    return [{"code": caution.code, "message": caution.message} for caution in ahead.cautions]


def _print(out: Output, job: Job, ahead: Lookahead) -> None:
    out.line(f"{job}: {schedule_text(job)}" if job.pk else schedule_text(job))
    if ahead.words:
        out.line(ahead.words)
    if not job.enabled:
        out.line("It is paused: as if it were resumed now.", ODD)
    out.line()
    print_occurrences(out, ahead)


def print_occurrences(out: Output, ahead: Lookahead) -> None:
    if ahead.zone in ("UTC", "Etc/UTC"):
        columns = [Column("UTC"), Column("Gap", right=True)]
        rows = [[f"{each.at:%a %Y-%m-%d %H:%M:%S}", _gap(each.gap)] for each in ahead.occurrences]
    else:
        columns = [Column(ahead.zone), Column("UTC"), Column("Gap", right=True)]
        rows = [
            [f"{each.local:%a %Y-%m-%d %H:%M:%S %Z}", f"{each.at:%Y-%m-%d %H:%M:%S}", _gap(each.gap)]
            for each in ahead.occurrences
        ]
    if rows:
        out.table(columns, rows)
    for caution in ahead.cautions:
        out.line(f"! {caution.message}", ODD)


def _gap(gap: Any) -> str:
    return span(gap) if gap else EMPTY
