"""``manage.py dcron handover``: switch between another scheduler and the jobs imported from it.

Exit codes:

- 0: success. Entries that can't be imported may exist, as long as no job waits for them.
- 1: an imported job can't take over, or can't be handed back, or no job would run here, or the
  source would run entries whose jobs were paused or deleted here, or have ended.
- 2: the source can't be read, or with ``--back``, it can't continue.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol, cast

from django.core.management.base import BaseCommand, CommandParser

from django_dcron.conf import settings
from django_dcron.contrib.importers import celery_config
from django_dcron.contrib.importers.comparison import shadows_left
from django_dcron.contrib.importers.entry_plans import PROBLEMS, working_job
from django_dcron.contrib.importers.handback import (
    HANDBACK_SOURCES,
    Handback,
    HandbackPlan,
    deleted_since,
    hand_back_all,
    plan_handback,
)
from django_dcron.contrib.importers.origins import store_left_to_source
from django_dcron.contrib.importers.source_contents import SourceProblem
from django_dcron.contrib.importers.sources import (
    OPTIONS_OF_SOURCES,
    SCHEDULERS,
    did_you_mean_scheduler,
    process_name,
)
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.cluster import how_to_start_node
from django_dcron.management.dcron.exits import negative_result, usage_error
from django_dcron.management.dcron.handback_output import show_handback, show_handback_result
from django_dcron.management.dcron.import_texts import (
    does_work,
    refused_texts,
    resume_texts,
    stay_paused,
)
from django_dcron.management.dcron.importing import (
    ImportResult,
    add_source_options,
    import_entries,
    read_source,
)
from django_dcron.management.dcron.output import BAD, GOOD, WARNING, Output, add_json
from django_dcron.management.dcron.progress_bar import ProgressLines
from django_dcron.models import Job, Node
from django_dcron.utils.counts import number_of
from django_dcron.utils.docs_links import with_link

HELP = (
    "Take over the work of another scheduler that was just stopped, or hand it back, without "
    "missed or repeated runs. Without --back, the command imports the jobs again, and continues "
    "each job after its last run in the source. --back pauses the jobs and has the source continue "
    "after their last occurrence. "
    "Shows what would be done; --apply does it."
)
EXAMPLES = """
handover django-celery-beat
handover django-celery-beat --apply
handover django-celery-beat --back --apply
"""


class SupportsRunningCheck(Protocol):
    def why_running(self) -> str: ...


DETECT_RUNNING = {
    name: cast("SupportsRunningCheck", source)
    for name, source in SCHEDULERS.items()
    if hasattr(source, "why_running")
}
"""The sources that can detect that their scheduler still runs."""
FILES_HAVE_NO_HANDOVER = with_link(
    "Crontabs and exports have no handover. To switch from a crontab, import it again with --apply "
    "and the same options, except --shadow and --disabled. Only then remove its lines, at once.",
    "how-to/migrate-sources.md#a-crontab",
)


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "source",
        metavar="SOURCE",
        type=_parse_scheduler,
        help=f"the other scheduler: {', '.join(SCHEDULERS)}",
    )
    parser.add_argument(
        "--back",
        action="store_true",
        help=f"hand the work back to the source ({', '.join(HANDBACK_SOURCES)})",
    )
    parser.add_argument("--apply", action="store_true", help="write the changes")
    add_source_options(parser)
    add_json(parser)


def _parse_scheduler(name: str) -> str:
    if name in SCHEDULERS:
        return name
    near = did_you_mean_scheduler(name)
    may_be_file = not near or "/" in name or "." in name
    raise ArgumentTypeError(
        f"invalid choice: {name!r}.{near} Choose from {', '.join(SCHEDULERS)}."
        f"{f' {FILES_HAVE_NO_HANDOVER}' if may_be_file else ''}"
    )


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    if options["back"]:
        _hand_back(Output(command, options), options)
        return
    out = Output(command, options)
    _show_preconditions(out, options)
    defaults: dict[str, Any] = {
        "format": None,
        "disabled": False,
        "atomic": False,
        "shadow": False,
        "report": False,
        "overwrite": [],
        "restore": [],
    }
    options = {**defaults, **options, "take_over": True}
    result = import_entries(out, options, read_source(options))
    if options["apply"]:
        store_left_to_source(options["source"], ())
        if not out.is_json and _doctor_detects_runs(options):
            scheduler = process_name(options["source"])
            check = f"check with manage.py dcron doctor that {scheduler} runs no jobs"
            out.line(f"In five minutes, {check}.")
        _show_takeover_result(out, options["source"], result)
    else:
        _show_preview_result(out, result)


def _show_preview_result(out: Output, result: ImportResult) -> None:
    """Show whether the handover would be complete. Raises ``CommandError`` if it wouldn't be."""
    above = "" if out.is_json else "; see above"
    if left := _not_taken_over(result):
        number = number_of(left, "imported job")
        raise negative_result(f"The handover would be incomplete: {number} can't take over{above}.")
    if not _running(result):
        if result.problems:
            raise negative_result(f"No job would run here: no entry can be imported{above}.")
        if paused := _paused_here(result):
            raise negative_result(f"No job would run here: {stay_paused(paused)}{above}.")
    if not out.is_json:
        _show_unscheduled(out, result, "would run")


def _running(result: ImportResult) -> int:
    """Return the number of entries with a job that runs here after the handover."""
    return sum(does_work(working_job(plan)) for plan in result.plans)


def _show_unscheduled(out: Output, result: ImportResult, run: str) -> None:
    """Show how many entries can't be imported, except those that no scheduler runs."""
    refused = [plan for plan in result.needed_plans if plan.outcome in PROBLEMS]
    scheduled = sum(does_work(working_job(plan)) for plan in refused)
    for text in refused_texts(len(refused) - scheduled, scheduled, run):
        out.line(f"! {text}; see above.", WARNING)


def _show_takeover_result(out: Output, source: str, result: ImportResult) -> None:
    """Show the result. Raises ``CommandError`` if imported jobs aren't enabled.

    Entries that could never be imported don't keep the handover of the others from success. If all
    jobs stay paused, neither scheduler runs anything.
    """
    running = _running(result)
    here = f"{number_of(running, 'job runs', 'jobs run')} here"
    above = "" if out.is_json else "; see above"
    left = _not_taken_over(result)
    paused = _paused_here(result)
    if paused and not out.is_json:
        how = "; ".join(resume_texts(source, paused))
        out.line(f"! {stay_paused(paused)}, as before. {how}", WARNING)
    if left or (result.problems and not running):
        texts = [f"{number_of(left, 'imported job')} can't take over"] if left else []
        if result.problems:
            refused = number_of(result.problems, "entry", "entries")
            texts.append(f"{refused} can't be imported")
        raise negative_result(f"The handover is incomplete: {here}. {', and '.join(texts)}{above}.")
    if paused and not running:
        raise negative_result(f"No job runs now: {stay_paused(paused)}{above}.")
    if out.is_json:
        return
    _show_unscheduled(out, result, "runs")
    if not running or Node.objects.live(settings.LEASE).exists():
        out.line(f"The handover is complete: {here}.", GOOD)
    else:
        text = f"The handover is complete: {here} once a node is running. {how_to_start_node()}"
        out.line(text, WARNING)


def _paused_here(result: ImportResult) -> list[str]:
    """Return the jobs that stay paused although their entries are enabled in the source."""
    return [str(plan) for plan in result.plans if plan.kept.get("enabled", (True,))[0] is False]


def _not_taken_over(result: ImportResult) -> int:
    """Return the number of shadows that stay shadows, and of jobs that problems keep paused."""
    blocked = {
        plan.existing.pk
        for plan in result.needed_plans
        if plan.outcome in PROBLEMS and plan.existing and plan.existing.awaits_handover
    }
    return len(blocked | {job.pk for job in shadows_left(result.needed_plans)})


def _show_preconditions(out: Output, options: dict[str, Any]) -> None:
    scheduler = process_name(options["source"])
    if out.is_json:
        _warn_if_running(out, options["source"], scheduler)
        return
    out.line(f"{scheduler} must be stopped. Otherwise, both schedulers run the jobs.", WARNING)
    _warn_if_running(out, options["source"], scheduler)
    if not Node.objects.live(settings.LEASE).exists():
        text = "! No node is running. One should run before the handover."
        out.line(f"{text} {how_to_start_node()}", WARNING)


def _doctor_detects_runs(options: dict[str, Any]) -> bool:
    """Return whether ``dcron doctor`` can detect that the other scheduler still runs jobs."""
    source = options["source"]
    if source == celery_config.SOURCE:
        return True
    if options["app"]:  # the doctor reads only the runs of the Django app
        return False
    with suppress(SourceProblem):
        SCHEDULERS[source].runs_since(database_now(alias_for(Job)))
        return True
    return False


def _warn_if_running(out: Output, source: str, scheduler: str) -> None:
    """Warn that the scheduler may still run, with ``--json`` on standard error."""
    if reason := _why_running(source):
        warning = f"! {scheduler} may still be running: {reason}"
        if out.is_json:
            out.progress(warning)
        else:
            out.line(warning, BAD)


def _why_running(source: str) -> str:
    if source not in DETECT_RUNNING:
        return ""
    try:
        return DETECT_RUNNING[source].why_running()
    except SourceProblem as error:
        raise usage_error(str(error)) from error


def _hand_back(out: Output, options: dict[str, Any]) -> None:
    source = options["source"]
    _check_can_hand_back(options)
    _warn_if_running(out, source, source)
    plan = _handback_plan(source)
    done: list[Handback] = []
    progress = ProgressLines(out, "handover", len(plan.handbacks))

    def show(batch: Sequence[Handback]) -> None:
        done.extend(batch)
        if not out.is_json:
            for each in batch:
                show_handback(out, each, applied=options["apply"])
            out.flush()
        progress.show(len(done))

    if options["apply"]:
        store_left_to_source(source, plan.deleted_here)
        hand_back_all(plan.handbacks, HANDBACK_SOURCES[source], show)
        if deleted := deleted_since(plan, source):
            # A deletion before the job's own handback stored that its work is done here.
            plan = _handback_plan(source)
            store_left_to_source(source, plan.deleted_here)
            done = [each for each in done if not (each.error and each.job.pk in deleted)]
    else:
        show(plan.handbacks)
    show_handback_result(out, source, done, plan, applied=options["apply"])


def _handback_plan(source: str) -> HandbackPlan:
    try:
        return plan_handback(source)
    except SourceProblem as error:
        raise usage_error(str(error)) from error


def _check_can_hand_back(options: dict[str, Any]) -> None:
    source = options["source"]
    for name in (*OPTIONS_OF_SOURCES, "namespace"):
        if options[name]:
            raise usage_error(f"--{name} can't be combined with --back.")
    if source not in HANDBACK_SOURCES:
        raise usage_error(
            f"--back isn't available for {source}, because it stores no last run that the "
            f"command could set (available for: {', '.join(HANDBACK_SOURCES)}). Instead, pause the "
            f"imported jobs here (manage.py dcron pause --source {source} --yes --reason 'back "
            f"to {process_name(source)}'), {_how_to_start(source)}"
        )


def _how_to_start(source: str) -> str:
    """Return how to start a scheduler whose last runs can't be set."""
    if source == celery_config.SOURCE:
        return (
            "delete beat's schedule files (celerybeat-schedule*), and start beat. With these "
            "files, beat immediately sends everything that was due while it was stopped, although "
            "django-dcron ran it."
        )
    return (
        f"and start {process_name(source)}. It may then run everything that was due while it was "
        "stopped, although django-dcron ran it."
    )
