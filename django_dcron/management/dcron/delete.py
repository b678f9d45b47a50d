"""``manage.py dcron delete``: delete jobs, and keep or erase their history."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_dcron import control
from django_dcron.db.routing import alias_for
from django_dcron.jobs import sync
from django_dcron.management.dcron import bulk_actions
from django_dcron.management.dcron.bulk_actions import ActionOutcome, Plan
from django_dcron.management.dcron.lookup import JOB_HELP, find_job
from django_dcron.management.dcron.output import Output, add_json
from django_dcron.models import Job

HELP = (
    "Delete jobs. Unfinished runs are cancelled, and finished runs stay until they are pruned. A "
    "job that code declares is created again by the next sync. On a terminal, asks for "
    "confirmation, except with --json. Exit codes: 1 if a job couldn't be deleted (the others are) "
    "or you declined; 2 if there is no such job and nothing was done."
)
EXAMPLES = """
delete nightly-report
delete shop/import-orders --erase --yes
"""
COMES_BACK = (
    "Code declares the job, so the next sync creates it again, unless you first rename the job "
    "that it replaces. If you don't need the job, remove its @cron, or pause it after that sync."
)


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("jobs", nargs="+", metavar="JOB", help=JOB_HELP)
    parser.add_argument(
        "--erase", action="store_true", help="also delete all runs, with their attempts and logs"
    )
    bulk_actions.add_confirmation(parser)
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    out, erase = Output(command, options), options["erase"]
    jobs = {job.pk: job for job in map(find_job, options["jobs"])}.values()
    plan = Plan(
        [bulk_actions.action_on_job(job) for job in jobs],
        "delete and erase" if erase else "delete",
        bulk_actions.one_by_one(partial(_delete, erase=erase)),
    )
    asks = sys.stdin.isatty() and out.is_terminal and not out.is_json
    bulk_actions.perform_plan(out, plan, options, asks=asks)


def _delete(job: Job, *, erase: bool) -> ActionOutcome:
    is_declared = sync.is_still_declared(job)
    with bulk_actions.refusing_contention(alias_for(Job)):
        control.delete(job, expected_version=job.version, erase=erase)
    text = "deleted with its history" if erase else "deleted; its finished runs stay"
    return ActionOutcome(text, {"erased": erase}, (COMES_BACK,) if is_declared else ())
