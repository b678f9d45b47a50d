"""Count rows up to a limit, which stays fast with millions of rows."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet

from django_dcron.policies.health.problems import MAX_COUNTED

__all__ = ["MAX_COUNTED", "count_up_to"]


def count_up_to(queryset: QuerySet[Any], limit: int = MAX_COUNTED) -> int:
    """Return the number of rows, or ``limit + 1`` if there are more than ``limit``."""
    return queryset.order_by()[: limit + 1].count()
