"""Decide which queues jobs may name: ``DCRON_QUEUES``, or the queues that the project declares.

On Redis, a queue is a list stored under the queue's name, next to the internal keys of Celery's
transport. A message to a queue with the name of such a key destroys the key, and every worker exits
with ``WRONGTYPE``. A queue with the name of a lock prevents all nodes from taking that lock. So
these names are never allowed, whatever the project declares.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from celery import Celery

from django_dcron.conf import settings
from django_dcron.exceptions import InvalidValue
from django_dcron.targets.celery_tasks import discovered_app
from django_dcron.utils.messages import TranslatableText
from django_dcron.utils.messages import gettext_noop as _

RESERVED = ("unacked*", "_kombu.*", "*.pidbox", "celeryev*", "amq.*", "*{dcron}:lock:*")
"""Names reserved by Celery, kombu, AMQP and ``locks.redis``, as lower-case patterns."""
OWN_KEYS = ("unacked_key", "unacked_index_key", "unacked_mutex_key")
"""Transport options that rename the internal keys of kombu's Redis transport."""
SHOWN = 10
"""The maximum number of names in a message."""


def check_queue(name: str) -> None:
    """Raise ``InvalidValue`` if jobs can't use this queue. Empty means the target's own queue."""
    if not name:
        return
    if is_reserved(name):
        raise InvalidValue(
            "queue",
            _(
                "“%(name)s” is reserved by Celery or its broker. Use another name "
                "(reserved: %(reserved)s)."
            ),
            name=name,
            reserved=", ".join(RESERVED),
            code="reserved",
        )
    allowed = allowed_queues()
    if allowed is not None and not any(fnmatchcase(name, pattern) for pattern in allowed):
        is_of_backend = settings.QUEUES is None and settings.DISPATCHER == "tasks"
        raise InvalidValue(
            "queue",
            _(
                "“%(name)s” isn't one of the project's queues (allowed: %(allowed)s). To allow it, "
                "list it in %(setting)s, together with all other queues that jobs use."
            ),
            name=name,
            allowed=_join_names(allowed),
            setting="TASKS" if is_of_backend else "DCRON_QUEUES",
            code="unknown_queue",
        )


def is_reserved(name: str) -> bool:
    """Return whether the broker uses the name internally."""
    plain = name.casefold()
    if any(fnmatchcase(plain, pattern) for pattern in RESERVED):
        return True
    return settings.DISPATCHER == "celery" and plain in _renamed_internal_keys(discovered_app())


def allowed_queues() -> list[str] | None:
    """Return names or patterns such as ``reports-*``, sorted; None if every name is allowed."""
    if settings.QUEUES is not None:
        return sorted(settings.QUEUES)
    if settings.DISPATCHER == "celery":
        return sorted(set(_declared_in(discovered_app())))
    if settings.DISPATCHER == "tasks":
        return _of_task_backend()
    return None  # threads ignore the queue, and a custom dispatcher decides itself


def _declared_in(app: Celery) -> Iterator[str]:
    """Yield the default queue, and the queues of ``task_queues``, ``task_routes`` and the tasks."""
    yield str(app.conf.task_default_queue)
    for queue in app.conf.task_queues or ():  # a list of queues, or a mapping by name
        yield _name_of(queue)
    yield from _routed_to(app.conf.task_routes)
    for task in list(app.tasks.values()):
        if queue := getattr(task, "queue", None):
            yield _name_of(queue)


def _routed_to(routes: Any) -> Iterator[str]:
    """Yield the queues in the routes. Routers that are functions or classes can't be inspected."""
    if isinstance(routes, Mapping):
        for route in routes.values():
            queue = route.get("queue") if isinstance(route, Mapping) else route
            if queue:
                yield _name_of(queue)
    elif isinstance(routes, (list, tuple)):
        for each in routes:
            is_pair = (
                isinstance(each, (list, tuple)) and len(each) == 2 and isinstance(each[0], str)
            )
            yield from _routed_to({each[0]: each[1]} if is_pair else each)


def _name_of(queue: Any) -> str:
    return str(getattr(queue, "name", queue))


def _renamed_internal_keys(app: Celery) -> set[str]:
    options = app.conf.broker_transport_options or {}
    return {str(options[name]).casefold() for name in OWN_KEYS if name in options}


def _of_task_backend() -> list[str] | None:
    from django.tasks import task_backends

    return sorted(task_backends[settings.TASKS_BACKEND].queues) or None


def _join_names(names: Iterable[str]) -> TranslatableText | str:
    first = list(names)
    shown = ", ".join(first[:SHOWN])
    return (
        shown if len(first) <= SHOWN else TranslatableText(_("%(names)s and others"), names=shown)
    )
