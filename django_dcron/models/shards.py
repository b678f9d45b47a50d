"""Rows that belong to jobs, and thereby to shards: a job is in the shard ``key % number``."""

from __future__ import annotations

from collections.abc import Collection
from typing import Self, TypeVar

from django.db import models
from django.db.models import F

M = TypeVar("M", bound=models.Model)


class ShardedQuerySet(models.QuerySet[M]):
    job_column = "job_id"
    """The column with the key of the job."""

    def in_shards(self, shards: Collection[int], of: int) -> Self:
        """Rows of the jobs in these shards, ``of`` being the number of all shards."""
        if len(shards) == of:
            return self
        return self.alias(shard=F(self.job_column) % of).filter(shard__in=shards)
