"""Counting that stays fast over a million rows: it stops at a limit."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet

LIMIT = 10_000


def count_up_to(queryset: QuerySet[Any], limit: int = LIMIT) -> int:
    """How many rows there are, but ``limit + 1`` if there are more than ``limit``."""
    return queryset.order_by()[: limit + 1].count()
