"""``manage.py dcron why``: explain what happened at one occurrence.

Exit codes:

- 0: success.
- 1: there is no explanation.
- 2: the request can't be processed.
"""

from __future__ import annotations

import shlex
from datetime import UTC, datetime, tzinfo
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.why.explanation import Answer, explain, explain_local
from django_dcron.diagnosis.why.explanation_data import schedule_zone_of
from django_dcron.diagnosis.why.latest import explain_latest
from django_dcron.diagnosis.why.verdicts import WhyVerdict
from django_dcron.management.dcron import option_values
from django_dcron.management.dcron.exits import negative_result
from django_dcron.management.dcron.lookup import JOB_HELP, find_job
from django_dcron.management.dcron.output import BAD, STATE_STYLES, Output, add_json, iso
from django_dcron.models import Job
from django_dcron.utils import time_format

HELP = (
    "Explain why a job ran or didn't run at a given time. TIME may be text that another command "
    "prints. A TIME without a zone is read in the job's time zone. If the job has neither a run "
    "nor a due occurrence then, TIME is read in the site's time zone, in which the admin shows "
    "times. If the job has a run at both times, the first one is explained, and the output names "
    "the command for the other one. A time without seconds means the whole minute. A time of day "
    "means the last such time until now. Without TIME, explains the last occurrence, or why the "
    "job is paused. Exit code 1: there is no explanation."
)
EXAMPLES = """
why nightly-report
why nightly-report 2026-12-01T03:30
why shop/import-orders 2026-12-01T08:05:00Z
why nightly-report 2026-12-01 03:30:00+01:00
why nightly-report 03:30
why nightly-report 6h --json
"""


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("job", metavar="JOB", help=JOB_HELP)
    parser.add_argument(
        "time",
        metavar="TIME",
        nargs="*",
        default=[],
        help="a time such as 2026-12-01T03:30, also as another command prints it (2026-12-01 "
        "03:30:00 CET), a time of day such as 03:30, a span in the past (30m, 6h, 2d), or now",
    )
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    out, job = Output(command, options), find_job(options["job"])
    text, now = " ".join(options["time"]), database_now(alias_for(Job))
    answer, meaning = _explain_text(job, text, now) if text else (explain_latest(job, now), "")
    if out.is_json:
        out.json(_document(job, answer) | {"meaning": meaning})
    else:
        if meaning:
            out.line(meaning)
        _print(out, job, answer)
    if answer.verdict is WhyVerdict.UNEXPLAINED:
        raise negative_result("No explanation found.")


def _explain_text(job: Job, text: str, now: datetime) -> tuple[Answer, str]:
    """Explain what the job did at the time ``text``.

    Also return a sentence with the full time if the text is ambiguous.
    """
    zone, site = schedule_zone_of(job), timezone.get_current_timezone()
    instant, in_site = _times_of(text, now, zone, site)
    answer = explain_local(job, instant, in_site)
    if answer.instant != instant:
        return answer, (
            f"{text} means {in_site:%Y-%m-%d %H:%M:%S} ({site}), because the job has no run "
            f"at {instant:%Y-%m-%d %H:%M:%S} in its own time zone, {zone}."
        )
    # A list shows times in the site's zone. Its run at this time isn't the one explained.
    in_list = in_site != instant and explain(job, in_site).has_run_at_time
    is_ambiguous = in_site != instant and text[-1].isalpha()  # CST is in China and in Chicago
    is_clock_time = option_values.last_clock_time(text, now, zone) is not None
    if not (is_clock_time or in_list or is_ambiguous):
        return answer, ""
    meaning = f"{text} means {instant:%Y-%m-%d %H:%M:%S} ({zone})."
    if in_list:
        command = shlex.join(["dcron", "why", str(job), in_site.isoformat()])
        meaning += f" For the run at this time in {site}: manage.py {command}"
    return answer, meaning


def _times_of(text: str, now: datetime, zone: tzinfo, site: tzinfo) -> tuple[datetime, datetime]:
    """Return the time in the job's zone and in the site's; the same one if ``text`` has a zone.

    Raises ``CommandError`` if the text isn't a time in either zone. An abbreviation, such as CET,
    may belong to only one of them.
    """
    try:
        instant = option_values.parse_past_time("TIME", text, now, zone)
    except CommandError:
        instant = option_values.parse_past_time("TIME", text, now, site)
    try:
        in_site = option_values.parse_past_time("TIME", text, now, site)
    except CommandError:
        return instant, instant
    is_same = instant.astimezone(UTC) == in_site.astimezone(UTC)
    return instant, instant if is_same else in_site


def _print(out: Output, job: Job, answer: Answer) -> None:
    zone = schedule_zone_of(job)
    occurrence, before, after = (
        time_format.format_time_in_both(at, zone) if at else ""
        for at in (answer.occurrence, answer.before, answer.after)
    )
    about = f", {occurrence}" if occurrence else ""
    verdict = str(answer.verdict)
    run = answer.run
    if run is not None and answer.verdict is WhyVerdict.NO_OCCURRENCE:
        # The run was created manually or by another job, so it has no occurrence.
        about, verdict = f", run {run.pk}", run.state
    style = BAD if answer.verdict is WhyVerdict.UNEXPLAINED else STATE_STYLES.get(verdict, "")
    shadow = " (shadow, not executed)" if answer.is_unexecuted else ""
    out.line(f"{job}{about}: {verdict.replace('_', ' ')}{shadow}", style)
    for sentence in answer.sentences:
        out.line(sentence)
    out.fields(
        [
            ("run", str(run.pk) if run else ""),
            ("before", before),
            ("after", after),
        ]
    )


def _document(job: Job, answer: Answer) -> dict[str, Any]:
    return {
        "version": 1,
        "job": {"id": job.pk, "namespace": job.namespace, "name": job.name},
        "timezone": answer.zone,
        "requested": iso(answer.instant),
        "verdict": answer.verdict,
        "sentences": list(answer.sentences),
        "occurrence": iso(answer.occurrence),
        "run": str(answer.run.pk) if answer.run else None,
        "before": iso(answer.before),
        "after": iso(answer.after),
    }
