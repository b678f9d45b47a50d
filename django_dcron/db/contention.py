"""Contention: another transaction was in the way. Recognize it, repeat the work, or postpone it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from django.db import DatabaseError, InterfaceError, OperationalError, connections

from django_dcron.db.errors import in_one_line

logger = logging.getLogger("django_dcron.scheduler")

CONTENTION_STATES = frozenset({"40001", "40P01", "55P03"})
"""PostgreSQL's SQLSTATEs: serialization failure, deadlock, lock not available."""
CONTENTION_NUMBERS = frozenset({1020, 1205, 1213})
"""MariaDB's error numbers: record changed since last read, lock wait timeout, deadlock."""
CONTENTION_TEXTS = (
    "database is locked",
    "table is locked",
    "deadlock",
    "could not serialize",
    "lock wait timeout",
)
"""Texts of errors without a code: SQLite's errors and wrapped errors."""


T = TypeVar("T")
CONTENTIONS = 3
"""How often a transaction is repeated after contention."""


def is_contention(error: BaseException) -> bool:
    """Return whether the error only means that another transaction was in the way.

    A retry soon helps.
    """
    if not isinstance(error, OperationalError):
        return False
    cause = error.__cause__  # the driver's error
    if state := getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None):
        return state in CONTENTION_STATES
    if error.args and isinstance(error.args[0], int):
        return error.args[0] in CONTENTION_NUMBERS
    return any(text in str(error).lower() for text in CONTENTION_TEXTS)


def despite_contention(work: Callable[[], T], using: str) -> T:
    """Do ``work``, which is a transaction, and repeat it a few times after contention."""
    for _ in range(CONTENTIONS):
        try:
            return work()
        except OperationalError as error:
            # The error has broken the surrounding transaction, too.
            if connections[using].in_atomic_block or not is_contention(error):
                raise
    return work()


def can_skip_locked_rows(using: str) -> bool:
    """Return whether the database can skip locked rows.

    SQLite can't: it locks the whole database.
    """
    return bool(connections[using].features.has_select_for_update_skip_locked)


@contextmanager
def skipping_if_locked(what: object, using: str) -> Iterator[None]:
    """Do the block, but log contention instead of raising it.

    ``what`` is tried again later.
    """
    try:
        yield
    except OperationalError as error:
        if connections[using].in_atomic_block or not is_contention(error):
            raise
        logger.info(
            "step postponed by a lock: step=%s error=%s",
            what,
            in_one_line(error),
            extra={"event": "contention"},
        )


@contextmanager
def isolating_errors(what: str, using: str) -> Iterator[None]:
    """Do the block for one of many items, so that its problem doesn't stop the others.

    Contention is left for later. Errors except the database's are logged.
    """
    try:
        with skipping_if_locked(what, using):
            yield
    except (DatabaseError, InterfaceError):
        raise
    except Exception:
        logger.exception("step failed: step=%s", what, extra={"event": "failed"})
