"""Refuse the changes whose ``after`` names a job that doesn't exist after the sync.

The save of such a job would fail. Other processes create declared jobs at the same time, so a job
that the code declares counts as existing, unless its own creation is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from django_dcron import targets
from django_dcron.db.routing import alias_for
from django_dcron.jobs.sync.changes import ChangeKind, SyncChange
from django_dcron.models import Job
from django_dcron.policies.chains import in_dependency_order
from django_dcron.policies.job_labels import label_of, split_label
from django_dcron.utils.suggestions import did_you_mean

WITH_NAMESPACE = " To name a job outside the namespace default, write namespace/name."


def refuse_unknown_predecessors(changes: Sequence[SyncChange]) -> list[SyncChange]:
    """Return the changes, of which those that name a missing job in ``after`` are invalid."""
    declared = {declaration.key for declaration in targets.declarations()}
    refused = {change.key for change in changes if change.kind is ChangeKind.INVALID}
    after = {
        change.key: {split_label(label): label for label in change.values.get("after", ())}
        for change in changes
        if change.is_difference
    }
    named = {key for predecessors in after.values() for key in predecessors}
    if named <= declared and not named & refused:
        return list(changes)
    stored = set(Job.objects.using(alias_for(Job)).values_list("namespace", "name"))
    names = {label_of(*key) for key in declared | stored}
    details, unknown = {}, set()
    for key in in_dependency_order(after):
        found = tuple(
            f"after: waits for {label}, which is refused"
            if earlier in declared
            else _why_unknown(label, names - {label_of(*key)})
            for earlier, label in sorted(after[key].items())
            if earlier not in stored and (earlier in refused or earlier not in declared)
        )
        if found:
            details[key] = found
            refused.add(key)
        if not after[key].keys() <= declared | stored:
            unknown.add(key)
    return [
        replace(
            change,
            kind=ChangeKind.INVALID,
            details=details[change.key],
            values={},
            names_unknown_job=change.key in unknown,
            waits_for_refused_job=change.key not in unknown,
        )
        if change.is_difference and change.key in details
        else change
        for change in changes
    ]


def _why_unknown(label: str, names: set[str]) -> str:
    return f"after: There is no job {label!r}.{did_you_mean(label, names) or WITH_NAMESPACE}"
