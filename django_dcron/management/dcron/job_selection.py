"""Options that select jobs, and the output of jobs as table cells and as JSON."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Generic, TypeVar

from django.core.management.base import CommandParser
from django.db.models import Model
from django.utils.timezone import get_current_timezone_name

from django_dcron.diagnosis.job_filters.job_filter import JobCondition, JobFilter, jobs_matching
from django_dcron.diagnosis.job_filters.source import ADMIN, CODE
from django_dcron.diagnosis.job_state import JobState, job_state, status_of
from django_dcron.jobs.action_texts import paused_for
from django_dcron.jobs.representation import summary_of
from django_dcron.management.dcron.exits import negative_result, usage_error
from django_dcron.management.dcron.lookup import JOB_HELP, find_job
from django_dcron.management.dcron.output import BAD, WARNING, StyledText, site_time_text
from django_dcron.models import Job, Run
from django_dcron.policies.job_labels import DEFAULT_NAMESPACE
from django_dcron.targets.shadow import is_shadow
from django_dcron.utils.bounded_text import with_ellipsis

T = TypeVar("T", bound=Model)
_WITHOUT_LOCAL_TIME = re.compile(
    r"@every\s.*|@never|@at\s.*(?:Z|[+-][0-9]{2}:[0-9]{2})", re.IGNORECASE
)
REASON_SHOWN = 60
"""Characters of a pause reason in a table."""
STYLES = {JobState.QUARANTINED: BAD, JobState.PAUSED: WARNING}


def add_filters(parser: CommandParser, *, by_state: bool = True) -> None:
    """Add the filters of jobs; ``by_state`` adds those by the state of a job."""
    parser.add_argument(
        "--namespace", default="", help="only jobs of this namespace (default: all)"
    )
    parser.add_argument(
        "--tag",
        action="append",
        default=[],
        help="only jobs with this tag (repeatable; a job needs all of the tags)",
    )
    parser.add_argument(
        "--search",
        default="",
        metavar="TEXT",
        help="only jobs whose name, target or description contains TEXT",
    )
    parser.add_argument(
        "--source",
        default="",
        metavar="SOURCE",
        help=f"only jobs from this source: {CODE} (declared with @cron), {ADMIN} (created in "
        "the admin, over REST or with control), or the source of an import, such as "
        "django-celery-beat or crontab",
    )
    parser.add_argument(
        "--queue",
        default="",
        help="only jobs whose runs are published to this queue (a job without a queue uses the "
        "queue of its target)",
    )
    if not by_state:
        return
    state = parser.add_mutually_exclusive_group()
    state.add_argument(
        "--state",
        choices=[choice.value for choice in JobCondition],
        help="only jobs in this state; failing: enabled, and has failed since its last success; "
        "finished: no further occurrence; quarantined: not scheduled because of a problem",
    )
    for choice in (JobCondition.ENABLED, JobCondition.PAUSED, JobCondition.FAILING):
        state.add_argument(
            f"--{choice}",
            action="store_const",
            const=choice.value,
            dest="state",
            help=f"short for --state {choice}",
        )


FILTERS = ("namespace", "tag", "search", "source", "queue", "state")
"""The names of the options of ``add_filters``."""


def filter_of(options: dict[str, Any]) -> JobFilter:
    state: str | None = options.get("state")
    return JobFilter(
        namespace=options["namespace"],
        tags=tuple(options["tag"]),
        text=options["search"],
        source=options["source"],
        queue=options["queue"],
        condition=JobCondition(state) if state else None,
    )


def add_selection(
    parser: CommandParser,
    *,
    metavar: str = "JOB",
    help_text: str = JOB_HELP,
    by_state: bool = True,
) -> None:
    """Add names, patterns, ``--all`` and the filters, for a subcommand that changes jobs.

    ``by_state``: see ``add_filters``.
    """
    parser.add_argument(
        "names",
        nargs="*",
        default=[],
        metavar=metavar,
        help=f"{help_text}; or a pattern for jobs: 'shop/*', or '*/nightly-*' in every namespace "
        "(without a namespace, a pattern matches jobs of --namespace, or of the namespace "
        f"{DEFAULT_NAMESPACE})",
    )
    parser.add_argument("--all", action="store_true", help="all jobs")
    parser.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="JOB",
        help="not this job, or the jobs that match this pattern (repeatable)",
    )
    add_filters(parser, by_state=by_state)


@dataclass(frozen=True, slots=True)
class SelectedRows(Generic[T]):
    rows: list[T | Job]
    named: list[T]
    """Those of ``rows`` that the user named one by one."""
    by_criteria: bool
    """Whether a pattern, a filter or ``--all`` selected the rows.

    The user may then not know which rows they are.
    """


def select(
    options: dict[str, Any], find: Callable[[str], T], *, by_state: bool = True
) -> SelectedRows[T]:
    """Return the selected rows, each once.

    ``find`` returns the row, a job or a run, for an exact name or id. Without ``by_state``,
    ``--state`` isn't a state of jobs. ``--reason`` of ``resume`` is a filter, too.

    Raises ``CommandError`` if the options can't be combined, if nothing is selected or matches, or
    if a pattern or a name of ``--exclude`` matches no job.
    """
    names = options["names"]
    filters = filter_of(options if by_state else {**options, "state": None})
    pause_reason: str | None = options.get("pause_reason")
    patterns = [name for name in names if is_pattern(name)]
    is_filtered = filters != JobFilter() or pause_reason is not None
    if options["all"] and (names or filters != JobFilter()):
        raise usage_error(
            "--all can't be combined with names or filters. To leave out jobs, use --exclude."
        )
    if is_filtered and len(patterns) < len(names):
        if pause_reason is not None:
            job = next(name for name in names if not is_pattern(name))
            raise usage_error(
                "--reason selects jobs by the reason of their pause, so it can't be combined with "
                f"names. To resume {job}, omit --reason."
            )
        raise usage_error("Filters can be combined with patterns, but not with names.")
    if not (names or is_filtered or options["all"]):
        ways = ["a pattern", "--namespace", "--tag", "--search", "--source", "--queue"]
        ways += ["--reason"] if "pause_reason" in options else []
        ways += ["--state"] if by_state and "state" in options else []
        raise usage_error(f"Nothing is selected. Name the jobs, or use {', '.join(ways)} or --all.")
    named: list[T] = []
    rows: list[T | Job] = [] if names else list(jobs_matching(filters))
    for name in names:
        if is_pattern(name):
            rows += _matching(name, filters)
        else:
            named.append(find(name))
            rows.append(named[-1])
    excluded = {job.pk for text in options["exclude"] for job in _excluded(text, filters)}
    rows = [row for row in rows if (row.job_id if isinstance(row, Run) else row.pk) not in excluded]
    if not rows:
        raise negative_result("No jobs match.")
    if pause_reason is not None:
        rows = [*paused_for((row for row in rows if isinstance(row, Job)), pause_reason)]
        if not rows:
            raise negative_result(
                f"No selected job is paused for the reason {pause_reason!r}. To see the reasons: "
                "manage.py dcron list --paused --json"
            )
    unique = {(type(row), row.pk): row for row in rows}
    kept = [row for row in named if (type(row), row.pk) in unique]
    return SelectedRows(list(unique.values()), kept, by_criteria=bool(patterns) or not names)


def _excluded(text: str, filters: JobFilter) -> list[Job]:
    """Return the jobs that a value of ``--exclude`` names.

    A pattern without a namespace matches in all namespaces of the selection.
    """
    if is_pattern(text):
        everywhere = text if "/" in text or filters.namespace else f"*/{text}"
        return _matching(everywhere, filters, typed=text)
    is_short = "/" not in text and not text.isdecimal()
    return [find_job(f"{filters.namespace}/{text}" if filters.namespace and is_short else text)]


def is_pattern(text: str) -> bool:
    return "*" in text or "?" in text


def _matching(pattern: str, filters: JobFilter, *, typed: str = "") -> list[Job]:
    """Return the jobs that match, or fail if no job does.

    The error shows ``typed``, the pattern as the user typed it (default: ``pattern``).
    """
    namespace = "" if "/" in pattern else filters.namespace
    if not jobs_matching(JobFilter(pattern=pattern, namespace=namespace)).exists():
        if "/" in pattern:
            where = hint = ""
        else:
            where = f" in the namespace {namespace or DEFAULT_NAMESPACE!r}"
            hint = f" For all namespaces, use '*/{pattern}'."
        raise usage_error(
            f"No job matches {(typed or pattern)!r}{where}.{hint} "
            "To list all jobs: manage.py dcron list"
        )
    return list(jobs_matching(replace(filters, pattern=pattern)))


def state_cell(job: Job, *, with_pause: bool = False) -> StyledText:
    """Return the job's state; ``with_pause`` adds until when and why a paused job is paused."""
    state = job_state(job)
    shadow = ", shadow" if is_shadow(job.target) else ""
    text = f"{state.value}{shadow}"
    if with_pause and state is JobState.PAUSED:
        text += f" until {site_time_text(job.paused_until)}" if job.paused_until else ""
        text += f": {with_ellipsis(job.pause_reason, REASON_SHOWN)}" if job.pause_reason else ""
    return StyledText(text, STYLES.get(state, ""))


def schedule_with_zone(job: Job) -> str:
    """Return the schedule, followed by its time zone.

    The zone is omitted if it is the site's zone, or if it has no effect on any line.
    """
    lines = [line.strip() for line in job.schedule.splitlines() if line.strip()]
    text = "; ".join(lines)
    has_calendar = job.calendar_id is not None
    if job.timezone == get_current_timezone_name() or not any(
        _depends_on_zone(line, has_calendar) for line in lines
    ):
        return text
    return f"{text} ({job.timezone})"


def _depends_on_zone(line: str, has_calendar: bool) -> bool:
    """Return whether the job's zone has an effect on a line of its schedule.

    The dates of a calendar are local dates, even if the line contains no local time.
    """
    if line.startswith(("TZ=", "CRON_TZ=")):
        return False
    return has_calendar or _WITHOUT_LOCAL_TIME.fullmatch(line) is None


def job_document(job: Job, now: datetime) -> dict[str, Any]:
    """Return the job in the format of the REST API's job list."""
    return summary_of(job) | {"status": status_of(job, now)}
