"""Change many jobs or runs batch by batch, and find the items that the database refuses.

Invariants:

- Each batch is one transaction. If the process ends, the finished batches stay and the others have
  changed nothing.
- A refused item doesn't stop the others. If an exception refuses a whole batch, smaller batches are
  tried, down to the item that causes it.
- The errors of an item end up in the result. An error that doesn't concern one item is raised.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from django.core.exceptions import ValidationError
from django.db import DataError, IntegrityError, OperationalError, connections
from django.utils import translation
from django.utils.translation import gettext

from django_dcron.db.contention import is_contention
from django_dcron.exceptions import Conflict, DcronError, NotPossible, TranslatableError
from django_dcron.utils.messages import gettext_noop

logger = logging.getLogger("django_dcron.scheduler")

T = TypeVar("T")
OnProgress = Callable[[int], object]
"""Called after each batch with the number of items that are done."""


class BatchResult(NamedTuple):
    done: int
    """How many items were tried: the first ones of the batch."""
    refused: dict[int, Exception]
    """The errors of the refused items by their position in the batch."""


NOT_STORABLE = (DataError, ValueError, TypeError, OverflowError, RecursionError)
"""Exceptions for values that pass validation but that the database or its driver can't store."""
REFUSALS = (ValidationError, Conflict, NotPossible, IntegrityError, *NOT_STORABLE)
"""Exceptions that concern one item."""
IN_PROGRESS = gettext_noop("Another change is in progress. Try again.")
"""Why contention refuses a change."""


def change_in_batches(
    items: Sequence[T],
    change: Callable[[Sequence[T]], BatchResult],
    using: str,
    on_progress: OnProgress,
    at_once: int,
) -> dict[int, Exception]:
    """Change all ``items``. Returns the errors of the refused ones by their position.

    ``change`` gets a batch and changes its first items, or all of them, in one transaction. If
    there is only one item, it raises that item's error instead of returning it.
    """
    refused: dict[int, Exception] = {}
    position, size = 0, at_once
    while position < len(items):
        batch = items[position : position + size]
        try:
            done, errors = change(batch)
        except Exception as error:
            if len(batch) > 1 and not isinstance(error, OperationalError):
                size = len(batch) // 2
                continue
            if not isinstance(error, REFUSALS) and not _is_temporary(error, using):
                raise
            done, errors = len(batch), dict.fromkeys(range(len(batch)), error)
        refused |= {position + number: error for number, error in errors.items()}
        position, size = position + done, min(at_once, 2 * done)
        on_progress(position)
    return refused


def _is_temporary(error: Exception, using: str) -> bool:
    """Return whether the next batch may succeed, because another transaction caused the error.

    Within a surrounding transaction, no further batch can succeed: the error has broken it.
    """
    return is_contention(error) and not connections[using].in_atomic_block


def refusal_text(error: Exception, item: object) -> str:
    """Return why ``item`` was refused, for users, in the active language.

    The text of an unexpected error is logged instead: it may contain SQL and values of other rows.
    """
    if isinstance(error, ValidationError):
        return " ".join(error.messages)
    if isinstance(error, TranslatableError):
        return error.translate(translation)
    if isinstance(error, DcronError):
        return str(error)
    if is_contention(error):
        return gettext(IN_PROGRESS)
    extra = {"event": "change_failed", "job": str(item)}
    logger.error("change failed: job=%s", item, exc_info=error, extra=extra)
    return gettext("The change failed because of an unexpected error. The server log has details.")
