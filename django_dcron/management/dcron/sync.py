"""``manage.py dcron sync``: write the jobs declared with ``@cron`` to the database.

Exit codes:

- 0: success, or nothing to do.
- 1: ``--check`` found differences.
- 2: a declaration is invalid or conflicts with a job created by a user. The others are written.
"""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_dcron.checks.declared import modules_not_installed
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis import cluster
from django_dcron.jobs import sync
from django_dcron.jobs.sync import ChangeKind, SyncChange
from django_dcron.management.dcron.exits import negative_result, usage_error
from django_dcron.management.dcron.output import Output
from django_dcron.management.dcron.progress_bar import ProgressBar
from django_dcron.management.dcron.run_absence import Absence, absence_text
from django_dcron.models import Job, Run
from django_dcron.policies.lifecycle import FINAL
from django_dcron.targets import celery_tasks, declarations, is_known
from django_dcron.utils.control_characters import escape_control_characters
from django_dcron.utils.counts import number_of
from django_dcron.utils.time_format import format_time_ago

HELP = (
    "Create and update the jobs declared in code with @cron, and disable those that are no longer "
    "declared. Exit codes: 1 if --check finds differences; 2 if a declaration is invalid or its "
    "job wasn't created from code."
)
EXAMPLES = """
sync
sync --dry-run
sync --check
"""
APPLIED_VERBS = {
    ChangeKind.CREATE: "created",
    ChangeKind.UPDATE: "updated",
    ChangeKind.ENABLE: "enabled",
    ChangeKind.DISABLE: "disabled",
    ChangeKind.KEEP: "kept",
}
NEED_NEW_CODE = {ChangeKind.CREATE, ChangeKind.UPDATE, ChangeKind.ENABLE}
RESTART = "Restart the workers and nodes that run older code, so that they load the new code."
NODES_LISTED = 5
STYLES = {
    ChangeKind.CREATE: "SUCCESS",
    ChangeKind.ENABLE: "SUCCESS",
    ChangeKind.DISABLE: "WARNING",
    ChangeKind.CONFLICT: "ERROR",
    ChangeKind.INVALID: "ERROR",
}


def add_arguments(parser: CommandParser) -> None:
    only = parser.add_mutually_exclusive_group()
    only.add_argument(
        "--check",
        action="store_true",
        help="exit with 1 if the database differs from the code; write nothing",
    )
    only.add_argument(
        "--dry-run", action="store_true", help="show what would be done; write nothing"
    )


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    writes = not (options["check"] or options["dry_run"])
    changes = (
        _apply(Output(command, options)) if writes else [*sync.plan(), *sync.undeclared_edits()]
    )
    for change in changes:
        _print(command, change, writes)
    differences = [change for change in changes if change.is_difference]
    problems = [change for change in changes if change.is_problem]
    for line in _rename_lines(changes, writes):
        command.stdout.write(line)
    for line in _failing_lines(changes) if writes else ():
        command.stdout.write(line)
    if writes and any(change.kind in NEED_NEW_CODE for change in changes):
        for line in _restart_lines():
            command.stdout.write(line)
    if not differences and not problems:
        command.stdout.write(_no_difference_text(changes))
    for line in _declared_lines():
        command.stdout.write(line)
    if problems:
        raise usage_error(f"{number_of(len(problems), 'problem')} to fix manually, see above.")
    if options["check"] and differences:
        raise negative_result(
            "The database differs from the code. To update it: manage.py dcron sync"
        )


def _rename_lines(changes: Sequence[SyncChange], writes: bool) -> Iterator[str]:
    """Yield how to keep the history of each job that may have been renamed in code.

    The code no longer declares such a job, and declares one new job with its target. If the
    function was renamed, too, the new job is the only one in its module, as was the old one.
    """
    disabled = {change.pk: change for change in changes if change.kind is ChangeKind.DISABLE}
    created = [change for change in changes if change.kind is ChangeKind.CREATE]
    if not (disabled and created):
        return
    rows = Job.objects.using(alias_for(Job)).in_bulk([*disabled])
    old = [(rows[pk].target, change) for pk, change in disabled.items() if pk in rows]
    new = [(str(change.values["target"]), change) for change in created]
    both = {target for target, _ in old} & {target for target, _ in new}
    for removed, added in _pairs(old, new):
        yield escape_control_characters(_rename_text(removed, added, {}, writes))
    for removed, added in _pairs(_by_module(old, both), _by_module(new, both)):
        target = {"target": added.values["target"]}
        yield escape_control_characters(_rename_text(removed, added, target, writes))


def _by_module(
    changes: list[tuple[str, SyncChange]], both: set[str]
) -> list[tuple[str, SyncChange]]:
    """Return the jobs with their modules, except those with a target in ``both``."""
    named = [
        (target.rpartition(".")[0], change) for target, change in changes if target not in both
    ]
    return [(module, change) for module, change in named if module]


def _pairs(
    old: list[tuple[str, SyncChange]], new: list[tuple[str, SyncChange]]
) -> Iterator[tuple[SyncChange, SyncChange]]:
    """Yield the old and the new job of each target or module that has exactly one of both."""
    removed: dict[str, list[SyncChange]] = defaultdict(list)
    added: dict[str, list[SyncChange]] = defaultdict(list)
    for jobs, changes in ((removed, old), (added, new)):
        for name, change in changes:
            jobs[name].append(change)
    for name in removed:
        if len(removed[name]) == len(added[name]) == 1:
            yield removed[name][0], added[name][0]


def _rename_text(old: SyncChange, new: SyncChange, target: dict[str, str], writes: bool) -> str:
    (namespace, _name), (new_namespace, new_name) = old.key, new.key
    moved = {} if namespace == new_namespace else {"namespace": new_namespace}
    values = [f"{field}={value}" for field, value in {"name": new_name, **moved, **target}.items()]
    rename = shlex.join(["manage.py", "dcron", "set", old.job, *values])
    how = f"rename it before the sync: {rename}"
    if writes:
        delete = shlex.join(["manage.py", "dcron", "delete", new.job])
        how = f"delete the new job, rename the old one, and sync again: {delete}; {rename}"
    return f"If {old.job} was renamed to {new.job}, keep its history: {how}"


def _failing_lines(changes: Sequence[SyncChange]) -> Iterator[str]:
    """Yield how to cancel the unfinished runs of each disabled job whose target is missing."""
    disabled = [change.pk for change in changes if change.kind is ChangeKind.DISABLE]
    if not disabled:
        return
    using = alias_for(Job)
    unfinished = Run.objects.using(using).exclude(state__in=FINAL).filter(job__in=disabled)
    with_runs = unfinished.order_by().values("job")
    for job in Job.objects.using(using).filter(pk__in=with_runs).order_by("namespace", "name"):
        if not is_known(job.target):
            cancel = shlex.join(["manage.py", "dcron", "cancel", str(job)])
            yield escape_control_characters(
                f"{job} has runs that will fail, because code no longer contains {job.target}. To "
                f"cancel them: {cancel}"
            )


def _restart_lines() -> Iterator[str]:
    """Yield the advice to restart, and the live nodes, which may run older code."""
    live = sorted(
        (node for node in cluster.nodes() if cluster.is_live(node)),
        key=lambda node: node.started_at,
    )
    yield RESTART if live else absence_text(Absence.NODE)
    for node in live[:NODES_LISTED]:
        started = format_time_ago(cluster.time_since(node, node.started_at))
        yield f"Node {escape_control_characters(node.name)} started {started}."
    if len(live) > NODES_LISTED:
        yield f"{number_of(len(live) - NODES_LISTED, 'more node')}: manage.py dcron nodes"


def _no_difference_text(changes: Sequence[SyncChange]) -> str:
    if changes:
        return "Apart from what is kept, the database matches the code."
    return "The database matches the code." if declarations() else sync.NOTHING_DECLARED


def _declared_lines() -> Iterator[str]:
    """Yield how many jobs each module declares, or which ``cron.py`` isn't imported.

    The module is that of the function or task, which may differ from the one that calls ``cron``.
    """
    tasks = celery_tasks.known_tasks(finalize=True)
    modules = Counter(
        getattr(tasks.get(each.target), "__module__", None) or each.target.rpartition(".")[0]
        for each in declarations()
    )
    if not modules:
        for message in modules_not_installed():
            yield f"{message.msg} {message.hint}"
        return
    (first, number), *others = modules.items()
    parts = [f"{number_of(number, 'job')} in {first}"]
    parts += [f"{number} in {name}" for name, number in others]
    yield f"Declared: {', '.join(parts)}"


def _apply(output: Output) -> list[SyncChange]:
    plan = sync.plan()
    with ProgressBar(output) as bar:
        return sync.apply(plan, bar.show if output.is_terminal else None)


def _print(command: BaseCommand, change: SyncChange, writes: bool) -> None:
    """Write one line per detail, so that each can be read and searched separately."""
    verb = (
        APPLIED_VERBS.get(change.kind, change.kind.value)
        if writes or change.kind is ChangeKind.KEEP
        else change.kind.value
    )
    style = getattr(command.style, STYLES.get(change.kind, "NOTICE"))
    job = shlex.quote(change.job)
    for detail in change.details or ("",):
        command.stdout.write(
            f"{style(verb)} {escape_control_characters(f'{job} {detail}')}".rstrip()
        )
