"""All targets there are, by key. Looking one up imports and runs nothing but the project's own task modules, once."""

from __future__ import annotations

from django_dcron.exceptions import UnknownTarget
from django_dcron.phrases import Phrase
from django_dcron.phrases import gettext_noop as _
from django_dcron.targets import celery_tasks, commands, django_tasks, functions, shadow, shell
from django_dcron.targets.base import Target, nearest


def get(key: str) -> Target:
    """The target registered under ``key``; raises ``UnknownTarget``, which says why and what comes near."""
    if key.startswith(shadow.PREFIX):
        return shadow.ShadowTarget(get(key.removeprefix(shadow.PREFIX)))
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
