"""Rows that belong to jobs, and thereby to shards (``policies.sharding.shard_of_job``)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Self, TypeVar

from django.db import models
from django.db.models import F

M = TypeVar("M", bound=models.Model)
Rows = TypeVar("Rows", bound=models.QuerySet[Any])


def rows_in_shards(rows: Rows, shards: Collection[int], of: int, job: str = "job_id") -> Rows:
    """Return the rows of the jobs in these shards.

    ``of`` is the number of all shards. ``job`` names the field with the key of the job.
    """
    if len(shards) == of:
        return rows
    return rows.alias(shard=F(job) % of).filter(shard__in=shards)


class ShardedQuerySet(models.QuerySet[M]):
    job_column = "job_id"
    """The column with the key of the job."""

    def in_shards(self, shards: Collection[int], of: int) -> Self:
        return rows_in_shards(self, shards, of, self.job_column)
