"""RedBeat: the entries in its Redis. They are JSON, and read as such."""

from __future__ import annotations

import json
from datetime import datetime
from functools import partial
from typing import Any

from django_dcron.models.database import in_one_line
from django_dcron.moving import celery_entry
from django_dcron.moving.found import Left, Ran, Reading, Refused, SourceProblem, Warn, entry, unforeseen

WAS_DISABLED = "was disabled in RedBeat"
KEYS_AT_ONCE = 500


def read(now: datetime) -> Reading:
    """Raises ``SourceProblem``."""
    return Reading(
        [
            entry(_origin(key), key.removeprefix(prefix), partial(_job, definition, now))
            for prefix, key, definition in _stored("definition")
        ]
    )


def ran(since: datetime) -> Ran:
    """The latest run of each entry. Raises ``SourceProblem``."""
    times, unread = {}, {}
    for _prefix, key, meta in _stored("meta"):
        try:
            at = _decoded(_json(meta)).get("last_run_at") if meta else None
            if at and at >= since:
                times[_origin(key)] = [at]
        except Refused as error:
            unread[_origin(key)] = str(error)
        except Exception as error:  # of what somebody else has written there
            unread[_origin(key)] = unforeseen(error)
    return Ran(times, complete=False, unread=unread)


def _origin(key: str) -> str:
    return f"key {key!r}"


Stored = bytes | None | Exception
"""A field in Redis, or why this one cannot be had."""


def _stored(field: str) -> list[tuple[str, str, Stored]]:
    """The prefix of all keys, each key, and one field of what is there."""
    try:
        from redbeat import schedulers
    except ImportError:
        raise SourceProblem("celery-redbeat is not installed.") from None
    app = schedulers.app_or_default()
    config = schedulers.ensure_conf(app)
    found: list[tuple[str, str, Stored]] = []
    try:
        client = schedulers.get_redis(app)
        # Undecoded, and without a transaction: so that one key of another kind, or with other bytes, does not end the reading of all.
        keys = sorted(client.execute_command("ZRANGE", config.schedule_key, 0, -1, NEVER_DECODE=True))
        for start in range(0, len(keys), KEYS_AT_ONCE):
            chosen = keys[start : start + KEYS_AT_ONCE]
            pipe = client.pipeline(transaction=False)
            for key in chosen:
                pipe.execute_command("HGET", key, field, NEVER_DECODE=True)
            values = pipe.execute(raise_on_error=False)
            found += [
                (config.key_prefix, key.decode(errors="backslashreplace"), value)
                for key, value in zip(chosen, values, strict=True)
            ]
    except schedulers.redis.exceptions.RedisError as error:
        raise SourceProblem(f"RedBeat's Redis does not answer: {error}.") from error
    except ValueError as error:
        raise SourceProblem(f"RedBeat cannot use its redbeat_redis_url: {in_one_line(error)}.") from None
    return found


def _json(stored: bytes | Exception) -> Any:
    if isinstance(stored, Exception):
        raise Refused(f"its key cannot be read: {in_one_line(stored)}")
    try:
        return json.loads(stored)
    except (ValueError, RecursionError) as error:
        raise Refused(f"its definition is not JSON: {error}") from None


def _job(definition: Stored, now: datetime, warn: Warn) -> dict[str, Any]:
    if not definition:
        raise Left("its key is in the index alone: RedBeat would drop it")
    plain = _json(definition)
    if not isinstance(plain, dict) or not isinstance(plain.get("task"), str):
        raise Refused("its definition names no task")
    celery_entry.check_task(plain["task"])
    enabled = bool(plain.get("enabled", True))
    given = dict(plain.get("options") or {})
    given["expires"] = _decoded(given.get("expires"))
    if isinstance(given["expires"], datetime) and given["expires"] <= now:
        raise Left(f"it expired at {given['expires'].isoformat()}")
    return {
        "target": plain["task"],
        **celery_entry.arguments(plain.get("args") or [], plain.get("kwargs") or {}),
        "starts_at": None,
        **celery_entry.options(given, warn),
        "enabled": enabled,
        "pause_reason": "" if enabled else WAS_DISABLED,
        **celery_entry.when(_schedule(plain.get("schedule")), warn),
    }


def _schedule(plain: Any) -> Any:
    kind = plain.get("__type__") if isinstance(plain, dict) else None
    if kind == "rrule":
        raise Refused("it is a recurrence rule; write it as a schedule of cron, or as @every or @at")
    if kind not in ("interval", "crontab"):
        raise Refused(f"its schedule is {json.dumps(plain):.80}, neither an interval nor a crontab")
    return _decoded(plain)


def _decoded(plain: Any) -> Any:
    """As RedBeat reads it: an object of Celery, or a time."""
    from redbeat.decoder import RedBeatJSONDecoder

    try:
        return json.loads(json.dumps(plain), cls=RedBeatJSONDecoder)
    except Exception as error:  # whatever the classes of Celery raise that it makes
        raise Refused(f"RedBeat itself cannot read {json.dumps(plain):.80}: {in_one_line(error)}") from None
