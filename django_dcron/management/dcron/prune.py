"""``manage.py dcron prune``: delete finished runs past their retention immediately.

Nodes also prune, but more slowly. This command deletes the same small batches, but works half of
the time instead of a tenth.

Exit codes:

- 0: success, or nothing to do.
- 1: some jobs were blocked, and their old runs remain for now.
- 2: the request can't be processed (unknown job or namespace, no database).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.jobs.audit.retention import prune_audit_log
from django_dcron.jobs.definition_retention import prune_definitions
from django_dcron.management.dcron.exits import negative_result, usage_error
from django_dcron.management.dcron.lookup import JOB_HELP, find_job, require_namespace
from django_dcron.management.dcron.output import WARNING, Output, add_json
from django_dcron.models import Job
from django_dcron.runs import retention
from django_dcron.utils.counts import number_of

HELP = (
    "Delete expired finished runs with their attempts and logs. DCRON_KEEP_FOR, "
    "DCRON_KEEP_FAILED_FOR, DCRON_KEEP_RUNS and the fields of a job decide which runs expire. "
    "Nodes do this automatically; this command does it now. Statistics and schedules don't "
    "change. Without jobs or a namespace, it also deletes expired entries of the audit log "
    "(DCRON_KEEP_AUDIT_FOR), and recorded definitions that no run or job needs. Exit code 1: "
    "some runs couldn't be deleted now."
)
EXAMPLES = """
prune --dry-run
prune nightly-report
prune --namespace shop --json
"""
JOBS_AT_ONCE = 500


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"{JOB_HELP} (default: all jobs)")
    parser.add_argument(
        "--namespace", default="", help="only the jobs of this namespace (default: all)"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="show the number of expired runs; delete nothing"
    )
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    if options["jobs"] and options["namespace"]:
        raise usage_error("Job names can't be combined with --namespace.")
    require_namespace(options["namespace"], with_deleted=True)
    # Resolve all names before anything is deleted.
    named = [find_job(text, with_deleted=True) for text in options["jobs"]]
    out, dry_run = Output(command, options), options["dry_run"]
    done: list[dict[str, Any]] = []
    for job in named or _candidates(options["namespace"]):
        number, problem = _prune(job, dry_run)
        if number or problem:
            done.append(
                {"namespace": job.namespace, "name": job.name, "runs": number, "problem": problem}
            )
            if not out.is_json:
                _print(out, job, number, problem)
    total = sum(each["runs"] for each in done)
    entries = definitions = 0
    if not named and not options["namespace"]:
        using = alias_for(Job)
        entries = _delete_all(prune_audit_log(lambda: database_now(using), dry_run=dry_run))
        definitions = _delete_all(prune_definitions(dry_run=dry_run))
    if out.is_json:
        document = {"version": 1, "dry_run": dry_run, "runs": total, "jobs": done}
        out.json(document | {"audit_entries": entries, "definitions": definitions})
    else:
        verb = "would be deleted" if dry_run else "deleted"
        out.line(f"{number_of(total, 'run')} {verb}.")
        if entries:
            out.line(f"{number_of(entries, 'audit entry', 'audit entries')} {verb}.")
        if definitions:
            out.line(f"{number_of(definitions, 'definition')} {verb}.")
    if left := sum(bool(each["problem"]) for each in done):
        raise negative_result(
            f"Some runs of {number_of(left, 'job')} couldn't be deleted. Try again later."
        )


def _candidates(namespace: str) -> Iterator[Job]:
    using = alias_for(Job)
    jobs = Job.with_deleted.using(using).order_by("pk")
    if namespace:
        jobs = jobs.filter(namespace=namespace)
    last = 0
    while batch := list(jobs.filter(pk__gt=last).values_list("pk", flat=True)[:JOBS_AT_ONCE]):
        last = batch[-1]
        found = retention.candidates(jobs.filter(pk__in=batch), database_now(using))
        yield from jobs.filter(pk__in=found)


def _prune(job: Job, dry_run: bool) -> tuple[int, str]:
    """Return the number of deleted runs, and what blocked the deletion of more."""
    using, number = alias_for(Job), 0
    begun = time.monotonic()
    try:
        for deleted in retention.prune_runs(job.pk, lambda: database_now(using), dry_run=dry_run):
            number += deleted
            if deleted and not dry_run:
                time.sleep(time.monotonic() - begun)
            begun = time.monotonic()
    except retention.DeletionBlocked as error:
        return number, str(error)
    return number, ""


def _delete_all(batches: Iterator[int]) -> int:
    """Delete batch by batch. Rest after each one for as long as it took. Return the row count."""
    number, begun = 0, time.monotonic()
    for deleted in batches:
        number += deleted
        if deleted:
            time.sleep(time.monotonic() - begun)
        begun = time.monotonic()
    return number


def _print(out: Output, job: Job, number: int, problem: str) -> None:
    out.line(f"{job}: {number_of(number, 'run')}")
    if problem:
        out.line(f"{job}: some runs couldn't be deleted: {problem}", WARNING)
