"""``manage.py dcron why``: what became of one occurrence. Exit codes: 0; 1 nothing explains it; 2 it cannot be told."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_dcron.management.dcron import times
from django_dcron.management.dcron.exits import no
from django_dcron.management.dcron.finding import JOB_HELP, find_job
from django_dcron.management.dcron.output import BAD, STATE_STYLES, Output, add_json, iso
from django_dcron.models import Job
from django_dcron.models.database import alias_for, database_now
from django_dcron.observability import wording
from django_dcron.observability.why.explanation import Answer, explain
from django_dcron.observability.why.inquiry import zone_of
from django_dcron.observability.why.verdicts import Verdict

HELP = (
    "Say why a job ran at a time, or did not, from what is on record. TIME is in the job's own time zone unless it has an offset; "
    "a whole minute means that minute, any other time that second. Exit code 1: nothing explains it."
)
EXAMPLES = """
why nightly-report 2026-12-01T03:30
why shop/import-orders 2026-12-01T08:05:00Z
why nightly-report 6h --json
"""


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("job", metavar="JOB", help=JOB_HELP)
    parser.add_argument("time", metavar="TIME", help="such as 2026-12-01T03:30; or how long ago: 30m, 6h, 2d")
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    out, job = Output(command, options), find_job(options["job"])
    asked = times.instant("TIME", options["time"], database_now(alias_for(Job)), zone_of(job))
    answer = explain(job, asked)
    if out.is_json:
        out.json(_document(job, answer))
    else:
        _print(out, job, answer)
    if answer.verdict is Verdict.UNEXPLAINED:
        raise no("Nothing on record explains it.")


def _print(out: Output, job: Job, answer: Answer) -> None:
    zone = zone_of(job)
    about = f", {wording.moment(answer.occurrence, zone)}" if answer.occurrence else ""
    style = BAD if answer.verdict is Verdict.UNEXPLAINED else STATE_STYLES.get(answer.verdict, "")
    out.line(f"{job}{about}: {answer.verdict.replace('_', ' ')}", style)
    for sentence in answer.sentences:
        out.line(sentence)
    out.fields(
        [
            ("run", str(answer.run.pk) if answer.run else ""),
            ("before", wording.moment(answer.before, zone) if answer.before else ""),
            ("after", wording.moment(answer.after, zone) if answer.after else ""),
        ]
    )


def _document(job: Job, answer: Answer) -> dict[str, Any]:
    return {
        "version": 1,
        "job": {"id": job.pk, "namespace": job.namespace, "name": job.name},
        "timezone": answer.zone,
        "verdict": answer.verdict,
        "sentences": list(answer.sentences),
        "occurrence": iso(answer.occurrence),
        "run": str(answer.run.pk) if answer.run else None,
        "before": iso(answer.before),
        "after": iso(answer.after),
    }
