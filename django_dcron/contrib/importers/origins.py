"""Match the entries of a source with the jobs that were imported from it.

A job stores its source (``import_source``), the entry's key there (``import_key``) and, in
``imported``, the entry's name and values as last imported.

Invariants:

- An entry matches at most one job, and a job at most one entry. So a job that was renamed or moved
  to another namespace, here or there, isn't imported a second time.
- The same key and name match first, then a unique name, then the key. An entry that takes over
  the name of another one therefore also takes over its job.
- A job without an origin matches by its name. A job from another source never matches.
- An entry without a job is *deleted here* if a job with the entry's key was deleted. Otherwise, a
  deleted job with the entry's name counts, if its key belongs to no other such entry, and no other
  entry and no other deleted job has the name. So a deleted job counts for one entry. A job that an
  import created again no longer counts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from django.db import transaction

from django_dcron.contrib.importers.names import (
    name_digest,
    with_distinct_names,
    with_unique_name,
)
from django_dcron.contrib.importers.source_contents import SourceEntry
from django_dcron.db.contention import despite_contention
from django_dcron.db.routing import alias_for
from django_dcron.models import DeletedImport, Job
from django_dcron.utils.batches import in_batches

NAMES_AT_ONCE = 500
LONGEST_KEY = 190


@dataclass(frozen=True, slots=True)
class EntryMatch:
    entry: SourceEntry
    """The entry. Its name and namespace are those of the job, if there is one."""
    source_name: str
    """The entry's name in the source."""
    proposed: str
    """The name of the new job, if no job matches."""
    job: Job | None = None
    name_owner: Job | None = None
    """A job from another source that has the proposed name. Then there is no ``job``."""
    duplicate: Job | None = None
    """A job of another crontab that does the same work. Then there is no ``job``."""
    deletion: int | None = None
    """The key of the ``DeletedImport`` of the entry's job. Then there is no ``job``."""


def stored_key(entry: SourceEntry) -> str:
    """Return the entry's key as a job stores it."""
    key = entry.key or entry.origin
    return key if len(key) <= LONGEST_KEY else f"{key[: LONGEST_KEY - 7]}-{name_digest(key)}"


def stored_source(source: str) -> str:
    longest = Job._meta.get_field("import_source").max_length or LONGEST_KEY
    return source if len(source) <= longest else f"{source[: longest - 7]}-{name_digest(source)}"


def match_entries(
    source_entries: Iterable[SourceEntry], namespace: str, source: str = ""
) -> list[EntryMatch]:
    """Return a match for each entry, in the same order.

    ``source``: empty for an export, whose jobs match by name only.
    """
    entries = list(source_entries)
    named = with_distinct_names(entries)
    pairs = _pairs(entries, imported_jobs_of(source)) if source else [None] * len(entries)
    existing = existing_jobs(named, namespace)
    matches = [
        _match_job(entry, new, job)
        if job is not None
        else _match_by_name(entry, new, namespace, source, existing)
        for entry, new, job in zip(entries, named, pairs, strict=True)
    ]
    if not source:
        return matches
    return _with_deletions(_rename_clashing(matches, namespace, source), source)


def imported_jobs_of(source: str) -> list[Job]:
    return list(Job.objects.using(alias_for(Job)).filter(import_source=stored_source(source)))


def imported_zone(source: str) -> str:
    """Return the time zone that all jobs of the source had when imported. Empty if none."""
    values = [(job.imported or {}).get("values", {}) for job in imported_jobs_of(source)]
    zones = {str(each["timezone"]) for each in values if each.get("timezone")}
    return zones.pop() if len(zones) == 1 else ""


def _with_deletions(matches: list[EntryMatch], source: str) -> list[EntryMatch]:
    deleted = DeletedImport.objects.using(alias_for(DeletedImport)).filter(
        import_source=stored_source(source)
    )
    deletions = list(deleted.values_list("import_key", "entry_name", "pk"))
    by_key = {key: pk for key, _name, pk in deletions}
    keys = {stored_key(match.entry) for match in matches if match.job is None}
    by_name = _unique((name, pk) for key, name, pk in deletions if key not in keys)
    times = Counter(match.source_name for match in matches)

    def deletion_of(match: EntryMatch) -> int | None:
        named = by_name.get(match.source_name) if times[match.source_name] == 1 else None
        return by_key.get(stored_key(match.entry)) or named

    return [
        match if match.job is not None else replace(match, deletion=deletion_of(match))
        for match in matches
    ]


def forget_deletions(keys: Collection[int]) -> None:
    """Remove the rows of deleted jobs that an import creates again.

    Otherwise, their names would count twice when these jobs are deleted, too.
    """
    if keys:
        DeletedImport.objects.using(alias_for(DeletedImport)).filter(pk__in=keys).delete()


def store_left_to_source(source: str, deletions: Collection[int]) -> None:
    """Store for the deleted jobs of the source whether the source does their work from now on.

    If it does, a deleted job that is restored waits for the handover. ``deletions``: the keys of
    these jobs' ``DeletedImport``. The source does no other work.
    """
    using = alias_for(DeletedImport)
    rows = DeletedImport.objects.using(using).filter(import_source=stored_source(source))

    def store() -> None:
        with transaction.atomic(using=using):
            rows.update(left_to_source=False)
            for batch in in_batches([*deletions], NAMES_AT_ONCE):
                rows.filter(pk__in=batch).update(left_to_source=True)

    despite_contention(store, using)


def existing_jobs(entries: list[SourceEntry], namespace: str) -> dict[tuple[str, str], Job]:
    """Return the existing jobs with the names of ``entries``, by namespace and name."""
    names = defaultdict(list)
    for entry in entries:
        names[entry.namespace or namespace].append(entry.name)
    rows = Job.objects.using(alias_for(Job))
    return {
        (job.namespace, job.name): job
        for jobs_namespace, names_there in names.items()
        for batch in in_batches(names_there, NAMES_AT_ONCE)
        for job in rows.filter(namespace=jobs_namespace, name__in=batch)
    }


def _pairs(entries: list[SourceEntry], jobs: list[Job]) -> list[Job | None]:
    pairs: list[Job | None] = [None] * len(entries)
    for entry_key, job_key in _IDENTITIES:
        free = [number for number, job in enumerate(pairs) if job is None]
        paired = {job.pk for job in pairs if job is not None}
        by_key = _unique((job_key(job), job) for job in jobs if job.pk not in paired)
        for key, number in _unique((entry_key(entries[n]), n) for n in free).items():
            pairs[number] = by_key.get(key)
    return pairs


def _name_when_imported(job: Job) -> str:
    return str((job.imported or {}).get("name", job.name))


_IDENTITIES: tuple[tuple[Callable[[SourceEntry], Hashable], Callable[[Job], Hashable]], ...] = (
    (
        lambda entry: (stored_key(entry), entry.name),
        lambda job: (job.import_key, _name_when_imported(job)),
    ),
    (lambda entry: entry.name, _name_when_imported),
    (stored_key, lambda job: job.import_key),
)


def _unique(items: Iterable[tuple[Hashable, Any]]) -> dict[Hashable, Any]:
    """Return the items whose key appears once."""
    listed = list(items)
    times = Counter(key for key, _item in listed)
    return {key: item for key, item in listed if times[key] == 1}


def _match_job(entry: SourceEntry, named: SourceEntry, job: Job) -> EntryMatch:
    named_entry = replace(named, name=job.name, namespace=job.namespace)
    return EntryMatch(named_entry, entry.name, named.name, job)


def _match_by_name(
    entry: SourceEntry,
    named: SourceEntry,
    namespace: str,
    source: str,
    existing: dict[tuple[str, str], Job],
) -> EntryMatch:
    job = existing.get((named.namespace or namespace, named.name))
    if job is None or not source or not job.import_source:
        return EntryMatch(named, entry.name, named.name, job)
    return EntryMatch(named, entry.name, named.name, name_owner=job)


def _rename_clashing(matches: list[EntryMatch], namespace: str, source: str) -> list[EntryMatch]:
    """Rename new entries whose name is taken by the job of another entry of the source."""
    clashes = [
        match.name_owner is not None and match.name_owner.import_source == stored_source(source)
        for match in matches
    ]
    if not any(clashes):
        return matches
    renamed = [
        with_unique_name(match.entry) if clashing else match.entry
        for match, clashing in zip(matches, clashes, strict=True)
    ]
    existing = existing_jobs(
        [entry for entry, clashing in zip(renamed, clashes, strict=True) if clashing], namespace
    )
    return [
        EntryMatch(
            entry,
            match.source_name,
            entry.name,
            name_owner=existing.get((entry.namespace or namespace, entry.name)),
        )
        if clashing
        else match
        for match, entry, clashing in zip(matches, renamed, clashes, strict=True)
    ]
