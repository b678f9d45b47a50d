"""``manage.py dcron next``: show the next occurrences of a job or of any schedule.

Text that parses as a schedule is a schedule; any other text names a job, or is an English sentence
if no job has the name. ``NAMESPACE/NAME`` always names a job.

Exit codes:

- 0: success.
- 1: there are no further occurrences.
- 2: the request can't be processed.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.lookahead import OCCURRENCES, Lookahead, look_ahead
from django_dcron.diagnosis.why.explanation_data import schedule_zone_of
from django_dcron.exceptions import InvalidSchedule, InvalidTimeZone
from django_dcron.jobs.bulk_skips import may_start_again
from django_dcron.management.dcron import option_values
from django_dcron.management.dcron.exits import negative_result, usage_error
from django_dcron.management.dcron.job_selection import schedule_with_zone
from django_dcron.management.dcron.lookup import find_job
from django_dcron.management.dcron.option_values import parse_whole_number, time_help
from django_dcron.management.dcron.output import (
    EMPTY,
    WARNING,
    Column,
    Output,
    add_json,
    duration_text,
    iso,
    seconds,
)
from django_dcron.models import Job
from django_dcron.schedules.schedule import parse_schedule
from django_dcron.schedules.sentences import replace_sentences
from django_dcron.schedules.zones import check_zone, date_in
from django_dcron.utils.messages import with_full_stop

HELP = (
    "Show the next occurrences of a job or of a schedule, in its time zone and in the site's, with "
    "the gaps between them and warnings. Text that is a valid schedule is a schedule (quote it for "
    "the shell); other text is a job, or an English sentence if no job has that name. Exit code 1: "
    "there are no further occurrences."
)
EXAMPLES = """
next nightly-report
next "30 3 * * MON-FRI" --timezone Europe/Berlin
next "@every 90m" -n 5
next "every weekday at 9:30"
next shop/import-orders --after 2027-03-27T00:00
next nightly-report --timezone America/New_York
"""
MAX_OCCURRENCES = 1000


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "what",
        metavar="JOB|SCHEDULE",
        help="NAME, NAMESPACE/NAME or number of a job; or a schedule, such as '30 3 * * *' or "
        "'every weekday at 9:30'",
    )
    parser.add_argument(
        "-n",
        "--count",
        type=parse_whole_number(1, MAX_OCCURRENCES),
        default=OCCURRENCES,
        metavar="N",
        help=f"number of occurrences, at most {MAX_OCCURRENCES} (default: {OCCURRENCES})",
    )
    parser.add_argument(
        "--timezone",
        metavar="ZONE",
        help="time zone of the schedule (default: TIME_ZONE). A job keeps its time zone; its times "
        "are shown in ZONE, too",
    )
    parser.add_argument(
        "--after",
        default="now",
        metavar="TIME",
        help=f"occurrences after this time: {time_help('in ZONE, or the time zone of the job')} "
        "(default: now)",
    )
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    out = Output(command, options)
    job, zone = _job_or_schedule(options["what"], options["timezone"]), options["timezone"]
    after = option_values.parse_time_option(
        "--after",
        options["after"],
        database_now(alias_for(Job)),
        ZoneInfo(zone) if zone else schedule_zone_of(job),
    )
    try:
        ahead = look_ahead(job, options["count"], after=after)
    except InvalidSchedule as error:
        raise usage_error(str(error)) from error
    if out.is_json:
        out.json(_document(job, ahead))
    else:
        shown = zone if zone and job.pk else timezone.get_current_timezone()
        with timezone.override(shown):
            _print(out, job, ahead)
    if not ahead.occurrences:
        raise negative_result("There are no further occurrences.")


def _job_or_schedule(text: str, zone: str | None) -> Job:
    """Return the named job, or an unsaved job with the given schedule in ``zone``."""
    zone_or_default = zone or Job().timezone
    try:
        check_zone(zone_or_default)
        schedule = parse_schedule(text, zone_or_default)
        return Job(schedule=schedule.text, timezone=zone_or_default)
    except InvalidTimeZone as error:
        raise usage_error(str(error)) from error
    except InvalidSchedule as error:
        mistake = error
    try:
        job = find_job(text)
    except CommandError as error:
        schedule_text = _without_sentences(text, zone_or_default)
        if " " in text and schedule_text != text:  # a single word is more likely a wrong name
            return _job_or_schedule(schedule_text, zone)
        if mistake.code == "single_time":
            raise usage_error(with_full_stop(mistake)) from mistake
        if " " in text or text.startswith("@") or mistake.code == "unknown_macro":
            why = with_full_stop(mistake)
            raise usage_error(f"Not a schedule: {why} Not a job: {error}") from mistake
        raise
    return job


def _without_sentences(text: str, zone: str) -> str:
    try:
        return replace_sentences(text, date_in(zone, timezone.now()))
    except InvalidSchedule as error:
        raise usage_error(with_full_stop(error)) from error


def _document(job: Job, ahead: Lookahead) -> dict[str, Any]:
    return {
        "version": 1,
        "job": {"id": job.pk, "namespace": job.namespace, "name": job.name} if job.pk else None,
        "schedule": job.schedule,
        "timezone": ahead.zone,
        "words": ahead.words,
        "enabled": job.enabled,
        "occurrences": occurrences_document(ahead),
        "cautions": lookahead_cautions(ahead),
    }


def occurrences_document(ahead: Lookahead) -> list[dict[str, Any]]:
    return [
        {"at": iso(each.at), "local": each.local.isoformat(), "gap_seconds": seconds(each.gap)}
        for each in ahead.occurrences
    ]


def lookahead_cautions(ahead: Lookahead) -> list[dict[str, str]]:
    return [{"code": caution.code, "message": caution.message} for caution in ahead.cautions]


def _print(out: Output, job: Job, ahead: Lookahead) -> None:
    out.line(f"{job}: {schedule_with_zone(job)}" if job.pk else schedule_with_zone(job))
    if ahead.words:
        out.line(ahead.words)
    print_resume_notice(out, job)
    out.line()
    print_occurrences(out, ahead)


def print_resume_notice(out: Output, job: Job) -> None:
    """Say that a paused or finished job doesn't run at its next occurrences."""
    if job.is_paused or (job.pk and may_start_again(job)):
        state = "paused" if job.is_paused else "finished"
        out.line(f"The job is {state}. These are its occurrences if it is resumed now.", WARNING)


def print_occurrences(out: Output, ahead: Lookahead) -> None:
    """Write a table of the occurrences in their time zone and, if it differs, the current one."""
    site = timezone.get_current_timezone_name()
    columns = [Column(ahead.zone), Column(site), Column("Interval", right=True)]
    rows = [
        [_with_weekday(each.local), _with_weekday(timezone.localtime(each.at)), _gap(each.gap)]
        for each in ahead.occurrences
    ]
    if ahead.zone == site:
        columns, rows = [columns[0], columns[2]], [[row[0], row[2]] for row in rows]
    if rows:
        out.table(columns, rows)
    for caution in ahead.cautions:
        out.line(f"! {caution.message}", WARNING)


def _with_weekday(at: datetime) -> str:
    return f"{at:%a %Y-%m-%d %H:%M:%S %Z}"


def _gap(gap: Any) -> str:
    return duration_text(gap) if gap else EMPTY
