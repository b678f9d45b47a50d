"""Filter jobs by what created them: code, a person or program, or an import."""

from __future__ import annotations

from typing import TypeVar

from django.db.models import Q, QuerySet

from django_dcron.models import Job

Jobs = TypeVar("Jobs", bound=QuerySet[Job])

CODE = "code"
"""The jobs that code declares with ``@cron``."""
ADMIN = "admin"
"""The jobs that were created in the admin, over REST or with ``control``."""


def jobs_from_source(jobs: Jobs, source: str) -> Jobs:
    """Return the jobs from ``source``: ``CODE``, ``ADMIN`` or the source of an import.

    ``crontab`` matches the jobs of every crontab: their source is ``crontab`` and a path.
    """
    if source == CODE:
        return jobs.filter(declared__isnull=False)
    if source == ADMIN:
        return jobs.filter(declared__isnull=True, import_source="")
    return jobs.filter(Q(import_source=source) | Q(import_source__startswith=f"{source} "))
