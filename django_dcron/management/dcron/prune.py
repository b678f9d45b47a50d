"""``manage.py dcron prune``: delete the finished runs that are kept no longer, now. Nodes do so by themselves, and take longer.

In the same small batches as a node, but with half of the time instead of a tenth. Exit codes: 0 done, or nothing was to be
done; 1 something was in the way of some jobs, whose old runs stay for now; 2 it cannot be done (no such job, no database).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_dcron import pruning
from django_dcron.domain.counts_in_words import number_of
from django_dcron.management.dcron.exits import cannot, no
from django_dcron.management.dcron.finding import JOB_HELP, find_job
from django_dcron.management.dcron.output import ODD, Output, add_json
from django_dcron.models import Job
from django_dcron.models.database import alias_for, database_now

HELP = (
    "Delete the finished runs that are kept no longer, with their attempts and logs: by DCRON_KEEP_FOR, DCRON_KEEP_FAILED_FOR and "
    "DCRON_KEEP_RUNS, or what a job says instead. Nodes do so by themselves; this does it at once. Counters and schedules are "
    "not touched. Exit code 1: something was in the way, and some old runs stay for now."
)
EXAMPLES = """
prune --dry-run
prune nightly-report
prune --namespace shop --json
"""
JOBS_AT_ONCE = 500


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"{JOB_HELP}; none: all jobs")
    parser.add_argument("--namespace", default="", help="the jobs of this namespace only (all)")
    parser.add_argument("--dry-run", action="store_true", help="delete nothing; show how many it would be")
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    if options["jobs"] and options["namespace"]:
        raise cannot("Name jobs or a --namespace, not both.")
    named = [find_job(text) for text in options["jobs"]]  # all of them before anything is deleted
    out, dry_run = Output(command, options), options["dry_run"]
    done: list[dict[str, Any]] = []
    for job in named or _candidates(options["namespace"]):
        number, problem = _prune(job, dry_run)
        if number or problem:
            done.append({"namespace": job.namespace, "name": job.name, "runs": number, "problem": problem})
            if not out.is_json:
                _print(out, job, number, problem)
    total = sum(each["runs"] for each in done)
    if out.is_json:
        out.json({"version": 1, "dry_run": dry_run, "runs": total, "jobs": done})
    else:
        out.line(f"{number_of(total, 'run')} {'would be deleted' if dry_run else 'deleted'}.")
    if left := sum(bool(each["problem"]) for each in done):
        raise no(f"Something was in the way of {number_of(left, 'job')}; try again later.")


def _candidates(namespace: str) -> Iterator[Job]:
    using = alias_for(Job)
    jobs = Job.objects.using(using).order_by("pk")
    if namespace:
        jobs = jobs.filter(namespace=namespace)
    last = 0
    while batch := list(jobs.filter(pk__gt=last).values_list("pk", flat=True)[:JOBS_AT_ONCE]):
        last = batch[-1]
        found = pruning.candidates(jobs.filter(pk__in=batch), database_now(using))
        yield from jobs.filter(pk__in=found)


def _prune(job: Job, dry_run: bool) -> tuple[int, str]:
    """How many runs, and what was in the way of more."""
    using, number = alias_for(Job), 0
    begun = time.monotonic()
    try:
        for deleted in pruning.prune(job.pk, lambda: database_now(using), dry_run=dry_run):
            number += deleted
            if deleted and not dry_run:
                time.sleep(time.monotonic() - begun)
            begun = time.monotonic()
    except pruning.InTheWay as error:
        return number, str(error)
    return number, ""


def _print(out: Output, job: Job, number: int, problem: str) -> None:
    out.line(f"{job}: {number_of(number, 'run')}")
    if problem:
        out.line(f"{job}: more stay for now, {problem}", ODD)
