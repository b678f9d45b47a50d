"""The history's entry of what a request did, which is never the reason why its answer says that it was not done.

Invariants:

- An entry that cannot be written is logged, and the answer is as if it had been: a program that is told of an error asks again, and
  would run a job twice.
- If the database has given up a transaction of the project's own, in which all of this happens, nothing was done: the error goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections
from django.db.models import Model

logger = logging.getLogger("django_dcron.rest")


@contextmanager
def entry_of(row: Model) -> Iterator[None]:
    """Around the noting of what was done to it."""
    kind, key, name = row._meta.model_name, row.pk, str(row)
    try:
        yield
    except Exception:
        if any(
            each.in_atomic_block and each.needs_rollback for each in connections.all(initialized_only=True)
        ):
            raise
        logger.exception(
            "what was done to the %s %s (%s) is not in its history",
            kind,
            key,
            name,
            extra={"event": "not_noted"},
        )
