"""All targets there are, by key. Looking one up imports and runs nothing but the project's own task modules, once."""

from __future__ import annotations

import json
from typing import Any

from django_dcron.conf import settings
from django_dcron.exceptions import InvalidArguments, UnknownTarget
from django_dcron.phrases import Phrase
from django_dcron.phrases import gettext_noop as _
from django_dcron.targets import celery_tasks, commands, django_tasks, functions, shadow, shell
from django_dcron.targets.base import Target, nearest


def get(key: str) -> Target:
    """The target registered under ``key``; raises ``UnknownTarget``, which says why and what comes near."""
    if key.startswith(shadow.PREFIX):
        of = key.removeprefix(shadow.PREFIX)
        if of.startswith(shadow.PREFIX):
            raise UnknownTarget(_("%(target)s is no target: a shadow has no shadow"), target=f"{key!r:.80}")
        return shadow.ShadowTarget(get(of))
    if key.startswith(commands.PREFIX):
        target: Target | None = commands.find(key)
    elif key.startswith(shell.PREFIX):
        target = shell.find(key)
    else:
        # A task first: if a function is both, its task binds ``self`` or a context, and has a route.
        target = celery_tasks.find(key) or django_tasks.find(key) or functions.find(key)
    if target is None:
        near = nearest(key, available())
        text = (
            _("%(target)s is no target: %(why)s; did you mean %(near)s?")
            if near
            else _("%(target)s is no target: %(why)s")
        )
        raise UnknownTarget(text, target=repr(key), why=_why_unknown(key), near=near)
    return target


def check_arguments(key: str, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Raise ``UnknownTarget``, or ``InvalidArguments`` if the target does not take these arguments or they are too large.

    Code of the project may run here, such as a command's parser: whatever it raises becomes ``InvalidArguments``.
    """
    target = get(key)
    _check_size(args, kwargs)
    try:
        target.check_arguments(args, kwargs)
    except InvalidArguments:
        raise
    except Exception as error:
        raise InvalidArguments(
            _("%(target)s refuses them: %(problem)s"),
            "args",
            target=key,
            problem=str(error) or type(error).__name__,
        ) from error


def _check_size(args: list[Any], kwargs: dict[str, Any]) -> None:
    most = settings.ARGUMENTS_LIMIT
    sizes = {"args": _size(args), "kwargs": _size(kwargs)}
    if sum(sizes.values()) > most:
        raise InvalidArguments(
            _(
                "%(count)d characters of arguments, as JSON, are too many (allowed by DCRON_ARGUMENTS_LIMIT: %(most)d); "
                "store the data elsewhere and pass its key"
            ),
            max(sizes, key=lambda field: sizes[field]),
            count=sum(sizes.values()),
            most=most,
        )


def _size(value: Any) -> int:
    """Characters as JSON. What is not JSON is refused elsewhere, and has no size here."""
    try:
        return len(json.dumps(value, ensure_ascii=False)) if value else 0
    except (TypeError, ValueError, RecursionError):
        return 0


def available() -> list[str]:
    """The keys of all targets, sorted."""
    return sorted(
        {*celery_tasks.keys(), *django_tasks.keys(), *functions.keys(), *commands.keys(), *shell.keys()}
    )


def discovery_problem() -> str:
    """Why some task modules could not be imported, and so some tasks are unknown; empty if all were."""
    return celery_tasks.discovery_problem() or django_tasks.discovery_problem()


def _why_unknown(key: str) -> Phrase:
    if key.startswith(commands.PREFIX):
        return commands.why_unknown(key)
    if key.startswith(shell.PREFIX):
        return shell.why_unknown(key)
    problem = discovery_problem()
    if not problem:
        return Phrase(_("no task and no @cron function has this name"))
    text = _(
        "no task and no @cron function has this name (but not all task modules could be imported: %(problem)s)"
    )
    return Phrase(text, problem=problem)
