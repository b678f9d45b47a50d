"""Determine who acts: the user of a request or of the command line, the scheduler, or code.

Invariants:

- Each thread and each asyncio task has its own actor. A context manager sets and restores it.
- The actor is determined only when an entry is written, so that a request that changes nothing
  never loads its user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from django_dcron.models import Via
from django_dcron.models.audit_entry import LONGEST_ACTOR, LONGEST_ADDRESS
from django_dcron.utils.bounded_text import replace_unstorable, with_ellipsis


@dataclass(frozen=True, slots=True)
class Actor:
    name: str = ""
    """Empty if no user acts."""
    address: str = ""
    via: Via = Via.CODE


_current: ContextVar[Callable[[], Actor]] = ContextVar("dcron_actor", default=Actor)


def current_actor() -> Actor:
    actor = _current.get()()
    return Actor(
        with_ellipsis(replace_unstorable(actor.name), LONGEST_ACTOR),
        with_ellipsis(replace_unstorable(actor.address), LONGEST_ADDRESS),
        actor.via,
    )


@contextmanager
def acting(find_actor: Callable[[], Actor]) -> Iterator[None]:
    """Attribute the changes of the block to the actor that ``find_actor`` returns."""
    token = _current.set(find_actor)
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def acting_as(name: str, address: str = "") -> Iterator[None]:
    """Attribute the changes of the block to the user ``name`` in the audit log.

    ``address`` is the client's IP address. Use it where your code changes jobs or runs for a user,
    for example in a view. The admin, the REST API and the command line do this themselves.
    """
    with acting(lambda: Actor(name, address)):
        yield


def request_actor(request: Any, via: Via) -> Actor:
    """Return the user and the address of a request.

    The address is ``REMOTE_ADDR``. Behind a proxy, a middleware of the project has to correct it.
    """
    user = getattr(request, "user", None)
    name = getattr(user, "get_username", lambda: "")() if user is not None else ""
    return Actor(str(name or ""), str(request.META.get("REMOTE_ADDR") or ""), via)
