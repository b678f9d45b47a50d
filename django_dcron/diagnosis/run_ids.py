"""Find runs by their id or its beginning."""

from __future__ import annotations

import re
from uuid import UUID

from django_dcron.models.run import RunQuerySet

LOWEST_ID = "0" * 12 + "7" + "0" * 3 + "8" + "0" * 15
HIGHEST_ID = "f" * 12 + "7" + "f" * 3 + "b" + "f" * 15
"""The lowest and highest id that ``new_run_id`` creates.

They are valid UUIDs of version 7, because MariaDB sorts UUIDs of other versions differently.
"""

_ID = re.compile("[0-9a-f]{8}-[0-9a-f-]{1,27}|[0-9a-f]{32}")


def id_range(digits: str) -> tuple[UUID, UUID]:
    """Return the lowest and the highest id that begins with up to 32 hexadecimal digits."""
    if len(digits) == len(LOWEST_ID):
        return UUID(digits), UUID(digits)
    return UUID(digits + LOWEST_ID[len(digits) :]), UUID(digits + HIGHEST_ID[len(digits) :])


def id_range_of_text(text: str) -> tuple[UUID, UUID] | None:
    """Return the range of ids if ``text`` is an id or its beginning, such as 019a9f3c-5b7e.

    Returns None for any other text, such as the name of a job. A beginning needs a hyphen.
    """
    text = text.strip().lower()
    digits = text.replace("-", "")
    return id_range(digits) if _ID.fullmatch(text) and len(digits) <= len(LOWEST_ID) else None


def id_range_in(runs: RunQuerySet, text: str) -> tuple[UUID, UUID] | None:
    """Return the range of ids that begin with ``text``, or None if none of ``runs`` is in it.

    In the latter case, ``text`` may be the name of a job, such as 20261128-01.
    """
    ids = id_range_of_text(text)
    return ids if ids is not None and runs.filter(pk__range=ids).exists() else None
