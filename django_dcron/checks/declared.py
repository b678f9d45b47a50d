"""Check the jobs that code declares: chains, arguments, and whether their modules are imported."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from django.apps import AppConfig, apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register

from django_dcron import targets
from django_dcron.checks.database import has_current_tables
from django_dcron.checks.reporting import (
    is_check_command,
    node_starts,
    with_docs_link,
    without_secrets,
)
from django_dcron.exceptions import InvalidArguments
from django_dcron.policies.chains import find_cycle
from django_dcron.policies.job_labels import JobKey, label_of, split_label
from django_dcron.targets import Declaration, celery_tasks, functions
from django_dcron.targets.base import Target
from django_dcron.utils.suggestions import did_you_mean


@register(Tags.compatibility)
def check_declarations(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **options: Any
) -> list[CheckMessage]:
    """Check ``after`` and the arguments of the jobs, and whether a ``cron.py`` is never imported.

    The check imports the task modules, which may declare further jobs, only in the command
    ``check`` and where a node starts. Otherwise, every command would wait for the import, and a
    module that can't be imported yet would affect ``migrate``.
    """
    is_thorough = node_starts() or is_check_command()
    found: list[CheckMessage] = []
    if is_thorough:
        found += _not_imported(targets.discovery_problem())
        if not _reads_database():  # otherwise, ``check_declarations_in_database`` checks the names
            found += _unknown()
    tasks = celery_tasks.known_tasks(finalize=is_thorough)
    found += [
        *_cycles(),
        *modules_not_installed(),
        *_wrong_arguments(tasks),
        *_functions_of_tasks(tasks),
    ]
    return [*map(with_docs_link, found)]


@register(Tags.database)
def check_declarations_in_database(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **options: Any
) -> list[CheckMessage]:
    """Check the declared jobs as ``dcron sync --check`` does, including the names in ``after``.

    Runs only in the command ``check --database``. ``migrate`` and ``test`` must neither import task
    modules nor fail because a job that only production has is missing in their database.
    """
    from django_dcron.db.routing import alias_for
    from django_dcron.models import Job

    if not databases or not is_check_command():
        return []
    targets.discovery_problem()  # first, as it imports task modules, which declare jobs
    using = alias_for(Job)
    if using not in databases:
        found = [*_unknown()]
    elif not has_current_tables(using):
        found = []  # I001 says that migrations are pending
    elif targets.declarations():
        tasks = celery_tasks.known_tasks(finalize=True)
        found = [*_refused(tasks)]
    else:
        found = []
    return [*map(with_docs_link, map(without_secrets, found))]


def _reads_database() -> bool:
    """Return whether the command is ``check --database`` without ``--tag``.

    Since Django 6.1, ``databases`` also has values without that option.
    """
    if not is_check_command():
        return False
    options = [word.partition("=")[0] for word in sys.argv[2:] if word.startswith("-")]
    # Abbreviations are allowed, if they are unambiguous.
    by_tag = any(option.startswith("-t") or option in ("--ta", "--tag") for option in options)
    return not by_tag and any(
        option.startswith("--da") and "--database".startswith(option) for option in options
    )


def _not_imported(problem: str) -> Iterator[CheckMessage]:
    if problem:
        yield Warning(
            f"Some task modules can't be imported, so their jobs aren't checked: {problem}",
            hint="Correct the error. dcron sync disables no jobs until then.",
            id="django_dcron.W026",
        )


def _refused(tasks: Mapping[str, Any]) -> Iterator[CheckMessage]:
    """Report the jobs that sync refuses, except those that W021 reports."""
    from django_dcron.jobs import sync

    reported = {declaration.key for declaration, _ in _rejected_arguments(tasks)}
    declared = {declaration.key for declaration in targets.declarations()}
    for change in sync.plan():
        if change.is_problem and change.key in declared - reported:
            unknown = change.names_unknown_job
            wrong = "job that it waits for" if change.waits_for_refused_job else "declaration"
            yield (Error if unknown else Warning)(
                f"@cron job {change.job}: dcron sync refuses it: {'; '.join(change.details)}",
                hint=f"Correct the {wrong}. Until then, the job isn't created or updated.",
                id="django_dcron.E013" if unknown else "django_dcron.W027",
            )


def _unknown() -> Iterator[CheckMessage]:
    for declaration, label in _unknown_names():
        near = did_you_mean(label, {*_names()} - {str(declaration)})
        yield Warning(
            f"@cron job {declaration}: after names {label!r}, which no code declares.{near}",
            hint="Correct the name. Names outside the namespace default need a prefix, as in "
            '"shop/import". If the job exists only in the database, this isn\'t a mistake: run '
            "check --database default to find out.",
            id="django_dcron.W018",
        )


def _wrong_arguments(tasks: Mapping[str, Any]) -> Iterator[CheckMessage]:
    """Report functions and Celery tasks that don't accept the arguments of their job."""
    for declaration, problem in _rejected_arguments(tasks):
        yield Warning(
            f"@cron job {declaration}: {problem}",
            hint="Correct the args and kwargs of @cron, or give a required parameter a "
            "default. dcron sync refuses the job until then.",
            id="django_dcron.W021",
        )


def _rejected_arguments(tasks: Mapping[str, Any]) -> Iterator[tuple[Declaration, str]]:
    """Yield the jobs whose function or Celery task doesn't accept their arguments, and why.

    Tasks are checked once the Celery app is finalized, as in a node.
    """
    for declaration in targets.declarations():
        key = declaration.target
        target: Target | None = functions.find(key)
        if target is None and key in tasks:
            target = celery_tasks.CeleryTarget(tasks[key])
        if target is None:
            continue
        args, kwargs = declaration.fields.get("args", []), declaration.fields.get("kwargs", {})
        try:
            target.check_arguments(list(args), dict(kwargs))
        except InvalidArguments as error:
            yield declaration, str(error)


def _functions_of_tasks(tasks: Mapping[str, Any]) -> Iterator[CheckMessage]:
    """Report ``@cron`` below ``@shared_task``: the job calls the function and not the task."""
    by_function = celery_tasks.tasks_by_function(tasks.values())
    for declaration in targets.declarations():
        target = functions.find(declaration.target)
        task = by_function.get(target.function) if target is not None else None
        if task is not None:
            yield Warning(
                f"@cron job {declaration}: it calls the function {declaration.target}, and not the "
                f"Celery task {task.name}, so the task's options don't apply.",
                hint="Put @cron above @shared_task.",
                id="django_dcron.W024",
            )


def modules_not_installed() -> Iterator[CheckMessage]:
    """Report a ``cron.py`` in the settings' package or beside it that belongs to no installed app.

    ``startproject`` installs no app for the settings' package.
    """
    settings_package = (getattr(settings, "SETTINGS_MODULE", None) or "").partition(".")[0]
    path = _package_path(settings_package)
    if path is None:
        return
    installed = {Path(config.path) for config in apps.get_app_configs()}
    for file in [path / "cron.py", *_cron_files_beside(path)]:
        name = file.parent.name
        if file.parent in installed or f"{name}.cron" in sys.modules or not file.exists():
            continue
        yield Warning(
            f"The jobs in {name}.cron aren't found, because {name!r} isn't in INSTALLED_APPS.",
            hint=f"Add {name!r} to INSTALLED_APPS, or move cron.py to an installed app.",
            id="django_dcron.W019",
        )


def _package_path(package: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(package) if package else None
    except (ImportError, ValueError):
        return None
    # A settings module without a package has no such path.
    places = list((spec and spec.submodule_search_locations) or ())
    return Path(places[0]) if places else None


def _cron_files_beside(package: Path) -> list[Path]:
    """Return each ``cron.py`` in a package beside ``manage.py`` that imports django-dcron.

    Packages with settings are omitted, because they belong to other projects.
    """
    root = package.parent
    if not (root / "manage.py").exists():
        return []
    found = sorted(file for file in root.glob("*/cron.py") if file.parent != package)
    return [file for file in found if _is_package_of_project(file.parent) and _imports_cron(file)]


def _is_package_of_project(path: Path) -> bool:
    has_settings = (path / "settings.py").exists() or (path / "settings").exists()
    return path.name.isidentifier() and not has_settings


def _imports_cron(file: Path) -> bool:
    try:
        lines = file.read_text().splitlines()
    except (OSError, ValueError):
        return False
    return any(line.startswith(("from django_dcron", "import django_dcron")) for line in lines)


def _names() -> list[str]:
    return [str(declaration) for declaration in targets.declarations()]


def _unknown_names() -> list[tuple[Declaration, str]]:
    """Return the names in ``after`` that no code declares, each with the job that has it."""
    declared = {declaration.key for declaration in targets.declarations()}
    return [
        (declaration, label)
        for declaration in targets.declarations()
        for label in declaration.fields.get("after", ())
        if split_label(label) not in declared
    ]


def _cycles() -> Iterator[CheckMessage]:
    before = {
        JobKey(*declaration.key): [*map(split_label, declaration.fields.get("after", ()))]
        for declaration in targets.declarations()
    }
    reported: set[JobKey] = set()
    for key in before:
        if key not in reported and (way := find_cycle(before, key)):
            reported.update(way)
            path = " → ".join(label_of(*each) for each in way)
            yield Error(
                f"@cron job {label_of(*key)}: after={{{label_of(*way[-2])!r}: ...}} closes a "
                f"cycle, so the jobs would start each other endlessly: {path}.",
                hint="Remove one of these names from after.",
                id="django_dcron.E012",
            )
