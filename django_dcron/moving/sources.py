"""Where jobs can be moved from, by the name that the command line gives it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from django_dcron.moving import apscheduler, celery_beat, crontab, django_q, export, redbeat
from django_dcron.moving.found import Ran, Reading, SourceProblem
from django_dcron.sync.portable import Syntax


class Scheduler(Protocol):
    def read(self, now: datetime) -> Reading: ...
    def ran(self, since: datetime) -> Ran: ...


SCHEDULERS: Mapping[str, Scheduler] = {
    "django-celery-beat": celery_beat,
    "redbeat": redbeat,
    "django-q2": django_q,
    "django-apscheduler": apscheduler,
}
STANDARD_INPUT = "-"


class Format(StrEnum):
    JSON = "json"
    YAML = "yaml"
    CRONTAB = "crontab"
    SYSTEM_CRONTAB = "system-crontab"


SUFFIXES = {".json": Format.JSON, ".yaml": Format.YAML, ".yml": Format.YAML}
SYSTEM_CRONTABS = (Path("/etc/crontab"), Path("/etc/cron.d"))
"""A file, and a directory of such: their lines name a user."""


def read_file(path: str, form: Format | None, timezone: str, namespace: str) -> Reading:
    """``timezone``: in which the times of a crontab are meant. Raises ``SourceProblem``."""
    text, form = _text(path), form or format_of(path)
    if form in (Format.JSON, Format.YAML):
        return export.read(text, Syntax(form.value), namespace)
    return crontab.read(text, timezone, system=form is Format.SYSTEM_CRONTAB)


def format_of(path: str) -> Format:
    file = Path(path)
    if form := SUFFIXES.get(file.suffix.lower()):
        return form
    where = file.absolute()
    return (
        Format.SYSTEM_CRONTAB
        if any(each in (where, where.parent) for each in SYSTEM_CRONTABS)
        else Format.CRONTAB
    )


def _text(path: str) -> str:
    try:
        return sys.stdin.read() if path == STANDARD_INPUT else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else f"it is not UTF-8 ({error})"
        raise SourceProblem(f"{path!r} cannot be read: {why}.") from error
