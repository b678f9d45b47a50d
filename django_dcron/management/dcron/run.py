"""``manage.py dcron run``: run a job now, and show its progress and outcome; or run many jobs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import connections

from django_dcron import control
from django_dcron.db.errors import UNAVAILABLE
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis import cluster
from django_dcron.diagnosis.not_retried import why_run_not_retried
from django_dcron.diagnosis.run_history import EMPTY_LOG, attempts_of
from django_dcron.diagnosis.start_caution import (
    node_cautions,
    shadow_cautions,
    start_cautions_of_many,
    target_cautions,
)
from django_dcron.exceptions import DcronError, InvalidArguments, UnknownTarget
from django_dcron.jobs.sync import is_no_longer_declared
from django_dcron.management.dcron import bulk_actions, option_values
from django_dcron.management.dcron.bulk_actions import ActionOutcome, Plan
from django_dcron.management.dcron.exits import negative_result, usage_error
from django_dcron.management.dcron.history import run_document
from django_dcron.management.dcron.job_selection import SelectedRows, add_selection, select
from django_dcron.management.dcron.lookup import find_job
from django_dcron.management.dcron.output import (
    GOOD,
    QUIET,
    WARNING,
    Output,
    add_json,
    cautions_document,
)
from django_dcron.management.dcron.run_watch import ABSENCE_TIMEOUT, WatchResult, watch_run
from django_dcron.models import Job, Run
from django_dcron.policies.lifecycle import State
from django_dcron.utils.messages import with_full_stop

HELP = (
    "Run a job now, even if it is paused, and wait until it ends; show its log and progress. "
    "Several jobs run without waiting; a selection by pattern or option asks for confirmation. "
    "Ctrl-C stops the waiting, not the run. Without --timeout, the waiting stops if the node, "
    f"worker or broker that the run needs is missing for {ABSENCE_TIMEOUT:.0f} s. Exit codes: 0 if "
    "the run succeeded (with --no-wait: was created); 1 if it ended otherwise or the waiting "
    "stopped; 2 if it can't be run and nothing was created."
)
EXAMPLES = """
run nightly-report
run import-orders --kwargs '{"since": "2026-11-01"}' --timeout 10m
run import-orders --no-wait --idempotency-key deploy-4711
run 'shop/*' --failing --yes
"""


def add_arguments(parser: CommandParser) -> None:
    add_selection(parser)
    parser.add_argument(
        "--args",
        dest="job_args",
        metavar="JSON",
        help="JSON list that replaces the job's arguments",
    )
    parser.add_argument(
        "--kwargs",
        dest="job_kwargs",
        metavar="JSON",
        help="JSON object that replaces the job's keyword arguments",
    )
    parser.add_argument(
        "--idempotency-key",
        metavar="KEY",
        help="use the run that has this key, if there is one; it must have the same arguments",
    )
    bulk_actions.add_confirmation(parser)
    waiting = parser.add_mutually_exclusive_group()
    waiting.add_argument("--no-wait", action="store_true", help="don't wait until the run ends")
    waiting.add_argument(
        "--timeout",
        metavar="DURATION",
        help="maximum time to wait, such as 10m, even without a node or worker (default: no limit "
        "while the run can start)",
    )
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    output = Output(command, options)
    timeout = None
    if options["timeout"] is not None:
        timeout = option_values.parse_duration_option("--timeout", options["timeout"])
    selected = select(options, find_job)
    is_bulk = selected.by_criteria or len(selected.rows) > 1
    if is_bulk and timeout is not None:
        raise usage_error("--timeout needs a single job, given by its name.")
    if is_bulk or options["dry_run"]:
        _run_many(output, selected, options)
        return
    (job,) = selected.rows
    waits = not options["no_wait"]
    # A watched run shows its outcome. Only that of a shadow needs a caution.
    cautions = (
        shadow_cautions(job.target) if waits else _cautions([job], _arguments(options))[job.pk]
    )
    created = _trigger(job, options)
    watched = _show_and_watch(output, created, timeout, cautions, waits=waits)
    if output.is_json:
        _write(output, watched, cautions)
    if waits:
        _report_end(output, watched, cautions)
    else:
        _warn_if_no_node(output, [created])


def _run_many(output: Output, selected: SelectedRows[Job], options: dict[str, Any]) -> None:
    arguments = _arguments(options)
    created: list[Run] = []
    plan = Plan(
        [bulk_actions.action_on_job(job) for job in selected.rows],
        "run",
        lambda jobs: _trigger_many(jobs, arguments, created),
        bulk_actions.JOBS_AT_ONCE,
    )
    try:
        bulk_actions.perform_plan(output, plan, options, asks=selected.by_criteria)
    finally:
        _warn_if_no_node(output, created)


def _warn_if_no_node(output: Output, runs: Sequence[Run]) -> None:
    """Print to standard error that the new runs wait for a node, if none serves them.

    The first of these runs in each namespace stands for all: if a worker has it already, it needs
    no node. One warning is enough.
    """
    first = {run.job.namespace: run for run in reversed(runs)}
    with suppress(*UNAVAILABLE):  # The runs exist, which the exit code has to say.
        live = cluster.live_namespaces()
        for run in first.values():
            if cautions := node_cautions(run.job, live):
                rows = Run.objects.using(alias_for(Run))
                if rows.filter(pk=run.pk, state=State.PENDING).exists():
                    output.progress(" ".join(cautions))
                    return


def _show_and_watch(
    output: Output,
    created: Run,
    timeout: timedelta | None,
    cautions: Sequence[str],
    *,
    waits: bool,
) -> WatchResult:
    """Name the run and, with ``waits``, watch it until it ends or the user interrupts.

    The cautions about a watched run are shown at its end.
    """
    try:
        if not output.is_json:
            output.line(f"{created.job}: run {created.pk}")
            if cautions and not waits:
                output.line(f"{created.job}: {' '.join(cautions)}", WARNING)
            output.flush()
        if waits:
            seconds = None if timeout is None else timeout.total_seconds()
            return watch_run(output, created, seconds)
    except KeyboardInterrupt:
        # The interrupt may have left a query unfinished. Its connection can't send another one.
        connections[alias_for(Run)].close()
        with suppress(*UNAVAILABLE):
            created.refresh_from_db()
    return WatchResult(created)


def _report_end(output: Output, watched: WatchResult, cautions: Sequence[str]) -> None:
    """Report how the run ended. Raises ``CommandError`` unless it succeeded."""
    run = watched.run
    if not run.is_final:
        absence = f"{watched.message} " if watched.message else ""
        raise negative_result(
            f"{absence}Stopped waiting; the run is still {run.state}. To cancel it: "
            f"manage.py dcron cancel {run.pk}"
        )
    if run.state != State.SUCCEEDED:
        message = with_full_stop(f"{run.job} {run.state}{f': {run.reason}' if run.reason else ''}")
        latest = next(reversed(attempts_of(run)), None)
        if not_retried := why_run_not_retried(run, latest):
            message += f" {not_retried}"
        raise negative_result(f"{message} Details: manage.py dcron history {run.pk}")
    if output.is_json:
        return
    if cautions:
        output.line(f"{run.job}: {' '.join(cautions)}", WARNING)
        return
    if watched.has_no_output:
        output.line(str(EMPTY_LOG), QUIET)
    output.line(f"{run.job} succeeded", GOOD)


def _trigger_many(
    jobs: Sequence[Job], arguments: dict[str, Any], created: list[Run]
) -> list[ActionOutcome | Exception]:
    """Create a run of each job, and add the runs to ``created``."""
    cautions = _cautions(jobs, arguments)
    results = control.trigger_many(jobs, **arguments)
    created += [made for made in results if isinstance(made, Run)]
    return [
        made
        if isinstance(made, Exception)
        else ActionOutcome(f"run {made.pk}", {"run": str(made.pk)}, cautions[job.pk])
        for job, made in zip(jobs, results, strict=True)
    ]


def _cautions(jobs: Sequence[Job], arguments: dict[str, Any]) -> dict[int, tuple[str, ...]]:
    """Return, by primary key, what the user of a run that isn't watched should know.

    With an idempotency key, an unfinished run of the job may be the requested one.
    """
    if arguments["idempotency_key"] is not None:
        return {job.pk: target_cautions(job.target) for job in jobs}
    return start_cautions_of_many(jobs)


def _arguments(options: dict[str, Any]) -> dict[str, Any]:
    args = _json("--args", options["job_args"], list, "a JSON list, such as [1, 2]")
    kwargs = _json(
        "--kwargs", options["job_kwargs"], dict, 'a JSON object, such as {"city": "Berlin"}'
    )
    return {"args": args, "kwargs": kwargs, "idempotency_key": options["idempotency_key"]}


def _trigger(job: Job, options: dict[str, Any]) -> Run:
    arguments = _arguments(options)
    try:
        return control.trigger(job, **arguments)
    except InvalidArguments as error:
        given = [name for name in ("args", "kwargs") if options[f"job_{name}"] is not None]
        source = f"--{error.field}" if error.field in given else f"the {error.field} of the job"
        if given and error.field not in given:
            source = f"--{given[0]} with {source}"
        raise usage_error(f"{source}: {error}") from error
    except (DcronError, ValueError) as error:
        gone = ""
        if isinstance(error, UnknownTarget) and is_no_longer_declared(job):
            delete = shlex.join(["manage.py", "dcron", "delete", str(job)])
            gone = f" Code no longer declares this job. To delete it: {delete}"
        raise usage_error(f"{error}{gone}") from error


def _json(option: str, text: str | None, kind: type, allowed: str) -> Any:
    if text is None:
        return None
    try:
        value = option_values.parse_json(option, text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, kind):
        raise usage_error(f"Invalid {option} {text!r:.200} (allowed: {allowed}).")
    return value


def _write(output: Output, watched: WatchResult, cautions: Sequence[str]) -> None:
    document = {"run": run_document(watched.run), "missing": watched.absence}
    output.json({"version": 1, **document, "cautions": cautions_document(cautions)})
