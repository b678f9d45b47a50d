"""``manage.py dcron handover``: switch between another scheduler and the jobs imported from it.

Exit codes: those of ``import``. With ``--back``: 0, 1 if a job can't be handed back, or 2 if the
source can't be read or can't continue.

Invariants of ``--back``:

- A job is paused only if the source has stored the job's last run. Otherwise it stays enabled and
  continues here.
- If one job fails, the others are still handed back.
- The command can be repeated. It doesn't move the source's last run back.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Protocol, cast

from django.core.management.base import BaseCommand, CommandParser
from django.db import transaction
from django.db.models import Max

from django_dcron import control
from django_dcron.conf import settings
from django_dcron.contrib.importers.comparison import HANDED_BACK
from django_dcron.contrib.importers.origins import imported_jobs_of, match_entries
from django_dcron.contrib.importers.reading import Reading, SourceProblem
from django_dcron.contrib.importers.sources import OPTIONS_OF_SOURCES, SCHEDULERS
from django_dcron.db.contention import despite_contention
from django_dcron.db.errors import in_one_line
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.management.dcron import import_
from django_dcron.management.dcron.exits import negative_result, usage_error
from django_dcron.management.dcron.output import BAD, GOOD, WARNING, Output, add_json
from django_dcron.models import Cursor, Job, Node, Run
from django_dcron.policies.lifecycle import Trigger
from django_dcron.targets.shadow import PREFIX
from django_dcron.utils.counts import number_of

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


class ShowsLife(Protocol):
    def sign_of_life(self) -> str: ...


class Resumable(Protocol):
    def read(self, now: datetime) -> Reading: ...

    def hand_back(self, key: str, ran_until: datetime) -> bool: ...


RESUMABLE = {
    name: cast("Resumable", source)
    for name, source in SCHEDULERS.items()
    if hasattr(source, "hand_back")
}


SHOWS_LIFE = {
    name: cast("ShowsLife", source)
    for name, source in SCHEDULERS.items()
    if hasattr(source, "sign_of_life")
}
"""The sources that can say whether they still run."""


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "source",
        metavar="SOURCE",
        choices=list(SCHEDULERS),
        help=f"the other scheduler: {', '.join(SCHEDULERS)}",
    )
    parser.add_argument(
        "--back",
        action="store_true",
        help=f"hand the work back to the source ({', '.join(RESUMABLE)})",
    )
    parser.add_argument("--apply", action="store_true", help="write the changes")
    import_.add_source_options(parser)
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    if options["back"]:
        _hand_back(Output(command, options), options)
        return
    _show_preconditions(Output(command, options), options)
    import_.run(
        command,
        {
            "format": None,
            "namespace": None,
            "disabled": False,
            "atomic": False,
            "shadow": False,
            "report": False,
            "overwrite": [],
            "restore": [],
            **options,
            "take_over": True,
        },
    )


def _show_preconditions(out: Output, options: dict[str, Any]) -> None:
    if out.is_json:
        return
    out.line(
        f"{options['source']} must be stopped. Otherwise, both schedulers run the jobs.", WARNING
    )
    if sign := _sign_of_life(options["source"]):
        out.line(f"! {options['source']} may still be running: {sign}", BAD)
    if not Node.objects.live(settings.LEASE).exists():
        out.line("! No node is running. Start one before the handover: manage.py runcron", WARNING)


def _sign_of_life(source: str) -> str:
    if source not in SHOWS_LIFE:
        return ""
    try:
        return SHOWS_LIFE[source].sign_of_life()
    except SourceProblem as error:
        raise usage_error(str(error)) from error


@dataclass(frozen=True, slots=True)
class _Handback:
    """One job to hand back."""

    job: Job
    key: str | None
    """The key of its entry in the source. None if the entry is gone."""
    error: str = ""
    """Why the job can't be handed back. It stays enabled."""


def _hand_back(out: Output, options: dict[str, Any]) -> None:
    source = options["source"]
    for name in OPTIONS_OF_SOURCES:
        if options[name]:
            raise usage_error(f"--{name} can't be combined with --back.")
    if source not in RESUMABLE:
        raise usage_error(
            f"{source} can't continue after another scheduler's runs (possible: "
            f"{', '.join(RESUMABLE)}). Pause the jobs, and start it without its missed runs."
        )
    if not out.is_json and (sign := _sign_of_life(source)):
        out.line(f"! {source} may still be running: {sign}", BAD)
    try:
        planned = _plan(source)
    except SourceProblem as error:
        raise usage_error(str(error)) from error
    done = []
    for each in planned:
        done.append(_attempt(each, RESUMABLE[source]) if options["apply"] else each)
        if not out.is_json:
            _show(out, done[-1], applied=options["apply"])
            out.flush()
    failed = [each for each in done if each.error]
    returned = [each for each in done if each.key is not None and not each.error]
    if out.is_json:
        gone = [each for each in done if each.key is None]
        out.json(
            {
                "version": 1,
                "source": source,
                "applied": options["apply"],
                "jobs": [_reference(each.job) for each in returned],
                "gone": [_reference(each.job) for each in gone],
                "failed": [{**_reference(each.job), "error": each.error} for each in failed],
            }
        )
    elif not options["apply"]:
        out.line(
            f"Nothing was written. To write, use --apply. {shlex.quote(source)} must be stopped."
        )
    else:
        start = "" if failed else f" Start {source} now."
        out.line(f"{number_of(len(returned), 'job')} handed back.{start}")
    if failed:
        raise negative_result(
            f"{number_of(len(failed), 'job')} can't be handed back and "
            f"{'continues' if len(failed) == 1 else 'continue'} here. Correct or pause "
            f"{'it' if len(failed) == 1 else 'them'}, and repeat the command before you start "
            f"{source}."
        )


def _reference(job: Job) -> dict[str, str]:
    return {"namespace": job.namespace, "name": job.name}


def _show(out: Output, each: _Handback, *, applied: bool) -> None:
    if each.error:
        out.line(f"failed {each.job} {each.error}", BAD)
    elif each.key is None:
        out.line(f"! {each.job} is gone from the source, and stays as it is here", WARNING)
    else:
        out.line(f"{'paused' if applied else 'pause'} {each.job}", GOOD)


def _plan(source: str) -> list[_Handback]:
    """Return the jobs to hand back, including jobs that were already handed back.

    Raises ``SourceProblem``.
    """
    entries = RESUMABLE[source].read(database_now(alias_for(Job))).entries
    keys = {
        matched.job.pk: matched.entry.key
        for matched in match_entries(entries, "default", source)
        if matched.job
    }
    return [
        _Handback(job, keys.get(job.pk))
        for job in imported_jobs_of(source)
        if (job.enabled or job.pause_reason == HANDED_BACK) and not job.target.startswith(PREFIX)
    ]


def _attempt(each: _Handback, source: Resumable) -> _Handback:
    if each.key is None:
        return each
    try:
        using = alias_for(Job)
        hand_back = partial(_hand_back_job, each.job, each.key, source, using)
        returned = despite_contention(hand_back, using)
    except Exception as error:  # the schedule, the job's database or the source
        return replace(each, error=in_one_line(error))
    return each if returned else replace(each, key=None)


def _hand_back_job(job: Job, key: str, source: Resumable, using: str) -> bool:
    """Pause the job, and have the source continue after its last occurrence here.

    The pause is committed after the source has stored the time. Until then, the job's lock keeps
    nodes from claiming its occurrences. Returns False, and pauses nothing, if the entry is gone.
    """
    with transaction.atomic(using=using):
        before = Cursor.objects.using(using).select_for_update().filter(pk=job.pk).first()
        next_at = before.next_at if before is not None and before.enabled else None
        control.pause(job, HANDED_BACK)
        cursor = Cursor.objects.using(using).get(pk=job.pk)
        returned = source.hand_back(key, _ran_until(job, cursor, next_at, using))
        if not returned:
            transaction.set_rollback(True, using=using)
    return returned


def _ran_until(job: Job, cursor: Cursor, next_at: datetime | None, using: str) -> datetime:
    """Return the time of the last run from which the source computes the next occurrence.

    An interval counts from its last occurrence, so that it keeps its phase. ``cursor`` is that of
    the paused job. ``next_at``: the next occurrence before the pause.
    """
    interval, paused_at = job.parsed_schedule.interval, cursor.placed_at
    if (ahead := _claimed_ahead(job, paused_at, using)) is not None:
        return ahead
    if interval is None:
        return paused_at
    if cursor.previous_at is None:
        first = next_at or cursor.starts_at
        return paused_at if first is None else min(first - interval, paused_at)
    if cursor.previous_at > paused_at:  # it was claimed ahead, and the pause has withdrawn it
        return cursor.previous_at + (paused_at - cursor.previous_at) // interval * interval
    return cursor.previous_at


def _claimed_ahead(job: Job, paused_at: datetime, using: str) -> datetime | None:
    """Return the last occurrence after the pause that was dispatched and so still runs here."""
    runs = Run.objects.using(using).filter(job=job.pk, trigger=Trigger.SCHEDULE)
    later = runs.filter(scheduled_at__gt=paused_at).aggregate(at=Max("scheduled_at"))
    ahead: datetime | None = later["at"]
    return ahead
