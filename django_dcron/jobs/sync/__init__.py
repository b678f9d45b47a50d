"""Sync the jobs declared in code to the database: ``plan`` compares, ``apply`` writes.

Invariants:

- The comparison merges three states: the row, the code, and the previous declaration
  (``Job.declared``). A field follows the code only while the row has the previously declared value.
  A field that a person changed stays until the code declares the same value.
- A job that a person created is never changed. A declaration of the same name is refused, and one
  of the two must be deleted or renamed.
- A job that is no longer declared is disabled, never deleted. A new declaration enables it.
- If some task modules can't be imported, their declarations are missing. Then no job is disabled.
- A job is written only if it still has the version that was compared. A transaction writes up to
  500 jobs.
- Nodes that sync at the same time repeat the comparison and find the work done.
- One invalid declaration doesn't stop the others.
"""

from __future__ import annotations

from django_dcron.jobs.sync.changes import ChangeKind, SyncChange
from django_dcron.jobs.sync.comparison import (
    enabled_twins,
    is_no_longer_declared,
    is_still_declared,
    plan,
)
from django_dcron.jobs.sync.edits import declared_texts, edited_fields, undeclared_edits
from django_dcron.jobs.sync.writing import apply
from django_dcron.models.job_states import DECLARED_DISABLED, NO_LONGER_DECLARED

__all__ = [
    "DECLARED_DISABLED",
    "NOTHING_DECLARED",
    "NO_LONGER_DECLARED",
    "ChangeKind",
    "SyncChange",
    "apply",
    "declared_texts",
    "edited_fields",
    "enabled_twins",
    "is_no_longer_declared",
    "is_still_declared",
    "plan",
    "undeclared_edits",
]
NOTHING_DECLARED = (
    "No jobs are declared with @cron. django-dcron imports cron.py of each app in INSTALLED_APPS."
)
