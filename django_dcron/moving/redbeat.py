"""RedBeat: the entries in its Redis. They are JSON, and read as such."""

from __future__ import annotations

import json
from datetime import datetime
from functools import partial
from typing import Any

from django_dcron.moving import celery_entry
from django_dcron.moving.found import Left, Ran, Reading, Refused, SourceProblem, Warn, entry

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
    latest = {
        _origin(key): _decoded(json.loads(meta)).get("last_run_at")
        for _prefix, key, meta in _stored("meta")
        if meta
    }
    return Ran({origin: [at] for origin, at in latest.items() if at and at >= since}, complete=False)


def _origin(key: str) -> str:
    return f"key {key!r}"


def _stored(field: str) -> list[tuple[str, str, str | None]]:
    """The prefix of all keys, each key, and one field of what is there."""
    try:
        from redbeat import schedulers
    except ImportError:
        raise SourceProblem("celery-redbeat is not installed.") from None
    app = schedulers.app_or_default()
    config = schedulers.ensure_conf(app)
    found: list[tuple[str, str, str | None]] = []
    try:
        client = schedulers.get_redis(app)
        keys = sorted(client.zrange(config.schedule_key, 0, -1))
        for start in range(0, len(keys), KEYS_AT_ONCE):
            chosen = keys[start : start + KEYS_AT_ONCE]
            pipe = client.pipeline()
            for key in chosen:
                pipe.hget(key, field)
            found += [(config.key_prefix, *pair) for pair in zip(chosen, pipe.execute(), strict=True)]
    except schedulers.redis.exceptions.RedisError as error:
        raise SourceProblem(f"RedBeat's Redis does not answer: {error}.") from error
    except ValueError as error:
        raise SourceProblem(f"RedBeat cannot use its redbeat_redis_url: {error}.") from error
    return found


def _job(definition: str | None, now: datetime, warn: Warn) -> dict[str, Any]:
    if not definition:
        raise Left("its key is in the index alone: RedBeat would drop it")
    try:
        plain = json.loads(definition)
    except ValueError as error:
        raise Refused(f"its definition is not JSON: {error}") from None
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
    except (ValueError, TypeError, KeyError) as error:
        raise Refused(f"RedBeat itself cannot read {json.dumps(plain):.80}: {error}") from None
