"""Import from RedBeat: its entries in Redis, which are read as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from django_dcron.contrib.importers import celery_entry, celery_task
from django_dcron.contrib.importers.redbeat_rules import rule_fields
from django_dcron.contrib.importers.schedule_fields import check_not_over, iso_in_site_zone
from django_dcron.contrib.importers.source_contents import (
    LAST_RUN,
    EntryOmitted,
    EntryRefused,
    SourceContents,
    SourceProblem,
    SourceRuns,
    Warn,
    translate_entry,
    unexpected_error_text,
)
from django_dcron.db.errors import in_one_line
from django_dcron.utils.batches import in_batches
from django_dcron.utils.messages import with_full_stop

SOURCE = "redbeat"
SETTING = "redbeat_redis_url"
WAS_DISABLED = "was disabled in RedBeat"
RULE = "rrule"
"""The type of a recurrence rule in a definition, and its class."""
KEYS_AT_ONCE = 500

Stored = bytes | None | Exception
"""The value of a field in Redis, or the error of reading it."""


@dataclass(frozen=True, slots=True)
class StoredField:
    """One field of an entry."""

    prefix: str
    """The prefix of all keys of RedBeat."""
    key: str
    value: Stored


def read(now: datetime) -> SourceContents:
    """Read all entries. Raises ``SourceProblem``."""
    meta_by_key = {meta.key: meta.value for meta in _read_entries("meta")}
    contents = SourceContents(
        [
            translate_entry(
                _origin(entry.key),
                entry.key.removeprefix(entry.prefix),
                partial(_job, entry.value, meta_by_key.get(entry.key), now),
                key=entry.key,
                disabled=_is_disabled(entry.value),
            )
            for entry in _read_entries("definition")
        ],
        source=SOURCE,
    )
    server, is_configured = _server()
    if not contents.entries or not is_configured:
        contents.notes.append(f"Read from {server}. To use another server, set {SETTING}.")
    return contents


def _server() -> tuple[str, bool]:
    """Return the address of RedBeat's Redis without its password, and whether a setting names it.

    By default, RedBeat uses the broker.
    """
    from redbeat import schedulers

    app = schedulers.app_or_default()
    address = schedulers.maybe_sanitize_url(str(schedulers.ensure_conf(app).redis_url))
    return str(address), bool(app.conf.get(SETTING))


def _require_server(app: Any) -> None:
    """Raise ``SourceProblem`` if no setting names RedBeat's Redis."""
    from redbeat import schedulers

    if not schedulers.ensure_conf(app).redis_url:
        raise SourceProblem(
            "RedBeat's Redis is unknown: the Celery app has no broker_url. Run the command in the "
            f"project with this app, or set {SETTING}."
        )


def runs_since(since: datetime) -> SourceRuns:
    """Return the latest run of each entry. Raises ``SourceProblem``."""
    times, unread = {}, {}
    for meta in _read_entries("meta"):
        origin = _origin(meta.key)
        try:
            at = _last_run(meta.value)
            if at and at >= since:
                times[origin] = [at]
        except EntryRefused as error:
            unread[origin] = str(error)
        except Exception as error:  # another program may have written anything there
            unread[origin] = unexpected_error_text(error)
    return SourceRuns(times, complete=False, unread=unread)


def hand_back(ran_until: Mapping[str, datetime | None]) -> set[str]:
    """Set RedBeat's last runs by key, so that it doesn't send occurrences that ran here.

    If RedBeat's last run is later, it is kept. Returns the keys of the entries that exist.
    """
    return {key for key, at in ran_until.items() if _hand_back_entry(key, at)}


def _hand_back_entry(key: str, ran_until: datetime | None) -> bool:
    from redbeat import schedulers

    app = schedulers.app_or_default()
    try:
        stored = schedulers.RedBeatSchedulerEntry.from_key(key, app=app)
    except KeyError as error:
        if error.args != (key,):
            raise
        return False
    if ran_until is not None and (stored.last_run_at is None or stored.last_run_at < ran_until):
        stored.reschedule(ran_until)
    return True


def why_running() -> str:
    """Return why beat may still run; empty if nothing indicates that.

    Beat holds a lock while it runs, and releases it when it is stopped. Raises ``SourceProblem``.
    """
    try:
        from redbeat import schedulers

        app = schedulers.app_or_default()
        _require_server(app)
        key = schedulers.ensure_conf(app).lock_key
        seconds = schedulers.get_redis(app).ttl(key) if key else -2
    except SourceProblem:
        raise
    except Exception as error:  # RedBeat is missing, or its Redis fails
        raise SourceProblem(f"RedBeat's lock can't be read: {in_one_line(error)}.") from error
    if seconds == -2:  # the key doesn't exist
        return ""
    return f"beat holds RedBeat's lock {key}; if beat was killed, the lock expires in {seconds} s"


def _last_run(meta: Stored) -> datetime | None:
    at = _decode(_json(meta, "meta")).get("last_run_at") if meta else None
    return at if isinstance(at, datetime) else None


def _origin(key: str) -> str:
    return f"key {key!r}"


def _read_entries(field: str) -> list[StoredField]:
    """Return one field of each entry. Raises ``SourceProblem``."""
    try:
        from redbeat import schedulers
    except ImportError:
        raise SourceProblem("celery-redbeat is not installed: pip install celery-redbeat") from None
    app = schedulers.app_or_default()
    _require_server(app)
    config = schedulers.ensure_conf(app)
    entries: list[StoredField] = []
    try:
        client = schedulers.get_redis(app)
        # The keys and fields aren't decoded and are read without a transaction. Otherwise, one key
        # of another type or encoding would make all others unreadable.
        keys = sorted(
            client.execute_command("ZRANGE", config.schedule_key, 0, -1, NEVER_DECODE=True)
        )
        for chunk in in_batches(keys, KEYS_AT_ONCE):
            pipe = client.pipeline(transaction=False)
            for key in chunk:
                pipe.execute_command("HGET", key, field, NEVER_DECODE=True)
            values = pipe.execute(raise_on_error=False)
            entries += [
                StoredField(config.key_prefix, key.decode(errors="backslashreplace"), value)
                for key, value in zip(chunk, values, strict=True)
            ]
    except schedulers.redis.exceptions.RedisError as error:
        raise SourceProblem(
            f"RedBeat's Redis at {_server()[0]} is unreachable: "
            f"{with_full_stop(in_one_line(error))} Set {SETTING}."
        ) from error
    except ValueError as error:
        raise SourceProblem(f"RedBeat can't use {SETTING}: {in_one_line(error)}.") from None
    return entries


def _json(stored: bytes | Exception, field: str) -> Any:
    if isinstance(stored, Exception):
        raise EntryRefused(f"the key can't be read: {in_one_line(stored)}")
    try:
        return json.loads(stored)
    except (ValueError, RecursionError) as error:
        raise EntryRefused(f"the {field} is not valid JSON: {error}") from None


def _is_disabled(definition: Stored) -> bool:
    """Return whether an entry is disabled. One that can't be read counts as enabled."""
    try:
        fields = _json(definition, "definition") if definition else None
    except EntryRefused:
        return False
    return isinstance(fields, dict) and not fields.get("enabled", True)


def _job(definition: Stored, meta: Stored, now: datetime, warn: Warn) -> dict[str, Any]:
    if not definition:
        raise EntryOmitted("the entry has no definition; RedBeat would remove it")
    fields = _json(definition, "definition")
    if not isinstance(fields, dict) or not isinstance(fields.get("task"), str):
        raise EntryRefused("the definition has no task")
    celery_entry.check_task(fields["task"])
    enabled = bool(fields.get("enabled", True))
    options = dict(fields.get("options") or {})
    options["expires"] = _decode(options.get("expires"))
    if isinstance(options["expires"], datetime) and options["expires"] <= now:
        raise EntryOmitted(f"expired at {iso_in_site_zone(options['expires'])}")
    values = {
        "target": fields["task"],
        **celery_entry.argument_fields(fields.get("args"), fields.get("kwargs")),
        "starts_at": None,
        **celery_entry.option_fields(options, warn),
        **celery_task.policy_fields(fields["task"], options, warn),
        "enabled": enabled,
        "pause_reason": "" if enabled else WAS_DISABLED,
    }
    schedule = _schedule(fields.get("schedule"))
    values |= _schedule_fields(schedule, values["ends_at"], now, warn)
    if due := celery_entry.next_due_of_entry(schedule, _last_run_or_none(meta), now):
        values.pop("starts_at")
    values |= due | {LAST_RUN: _last_run_or_none(meta)}
    check_not_over(values, now)
    return values


def _last_run_or_none(meta: Stored) -> datetime | None:
    try:
        return _last_run(meta)
    except Exception:  # ``runs_since`` reports it
        return None


def _schedule(definition: Any) -> Any:
    kind = definition.get("__type__") if isinstance(definition, dict) else None
    if kind not in ("interval", "crontab", RULE):
        raise EntryRefused(
            f"the schedule {json.dumps(definition):.80} is neither an interval, a crontab nor a "
            "rule"
        )
    if kind == RULE and definition.get("dtstart") is None:
        raise EntryRefused("the rule has no dtstart, so its times are unknown; set it")
    return _decode(definition)


def _schedule_fields(
    schedule: Any, expires_at: datetime | None, now: datetime, warn: Warn
) -> dict[str, Any]:
    """Return the fields of the schedule. A rule may have a start and an earlier end."""
    if type(schedule).__name__ != RULE:
        return dict(celery_entry.schedule_fields(schedule, warn))
    fields = rule_fields(schedule, now, warn)
    ends = filter(None, (fields["ends_at"], expires_at))
    return {**fields, "ends_at": min(ends, default=None)}


def _decode(value: Any) -> Any:
    """Decode a value as RedBeat does, to a Celery object or a time."""
    from redbeat.decoder import RedBeatJSONDecoder

    try:
        return json.loads(json.dumps(value), cls=RedBeatJSONDecoder)
    except Exception as error:  # Celery's classes may raise anything
        raise EntryRefused(
            f"RedBeat can't read {json.dumps(value):.80}: {in_one_line(error)}"
        ) from None
