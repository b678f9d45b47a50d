"""Refuse the changes whose ``after`` names a job that exists neither in code nor in the database.

The save of such a job would fail. Other processes create declared jobs at the same time, so a job
that the code declares counts as existing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from django_dcron import targets
from django_dcron.db.routing import alias_for
from django_dcron.jobs.sync.changes import ChangeKind, SyncChange
from django_dcron.models import Job
from django_dcron.policies.job_labels import label_of, split_label
from django_dcron.utils.suggestions import did_you_mean

UNKNOWN_PREDECESSOR = "after: There is no job "
WITH_NAMESPACE = " To name a job outside the namespace default, write namespace/name."


def refuse_unknown_predecessors(changes: Sequence[SyncChange]) -> list[SyncChange]:
    """Return the changes, of which those that name an unknown job in ``after`` are invalid."""
    declared = {declaration.key for declaration in targets.declarations()}
    unknown = {
        change.key: labels
        for change in changes
        if change.is_difference and (labels := _undeclared(change, declared))
    }
    if not unknown:
        return list(changes)
    stored = set(Job.objects.using(alias_for(Job)).values_list("namespace", "name"))
    names = {label_of(*key) for key in declared | stored}
    refused = []
    for change in changes:
        missing = [each for each in unknown.get(change.key, ()) if split_label(each) not in stored]
        if change.is_difference and missing:
            details = tuple(_why_unknown(each, names - {change.job}) for each in missing)
            change = replace(change, kind=ChangeKind.INVALID, details=details, values={})
        refused.append(change)
    return refused


def _undeclared(change: SyncChange, declared: set[tuple[str, str]]) -> list[str]:
    return sorted(
        label for label in change.values.get("after", ()) if split_label(label) not in declared
    )


def _why_unknown(label: str, names: set[str]) -> str:
    return f"{UNKNOWN_PREDECESSOR}{label!r}.{did_you_mean(label, names) or WITH_NAMESPACE}"
