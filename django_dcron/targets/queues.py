"""Which queues jobs may name: those of ``DCRON_QUEUES``, else those that the project declares.

On Redis, a queue is a list under the queue's own name, beside the keys in which Celery's transport keeps its books. A message to a
queue of such a name destroys the book, and every worker exits with ``WRONGTYPE``. So those names are never allowed, whatever the
project declares.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from celery import Celery

from django_dcron.conf import settings
from django_dcron.exceptions import InvalidValue
from django_dcron.phrases import Phrase
from django_dcron.phrases import gettext_noop as _
from django_dcron.targets.celery_tasks import discovered_app

RESERVED = ("unacked*", "_kombu.*", "*.pidbox", "celeryev*", "amq.*")
"""What Celery, kombu and AMQP keep for themselves, as patterns in lower case."""
OWN_KEYS = ("unacked_key", "unacked_index_key", "unacked_mutex_key")
"""The transport options that rename the books of kombu's Redis transport."""
SHOWN = 10


def check_queue(name: str) -> None:
    """Raise ``InvalidValue`` if jobs may not name this queue. An empty name is the target's own queue."""
    if not name:
        return
    if is_reserved(name):
        raise InvalidValue(
            "queue",
            _("“%(name)s” is a name that Celery or its broker keeps for itself (reserved: %(reserved)s)"),
            name=name,
            reserved=", ".join(RESERVED),
        )
    allowed = allowed_queues()
    if allowed is not None and not any(fnmatchcase(name, pattern) for pattern in allowed):
        raise InvalidValue(
            "queue",
            _(
                "“%(name)s” is not one of the project's queues (allowed: %(allowed)s); DCRON_QUEUES can name it"
            ),
            name=name,
            allowed=_listed(allowed),
        )


def is_reserved(name: str) -> bool:
    """Whether the broker would take the queue for something of its own."""
    plain = name.casefold()
    if any(fnmatchcase(plain, pattern) for pattern in RESERVED):
        return True
    return settings.DISPATCHER == "celery" and plain in _renamed(discovered_app())


def allowed_queues() -> list[str] | None:
    """Names, or patterns such as ``reports-*``, sorted; None if every name is allowed."""
    if settings.QUEUES is not None:
        return sorted(settings.QUEUES)
    if settings.DISPATCHER == "celery":
        return sorted(set(_declared_in(discovered_app())))
    if settings.DISPATCHER == "tasks":
        return _of_task_backend()
    return None  # threads ignore the queue, and a dispatcher of the project's own knows best


def _declared_in(app: Celery) -> Iterator[str]:
    """The default queue, and those of ``task_queues``, of ``task_routes`` and of the tasks' own ``queue``."""
    yield str(app.conf.task_default_queue)
    for queue in app.conf.task_queues or ():  # a list of queues, or a mapping by name
        yield _name_of(queue)
    yield from _routed_to(app.conf.task_routes)
    for task in list(app.tasks.values()):
        if queue := getattr(task, "queue", None):
            yield _name_of(queue)


def _routed_to(routes: Any) -> Iterator[str]:
    """What the routes name. A router that is a function or a class cannot be asked."""
    if isinstance(routes, Mapping):
        for route in routes.values():
            queue = route.get("queue") if isinstance(route, Mapping) else route
            if queue:
                yield _name_of(queue)
    elif isinstance(routes, (list, tuple)):
        for each in routes:
            is_pair = isinstance(each, (list, tuple)) and len(each) == 2 and isinstance(each[0], str)
            yield from _routed_to({each[0]: each[1]} if is_pair else each)


def _name_of(queue: Any) -> str:
    return str(getattr(queue, "name", queue))


def _renamed(app: Celery) -> set[str]:
    options = app.conf.broker_transport_options or {}
    return {str(options[name]).casefold() for name in OWN_KEYS if name in options}


def _of_task_backend() -> list[str] | None:
    from django.tasks import task_backends

    return sorted(task_backends[settings.TASKS_BACKEND].queues) or None


def _listed(names: Iterable[str]) -> Phrase | str:
    first = list(names)
    shown = ", ".join(first[:SHOWN])
    return shown if len(first) <= SHOWN else Phrase(_("%(names)s and others"), names=shown)
