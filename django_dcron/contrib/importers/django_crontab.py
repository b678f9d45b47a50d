"""Import from django-crontab: the setting ``CRONJOBS``, which it copies to a user's crontab.

The times are in the time zone of the machine whose cron reads the crontab, and not in Django's.
"""

from __future__ import annotations

import json
import zoneinfo
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from django.conf import settings

from django_dcron.contrib.importers.crontab import check_schedule
from django_dcron.contrib.importers.missing_targets import suggest_targets
from django_dcron.contrib.importers.names import name_digest
from django_dcron.contrib.importers.origins import imported_zone
from django_dcron.contrib.importers.source_contents import (
    EntryRefused,
    SourceContents,
    SourceEntry,
    SourceProblem,
    SourceRuns,
    Warn,
    check_json,
    translate_entry,
    unexpected_error_text,
)
from django_dcron.exceptions import InvalidSchedule
from django_dcron.schedules.zones import check_zone

SOURCE = "django-crontab"
CALL_COMMAND = "django.core.management.call_command"
LOCALTIME = Path("/etc/localtime")
TIMEZONE = Path("/etc/timezone")
ZONES = "zoneinfo"
"""The directory of the files that ``LOCALTIME`` links to."""
CRON_FIELDS = 5


@dataclass(frozen=True, slots=True)
class CronJob:
    """An entry of the setting."""

    schedule: str
    function: str
    args: list[Any]
    kwargs: Mapping[str, Any]
    suffix: str


def read(now: datetime, timezone: str = "") -> SourceContents:
    """Read the setting. Raises ``SourceProblem`` or, for an unknown ``timezone``,
    ``InvalidSchedule``.

    ``timezone``: the zone of the machine whose cron reads the crontab. Empty: that of the jobs as
    last imported, so that a later import or the doctor compares with the same zone. If they have
    none or several: that of this machine.
    """
    setting = getattr(settings, "CRONJOBS", None)
    if not isinstance(setting, list | tuple) or not setting:
        raise SourceProblem("The setting CRONJOBS is missing or empty.")
    known = "" if timezone else imported_zone(SOURCE)
    zone = _zone(timezone, known)
    contents = SourceContents(source=SOURCE)
    times: Counter[str] = Counter()
    for number, job in enumerate(setting, 1):
        contents.entries.append(_entry_of(job, f"CRONJOBS entry {number}", zone, times))
    suggest_targets(contents)
    if known:
        contents.notes.append(
            f"Times are read in {zone}, as in the last import. For another time zone, pass "
            "--timezone."
        )
    elif not timezone:
        contents.notes.append(
            f"cron uses the time zone of its machine. Times are read in {zone}, that of this "
            "machine. If cron runs on another machine, or its crontab sets CRON_TZ, pass "
            "--timezone."
        )
    for name in ("PREFIX", "SUFFIX"):
        if text := getattr(settings, f"CRONTAB_COMMAND_{name}", ""):
            contents.notes.append(
                f"CRONTAB_COMMAND_{name} ({text}) is ignored. Output is stored with each run. Set "
                "environment variables for the workers."
            )
    if module := getattr(settings, "CRONTAB_DJANGO_SETTINGS_MODULE", None):
        contents.notes.append(f"Jobs run with the settings of the workers, and not with {module}.")
    return contents


def _zone(timezone: str, known: str) -> str:
    if timezone:
        return check_zone(timezone)
    if not known:
        return machine_zone()
    try:
        return check_zone(known)
    except InvalidSchedule:
        raise SourceProblem(
            f"The jobs were imported with the time zone {known}, which this machine doesn't know. "
            "Pass --timezone."
        ) from None


def runs_since(since: datetime) -> SourceRuns:
    """Raise ``SourceProblem``: only cron's log has the runs."""
    raise SourceProblem("cron stores no runs, so there is nothing to compare.")


def machine_zone() -> str:
    """Return the time zone of this machine's clock. Raises ``SourceProblem``.

    Django sets the process's own time zone to ``TIME_ZONE``, so this reads the machine's files.
    Without ``/etc/localtime``, the C library, and therefore cron, uses UTC. ``/etc/timezone`` only
    gives the name of the zone if ``/etc/localtime`` is a copy of that zone's file. In a container,
    the two may differ, because only ``/etc/localtime`` is mounted from the host.
    """
    if not LOCALTIME.exists():
        return "UTC"
    unknown = "The time zone of this machine's clock is unknown. Pass --timezone."
    linked = str(LOCALTIME.resolve()).partition(f"/{ZONES}/")[2]
    named = ""
    if TIMEZONE.is_file():
        named = TIMEZONE.read_text(encoding="utf-8", errors="replace").strip()
    for name in filter(None, (linked, named)):
        try:
            zone = check_zone(name)
        except InvalidSchedule:
            continue
        if name == linked or LOCALTIME.read_bytes() in zone_files(zone):
            return zone
        unknown = (
            f"The time zone of this machine's clock is unknown: {TIMEZONE} names {zone}, but "
            f"{LOCALTIME} isn't a copy of that zone's file. Pass --timezone."
        )
    raise SourceProblem(unknown)


def zone_files(zone: str) -> Iterator[bytes]:
    """Yield the contents of the zone's file in each installed copy of the tz database."""
    for directory in zoneinfo.TZPATH:
        if (path := Path(directory, zone)).is_file():
            yield path.read_bytes()
    with suppress(ImportError, OSError):
        yield resources.files("tzdata").joinpath(ZONES, *zone.split("/")).read_bytes()


def _entry_of(job: Any, origin: str, zone: str, times: Counter[str]) -> SourceEntry:
    """Translate an entry. ``times``: how often each key has occurred so far.

    The key doesn't contain the schedule, so a job follows its entry when the schedule changes.
    """
    try:
        cron_job = _parse_job(job)
    except EntryRefused as error:
        return SourceEntry(origin, origin, refused=str(error))
    except (TypeError, ValueError) as error:
        return SourceEntry(origin, origin, refused=unexpected_error_text(error))
    is_command = cron_job.function == CALL_COMMAND
    name, args = (
        (cron_job.args[0], cron_job.args[1:]) if is_command else (cron_job.function, cron_job.args)
    )
    key = name
    if args or cron_job.kwargs:
        key = f"{name} {name_digest(json.dumps([args, dict(cron_job.kwargs)], sort_keys=True))}"
    times[key] += 1
    if times[key] > 1:
        key = f"{key} {times[key]}"
    target = f"command:{name}" if is_command else name
    translate = partial(_job_fields, cron_job, target, args, zone)
    return translate_entry(origin, name, translate, suffix=name_digest(key), key=key)


def _parse_job(job: Any) -> CronJob:
    """Return the parts of an entry, as django-crontab reads them. Raises ``EntryRefused``."""
    if not isinstance(job, list | tuple) or len(job) < 2:
        raise EntryRefused(f"{job!r:.80} is not a tuple of a time and a function")
    if not isinstance(job[0], str) or not isinstance(job[1], str):
        raise EntryRefused(f"{job!r:.80}: the time and the function must be strings")
    third = job[2] if len(job) > 2 else []
    has_arguments = not isinstance(third, str)
    suffix = job[4] if len(job) > 4 else ""
    args = check_json("args", _positional_arguments(third)) if has_arguments else []
    kwargs = check_json("kwargs", _keyword_arguments(job[3])) if len(job) > 3 else {}
    if job[1] == CALL_COMMAND and not (args and isinstance(args[0], str)):
        raise EntryRefused("call_command needs the name of a command as its first argument")
    return CronJob(
        " ".join(job[0].split()), job[1], args, kwargs, str(suffix if has_arguments else third)
    )


def _positional_arguments(value: Any) -> list[Any]:
    try:
        return list(value)
    except TypeError:
        raise EntryRefused(
            f"args: {value!r:.80} is not allowed (allowed: a list or tuple)"
        ) from None


def _keyword_arguments(value: Any) -> dict[str, Any]:
    try:
        return dict(value)
    except (TypeError, ValueError):
        raise EntryRefused(
            f"kwargs: {value!r:.80} is not allowed (allowed: a dictionary)"
        ) from None


def _job_fields(
    cron_job: CronJob, target: str, args: list[Any], zone: str, warn: Warn
) -> dict[str, Any]:
    """Return the fields of the job.

    Raises ``EntryRefused``, ``EntryOmitted`` or ``InvalidSchedule``.
    """
    fields = cron_job.schedule.split()
    if not cron_job.schedule.startswith("@") and len(fields) > CRON_FIELDS:
        raise EntryRefused(
            f"{cron_job.schedule!r} has {len(fields)} fields, and cron reads the text after the "
            "fifth as the command; use five fields"
        )
    check_schedule(cron_job.schedule, zone, warn)
    if cron_job.suffix:
        warn(
            f"the suffix {cron_job.suffix!r:.80} has no equivalent; the output is stored with each "
            "run"
        )
    return {
        "target": target,
        "args": args,
        "kwargs": dict(cron_job.kwargs),
        "schedule": cron_job.schedule,
        "timezone": zone,
        "enabled": True,
        "pause_reason": "",
    }
