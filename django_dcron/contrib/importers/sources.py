"""The sources of imports, by their names on the command line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from django.conf import settings

from django_dcron.contrib.importers import (
    apscheduler,
    celery_beat,
    celery_config,
    crontab,
    django_cron,
    django_crontab,
    django_q,
    export,
    huey,
    procrastinate,
    redbeat,
    tasks_scheduler,
)
from django_dcron.contrib.importers.crontab import ZoneOrigin
from django_dcron.contrib.importers.origins import imported_zone
from django_dcron.contrib.importers.source_contents import (
    CRONTAB,
    SourceContents,
    SourceProblem,
    SourceRuns,
)
from django_dcron.jobs.portable import DocumentSyntax
from django_dcron.schedules.zones import check_zone
from django_dcron.utils.docs_links import with_link
from django_dcron.utils.suggestions import did_you_mean


class Scheduler(Protocol):
    @property
    def read(self) -> Callable[..., SourceContents]:
        """Read all entries, with the current time and the options that ``OPTIONS`` names."""

    def runs_since(self, since: datetime) -> SourceRuns: ...


SCHEDULERS: Mapping[str, Scheduler] = {
    "django-celery-beat": celery_beat,
    "celery": celery_config,
    "redbeat": redbeat,
    "django-q2": django_q,
    "django-apscheduler": apscheduler,
    "huey": huey,
    "procrastinate": procrastinate,
    "django-tasks-scheduler": tasks_scheduler,
    "django-crontab": django_crontab,
    "django-cron": django_cron,
}
OPTIONS: Mapping[str, frozenset[str]] = {
    "django-crontab": frozenset({"timezone"}),
    "huey": frozenset({"app"}),
    "procrastinate": frozenset({"app"}),
}
"""The options of the command that a scheduler's ``read`` accepts."""
OPTIONS_OF_SOURCES = frozenset().union(*OPTIONS.values())
FILES_OF_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "app": (),
    "format": ("files",),
    "timezone": ("crontab files",),
}
"""The kinds of files that each option can be used with, for an error message."""
STANDARD_INPUT = "-"
WITHOUT_SHELL_PROBLEM = "--without-shell can only be used with a crontab."


class FileFormat(StrEnum):
    JSON = "json"
    YAML = "yaml"
    CRONTAB = "crontab"
    SYSTEM_CRONTAB = "system-crontab"


SUFFIXES = {".json": FileFormat.JSON, ".yaml": FileFormat.YAML, ".yml": FileFormat.YAML}
SYSTEM_CRONTABS = (Path("/etc/crontab"), Path("/etc/cron.d"))
"""A file and a directory. Each line of these crontabs names a user."""


def read_scheduler(name: str, now: datetime, options: Mapping[str, str]) -> SourceContents:
    """Read a scheduler. Raises ``SourceProblem``. ``options``: the options by their names."""
    allowed = OPTIONS.get(name, frozenset())
    for option in sorted(options.keys() - allowed):
        schedulers = [scheduler for scheduler, accepted in OPTIONS.items() if option in accepted]
        raise SourceProblem(
            f"--{option} can't be used with {name}, only with "
            f"{', '.join([*schedulers, *FILES_OF_OPTIONS[option]])}."
        )
    return SCHEDULERS[name].read(now, **options)


def did_you_mean_scheduler(name: str) -> str:
    """Return ``did_you_mean`` of the schedulers. ``crontab`` is a file, not ``django-crontab``."""
    return "" if name.lower() == FileFormat.CRONTAB else did_you_mean(name, SCHEDULERS)


def process_name(name: str) -> str:
    """Return the name of the scheduler's process. For Celery, it's beat, not a worker."""
    return "beat" if name == celery_config.SOURCE else name


def runs_in_workers(name: str) -> bool:
    """Return whether a Celery worker may run the scheduler (``celery worker -B``)."""
    return name in (celery_beat.SOURCE, celery_config.SOURCE, redbeat.SOURCE)


def storing_note(name: str) -> str:
    """Return when the scheduler stores a run, as a sentence. Empty if it does so at once."""
    if name == celery_beat.SOURCE:
        return f"{name} stores its runs every 3 minutes, so it may have run more jobs."
    if name in (django_cron.SOURCE, django_q.SOURCE):
        return f"{name} stores a run when the run ends."
    return ""


def can_hand_back(name: str) -> bool:
    """Return whether the scheduler can continue after the last runs of its jobs here."""
    return hasattr(SCHEDULERS[name], "hand_back")


def read_file(
    path: str,
    form: FileFormat | None,
    timezone: str,
    namespace: str,
    *,
    without_shell: bool = False,
) -> SourceContents:
    """Read a file. Raises ``SourceProblem`` or, for an unknown time zone, ``InvalidSchedule``.

    ``timezone``: the time zone of a crontab. Empty: that of all its jobs as last imported, or else
    ``TIME_ZONE``. ``without_shell``: see ``crontab.read``.
    """
    if timezone:
        check_zone(timezone)
    text, form = _text(path), form or file_format_of(path)
    if form in (FileFormat.JSON, FileFormat.YAML):
        if without_shell:
            raise SourceProblem(WITHOUT_SHELL_PROBLEM)
        return export.read(text, DocumentSyntax(form.value), namespace)
    location = path if path == STANDARD_INPUT else str(Path(path).absolute())
    zone, zone_origin = _zone_of_crontab(location, timezone)
    return crontab.read(
        text,
        check_zone(zone),
        system=form is FileFormat.SYSTEM_CRONTAB,
        path=location,
        zone_origin=zone_origin,
        without_shell=without_shell,
    )


def _zone_of_crontab(location: str, timezone: str) -> tuple[str, ZoneOrigin]:
    if timezone:
        return timezone, ZoneOrigin.OPTION
    if known := imported_zone(f"{CRONTAB}{location}"):
        return known, ZoneOrigin.LAST_IMPORT
    return settings.TIME_ZONE, ZoneOrigin.SETTING


def file_format_of(path: str) -> FileFormat:
    file = Path(path)
    if form := SUFFIXES.get(file.suffix.lower()):
        return form
    location = file.absolute()
    return (
        FileFormat.SYSTEM_CRONTAB
        if any(each in (location, location.parent) for each in SYSTEM_CRONTABS)
        else FileFormat.CRONTAB
    )


def _text(path: str) -> str:
    try:
        return (
            sys.stdin.read() if path == STANDARD_INPUT else Path(path).read_text(encoding="utf-8")
        )
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else f"it isn't UTF-8 ({error})"
        problem = f"{path!r} can't be read: {why}.{did_you_mean_scheduler(path)}"
        if "apscheduler" in path.lower():
            problem = with_link(f"{problem} {apscheduler.OTHER_STORES}", apscheduler.STORE_SECTION)
        raise SourceProblem(problem) from error
