"""Write the audit log entry of a request without letting it fail the request.

Invariants:

- If an entry can't be written, the error is logged and the response is unchanged. After an error
  response, a client would retry and run a job twice.
- If the database has aborted a transaction of the project around the request, nothing was done.
  Then the error is raised.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections
from django.db.models import Model

logger = logging.getLogger("django_dcron.rest")


@contextmanager
def audit_errors_logged(*rows: Model) -> Iterator[None]:
    """Log errors of the block, which writes the audit log entries of ``rows``, and continue."""
    named = [(row._meta.model_name, row.pk, str(row)) for row in rows]
    try:
        yield
    except Exception:
        if any(
            each.in_atomic_block and each.needs_rollback
            for each in connections.all(initialized_only=True)
        ):
            raise
        for kind, key, name in named:
            logger.exception(
                "audit log entry not written: %s=%s name=%s",
                kind,
                key,
                name,
                extra={"event": "audit_log_failed"},
            )
