"""``manage.py dcron run``: a job now, and what becomes of it."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_dcron import control
from django_dcron.domain.lifecycle import State
from django_dcron.exceptions import DcronError, InvalidArguments
from django_dcron.management.dcron import times
from django_dcron.management.dcron.exits import cannot, no
from django_dcron.management.dcron.finding import JOB_HELP, find_job
from django_dcron.management.dcron.following import follow
from django_dcron.management.dcron.history import run_document
from django_dcron.management.dcron.output import GOOD, Output, add_json
from django_dcron.models import Run

HELP = (
    "Run a job now, paused or not, and wait for its end; its log and progress are shown as they grow. Ctrl-C ends the waiting, "
    "not the run. Exit codes: 0 it has succeeded (with --no-wait: it was made); 1 it ended otherwise, or had not ended when the "
    "waiting did; 2 it cannot be run: nothing was made."
)
EXAMPLES = """
run nightly-report
run import-orders --kwargs '{"since": "2026-11-01"}' --timeout 10m
run import-orders --no-wait --idempotency-key deploy-4711
"""


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("job", metavar="JOB", help=JOB_HELP)
    parser.add_argument(
        "--args", dest="job_args", metavar="JSON", help="a list, instead of the job's own arguments"
    )
    parser.add_argument(
        "--kwargs",
        dest="job_kwargs",
        metavar="JSON",
        help="an object, instead of the job's own keyword arguments",
    )
    parser.add_argument(
        "--idempotency-key",
        metavar="KEY",
        help="the run made with this key before, if there is one, is the run",
    )
    waiting = parser.add_mutually_exclusive_group()
    waiting.add_argument("--no-wait", action="store_true", help="do not wait for its end")
    waiting.add_argument(
        "--timeout", metavar="DURATION", help="how long to wait at most, such as 10m (for ever)"
    )
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    output = Output(command, options)
    timeout = times.duration("--timeout", options["timeout"]) if options["timeout"] else None
    made = _trigger(options)
    ended = None
    try:
        if not output.is_json:
            output.line(f"{made.job}: run {made.pk}")
            output.flush()
        if not options["no_wait"]:
            ended = follow(output, made, timeout.total_seconds() if timeout is not None else None)
    except KeyboardInterrupt:
        made.refresh_from_db()
    if output.is_json:
        _write(output, ended or made)
    if options["no_wait"]:
        return
    if ended is None:
        raise no(f"Waits no longer; the run goes on. manage.py dcron cancel {made.pk} ends it.")
    if ended.state != State.SUCCEEDED:
        said = f"{ended.job} {ended.state}{f': {ended.reason}' if ended.reason else ''}"
        stop = "" if said.endswith((".", "?", "!")) else "."
        raise no(f"{said}{stop} More: manage.py dcron history {ended.pk}")
    if not output.is_json:
        output.line(f"{ended.job} succeeded", GOOD)


def _trigger(options: dict[str, Any]) -> Run:
    job = find_job(options["job"])
    args = _json("--args", options["job_args"], list, "a JSON list, such as [1, 2]")
    kwargs = _json("--kwargs", options["job_kwargs"], dict, 'a JSON object, such as {"city": "Berlin"}')
    try:
        return control.trigger(job, args=args, kwargs=kwargs, idempotency_key=options["idempotency_key"])
    except InvalidArguments as error:
        raise cannot(f"--{error.field}: {error}") from error
    except (DcronError, ValueError) as error:
        raise cannot(str(error)) from error


def _json(option: str, text: str | None, kind: type, allowed: str) -> Any:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, kind):
        raise cannot(f"{option} {text!r:.200} cannot be read (allowed: {allowed}).")
    return value


def _write(output: Output, run: Run) -> None:
    output.json({"version": 1, "run": run_document(run)})
