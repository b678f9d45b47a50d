"""Find targets by key. The first lookup imports the project's task modules, and nothing else."""

from __future__ import annotations

import json
import sys
from importlib.machinery import PathFinder
from typing import Any

from django_dcron.conf import settings
from django_dcron.exceptions import InvalidArguments, UnknownTarget
from django_dcron.targets import celery_tasks, commands, django_tasks, functions, shadow, shell
from django_dcron.targets.base import Target
from django_dcron.utils.messages import TranslatableText
from django_dcron.utils.messages import gettext_noop as _
from django_dcron.utils.suggestions import nearest

_NOT_DEFINED = _("no task or @cron function has this name")
_REGISTER = _(
    "Register the function with shared_task, which needs no Celery app, and import its module in "
    "cron.py of an installed app, which every process imports"
)

KNOWN_LISTED = 5
"""An error lists the known targets if there are at most this many."""


def get(key: str) -> Target:
    """Return the target ``key``. Raises ``UnknownTarget`` with the reason and similar keys."""
    if shadow.is_shadow(key):
        wrapped = key.removeprefix(shadow.PREFIX)
        if shadow.is_shadow(wrapped):
            raise UnknownTarget(
                _(
                    "Invalid target %(target)s: a shadow of a shadow isn't supported. Use "
                    "shadow:KEY with the KEY of another target."
                ),
                target=f"{key!r:.80}",
                code="unknown_target",
            )
        return shadow.ShadowTarget(get(wrapped))
    target = _find(key)
    if target is None:
        known = available()
        near = nearest(key, known)
        why = _why_unknown(key)
        text = _("Unknown target %(target)s: %(why)s.")
        if near:
            text = _("Unknown target %(target)s: %(why)s. Did you mean %(near)s?")
        elif why.template == _NOT_DEFINED:
            text = _("Unknown target %(target)s: %(why)s. %(remedy)s")
        raise UnknownTarget(
            text,
            target=repr(key),
            why=why,
            advice=why.values.get("advice", ""),
            near=near,
            remedy=_remedy(known),
            code="unknown_target",
        )
    return target


def is_known(key: str) -> bool:
    """Return whether ``get`` finds the target. It is fast, because it looks for no similar keys."""
    wrapped = key.removeprefix(shadow.PREFIX)
    return not shadow.is_shadow(wrapped) and _find(wrapped) is not None


def _find(key: str) -> Target | None:
    if key.startswith(commands.PREFIX):
        return commands.find(key)
    if key.startswith(shell.PREFIX):
        return shell.find(key)
    # Tasks first: a function with @cron may also be a task, which has a route and passes ``self``
    # or a context.
    return celery_tasks.find(key) or django_tasks.find(key) or functions.find(key)


def check_arguments(key: str, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Raise ``UnknownTarget``, or ``InvalidArguments`` if the arguments don't fit or are too large.

    The project's code may run here, such as a command's parser. All of its exceptions become
    ``InvalidArguments``.
    """
    target = get(key)
    _check_size(args, kwargs)
    try:
        target.check_arguments(args, kwargs)
    except InvalidArguments:
        raise
    except Exception as error:
        raise InvalidArguments(
            _("%(target)s rejects the arguments: %(problem)s"),
            "args",
            target=key,
            problem=str(error) or type(error).__name__,
            code="rejected",
        ) from error


def _check_size(args: list[Any], kwargs: dict[str, Any]) -> None:
    limit = settings.ARGUMENTS_LIMIT
    sizes = {"args": _size(args), "kwargs": _size(kwargs)}
    if sum(sizes.values()) > limit:
        raise InvalidArguments(
            _(
                "The arguments have %(count)d characters as JSON. DCRON_ARGUMENTS_LIMIT "
                "allows %(most)d. Store the data elsewhere and pass its key."
            ),
            max(sizes, key=lambda field: sizes[field]),
            count=sum(sizes.values()),
            most=limit,
            code="too_long",
        )


def _size(value: Any) -> int:
    """Return the number of characters as JSON; 0 for other values, which are refused elsewhere."""
    try:
        return len(json.dumps(value, ensure_ascii=False)) if value else 0
    except (TypeError, ValueError, RecursionError):
        return 0


def available() -> list[str]:
    """Return the keys of all targets, sorted."""
    return sorted(
        {
            *celery_tasks.keys(),
            *django_tasks.keys(),
            *functions.keys(),
            *commands.keys(),
            *shell.keys(),
        }
    )


def discovery_problem() -> str:
    """Return why task modules can't be imported, so tasks may be missing; empty if they can."""
    return celery_tasks.discovery_problem() or django_tasks.discovery_problem()


def _why_unknown(key: str) -> TranslatableText:
    if key.startswith(commands.PREFIX):
        return commands.why_unknown(key)
    if key.startswith(shell.PREFIX):
        return shell.why_unknown(key)
    problem = discovery_problem()
    module = key.rpartition(".")[0]
    if not problem and _may_define(module, key):
        text = _(
            "no task or @cron function has this name, but the module %(module)s exists. %(advice)s"
        )
        return TranslatableText(text, module=module, advice=TranslatableText(_REGISTER))
    if not problem:
        return TranslatableText(_NOT_DEFINED)
    text = _(
        "no task or @cron function has this name, but some task modules can't be imported "
        "(%(problem)s)"
    )
    return TranslatableText(text, problem=problem)


def _remedy(known: list[str]) -> TranslatableText:
    """Return what to do about a target that resembles none of the ``known`` ones."""
    check = TranslatableText(
        _(
            "Check whether the task was renamed or deleted, and whether its module is imported, "
            "for example in cron.py of an installed app."
        )
    )
    if 0 < len(known) <= KNOWN_LISTED:
        text = _("%(check)s The known targets are: %(known)s.")
        return TranslatableText(text, check=check, known=", ".join(known))
    if command := next((key for key in known if key.startswith(commands.PREFIX)), ""):
        text = _("%(check)s Management commands are targets, too, such as %(command)s.")
        return TranslatableText(text, check=check, command=command)
    return check


def _may_define(module: str, key: str) -> bool:
    """Return whether the module exists in a loaded package and may define ``key``.

    This imports nothing, not even through a lazy module, because users enter keys.
    """
    if (loaded := sys.modules.get(module)) is not None:
        return callable(django_tasks.attributes_of(loaded).get(key.rpartition(".")[2]))
    names = module.split(".")
    if len(names) < 2 or not all(map(str.isidentifier, names)):
        return False
    path = django_tasks.attributes_of(sys.modules.get(names[0])).get("__path__")
    for count in range(2, len(names) + 1):
        package = ".".join(names[:count])
        if package in sys.modules:
            path = django_tasks.attributes_of(sys.modules[package]).get("__path__")
            continue
        spec = PathFinder.find_spec(package, path) if path else None
        if spec is None:
            return False
        path = spec.submodule_search_locations
    return True
