"""Contention with other transactions: recognize it, and repeat or postpone the blocked work."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from django.db import OperationalError, connections

from django_dcron.db.errors import UNAVAILABLE, code_of, in_one_line

logger = logging.getLogger("django_dcron.scheduler")

CONTENTION_CODES = frozenset[str | int]({"40001", "40P01", "55P03", 1020, 1205, 1213})
"""PostgreSQL: serialization failure, deadlock, lock not available. MariaDB: record changed since
last read, lock wait timeout, deadlock.
"""
CONTENTION_TEXTS = (
    "database is locked",
    "table is locked",
    "deadlock",
    "could not serialize",
    "lock wait timeout",
)
"""Texts of errors without a code: SQLite's errors and wrapped errors."""


T = TypeVar("T")
MAX_RETRIES = 3
"""How often a transaction is repeated after contention."""


def is_contention(error: BaseException) -> bool:
    """Return whether another transaction blocked the statement or conflicted with it.

    A retry will probably succeed soon.
    """
    if not isinstance(error, OperationalError):
        return False
    if (code := code_of(error)) is not None:
        return code in CONTENTION_CODES
    return any(text in str(error).lower() for text in CONTENTION_TEXTS)


def despite_contention(work: Callable[[], T], using: str) -> T:
    """Call ``work``, which is a transaction, and repeat it a few times after contention."""
    for _ in range(MAX_RETRIES):
        try:
            return work()
        except OperationalError as error:
            # The error has also broken a surrounding transaction, which can't be repeated here.
            if connections[using].in_atomic_block or not is_contention(error):
                raise
    return work()


def can_skip_locked_rows(using: str) -> bool:
    """Return whether the database can skip locked rows.

    SQLite can't: it locks the whole database.
    """
    return bool(connections[using].features.has_select_for_update_skip_locked)


def supports_no_key_update(using: str) -> bool:
    """Return whether the database has ``FOR NO KEY UPDATE`` (PostgreSQL).

    Other transactions may then insert rows that refer to the locked ones.
    """
    return bool(connections[using].features.has_select_for_no_key_update)


@contextmanager
def skipping_if_locked(step: object, using: str) -> Iterator[None]:
    """Run the block, and log contention instead of raising it. The caller retries ``step`` later.

    Within a transaction, contention is raised, because it has broken the transaction.
    """
    try:
        yield
    except OperationalError as error:
        if connections[using].in_atomic_block or not is_contention(error):
            raise
        logger.info(
            "step postponed by a lock: step=%s error=%s",
            step,
            in_one_line(error),
            extra={"event": "contention"},
        )


@contextmanager
def isolating_errors(
    step: str, using: str, log_error: Callable[[Exception], None] | None = None
) -> Iterator[None]:
    """Run the block for one of many items, so that its error doesn't stop the others.

    Contention is logged, and the caller tries again later. Errors of an unavailable database
    propagate. Any other error is logged: by ``log_error`` if it is given, or with ``step``.
    """
    try:
        with skipping_if_locked(step, using):
            yield
    except UNAVAILABLE:
        raise
    except Exception as error:
        if log_error is not None:
            log_error(error)
        else:
            logger.exception("step failed: step=%s", step, extra={"event": "step_failed"})
