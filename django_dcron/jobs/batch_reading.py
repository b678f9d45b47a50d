"""Read what the decisions about a batch of saved jobs need, in a fixed number of statements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from django.core.exceptions import ValidationError

from django_dcron.db.now import database_now
from django_dcron.jobs import chains
from django_dcron.jobs.chains import Edges, Key, StoredLinks
from django_dcron.jobs.locking import changed_by_another, lock_cursors, lock_jobs
from django_dcron.jobs.python_values import convert_python_values
from django_dcron.models import Calendar, Cursor, Job, Limit
from django_dcron.policies.job_labels import split_label

NAME = ("namespace", "name")
"""The fields of the unique constraint on names."""

IMPORT_KEY = ("import_source", "import_key")
"""The fields of the unique constraint on import keys."""

ORIGIN = (*IMPORT_KEY, "imported")
"""The fields that an import writes, and that other saves of a stored job don't change."""

Origin = tuple[Any, ...]
"""The values of ``ORIGIN``."""

Errors = dict[str, list[ValidationError]]
"""The problems of a job by field."""


@dataclass(frozen=True, slots=True)
class JobToSave:
    job: Job
    expected_version: int | None = None
    """The version that the change is based on. None: the instance's."""
    expected_origin: Origin | None = None
    """The origin that an import replaces. None: the stored job keeps its origin.

    If another import has changed the origin meanwhile, the job is refused with ``Conflict``.
    """
    is_handover: bool = False
    """Whether the end of a pause may start the job although it waits for a handover."""
    reason: str = ""
    """The reason of the audit entry."""
    phase: datetime | None = None
    """An occurrence from which ``@every`` counts, if the job is new. None: it counts from now."""

    @property
    def key(self) -> int | None:
        """The key of the stored job. None: the job is new."""
        return self.job.pk

    @property
    def version(self) -> int:
        return self.job.version if self.expected_version is None else self.expected_version


def origin_of(job: Job) -> Origin:
    return tuple(getattr(job, name) for name in ORIGIN)


def check_origin(row: Job, expected: Origin | None) -> None:
    """Raise ``Conflict`` if another import has changed the origin. None accepts any origin.

    The key may be missing, because an import takes it away if the source gives it to another entry.
    """
    if expected is None:
        return
    source, _key, imported = expected
    if origin_of(row) not in (expected, (source, None, imported)):
        raise changed_by_another(row)


def keys_of(changes: Iterable[JobToSave]) -> set[int]:
    """Return the keys of the stored jobs."""
    return {change.key for change in changes if change.key is not None}


@dataclass(slots=True)
class UniqueValueOwners:
    """Which job has which value of a unique constraint, for the values that the batch needs."""

    fields: tuple[str, ...]
    ids: dict[Key, int]
    released: set[Key] = field(default_factory=set)
    """Values that accepted jobs of the batch no longer have."""

    def value_of(self, job: Job) -> Any:
        value = tuple(getattr(job, name) for name in self.fields)
        return None if None in value else value

    def is_taken(self, job: Job) -> bool:
        owner = self.ids.get(self.value_of(job))
        return owner is not None and owner != job.pk

    def move(self, before: Job | None, job: Job, owner: int) -> None:
        """Give ``owner`` the value of ``job``, and release the value of ``before``."""
        value = self.value_of(job)
        if before is not None and (old := self.value_of(before)) not in (None, value):
            self.released.add(old)
            if self.ids.get(old) == owner:
                del self.ids[old]
        if value is not None:
            self.ids[value] = owner


@dataclass(slots=True)
class StoredRows:
    """The rows that decisions about a batch depend on. Each decision updates them for the next."""

    names: UniqueValueOwners
    import_keys: UniqueValueOwners
    links: Mapping[int, StoredLinks]
    edges: Edges
    jobs: Mapping[int, Job]
    """The locked rows."""
    cursors: Mapping[int, Cursor]
    now: datetime


def clean_each(jobs: Sequence[Job], using: str) -> list[Errors]:
    """Validate each job without regard to other jobs."""
    converted: list[tuple[Job, Errors]] = [(job, convert_python_values(job)) for job in jobs]
    names = {job.calendar_id for job, errors in converted if "calendar" not in errors} - {None}
    calendars = Calendar.objects.using(using).in_bulk(names) if names else {}
    limit_names = {job.limit_id for job, errors in converted if "limit" not in errors} - {None}
    limits = Limit.objects.using(using).in_bulk(limit_names) if limit_names else {}
    errors_of_jobs: list[Errors] = []
    for job, errors in converted:
        if job.enabled:
            job.pause_reason, job.paused_until = "", None
        is_loaded = "calendar" in errors or Job._meta.get_field("calendar").is_cached(job)
        if not is_loaded and job.calendar_id in calendars:
            job.calendar = calendars[job.calendar_id]
        clean_fields = partial(
            job.clean_fields, {*errors}, known_calendars=calendars, known_limits=limits
        )
        for check in (clean_fields, job.clean):
            try:
                check()
            except ValidationError as error:
                errors = error.update_error_dict(errors)
        errors_of_jobs.append(errors)
    return errors_of_jobs


def read_stored(changes: Sequence[JobToSave], errors: Sequence[Errors], using: str) -> StoredRows:
    """Read what the decisions need, and lock the rows."""
    keys = keys_of(changes)
    cleaned = [(change.job, job_errors) for change, job_errors in zip(changes, errors, strict=True)]
    links = chains.read_links(keys, using)
    rechained = [
        change
        for change, job_errors in zip(changes, errors, strict=True)
        if not job_errors and affects_chains(change.job, links)
    ]
    named = {split_label(label) for change in rechained for label in change.job.after}
    own = {
        (job.namespace, job.name) for job, job_errors in cleaned if not job_errors.keys() & {*NAME}
    }
    cursors = lock_cursors(keys, using)
    chained: set[int] = set()
    if rechained:
        ids = chains.read_ids(named, using)
        predecessors = {ids[key] for key in named if key in ids}
        chained = chains.connected_jobs(predecessors | keys_of(rechained), chains.read_edges(using))
    locked = lock_jobs(keys | chained, using)
    _keep_origins(changes, locked)
    return StoredRows(
        names=UniqueValueOwners(NAME, chains.read_ids(own | named, using)),
        import_keys=UniqueValueOwners(IMPORT_KEY, _import_keys(cleaned, using)),
        links=links,
        edges=chains.read_edges(using) if rechained else {},
        jobs=locked,
        cursors=cursors,
        now=database_now(using),
    )


def _keep_origins(changes: Iterable[JobToSave], stored: Mapping[int, Job]) -> None:
    """Set the stored origins, because an instance may have been read before an import."""
    for change in changes:
        row = stored.get(change.job.pk)
        if row is not None and change.expected_origin is None:
            for name in ORIGIN:
                setattr(change.job, name, getattr(row, name))


def affects_chains(job: Job, links: Mapping[int, StoredLinks]) -> bool:
    if job._state.adding:
        return bool(job.after)
    return chains.changes_links(job, links.get(job.pk))


def _import_keys(cleaned: Sequence[tuple[Job, Errors]], using: str) -> dict[Key, int]:
    keys = {
        job.import_key for job, job_errors in cleaned if not job_errors.keys() & {*IMPORT_KEY}
    } - {None}
    rows = Job.objects.using(using).filter(import_key__in=keys) if keys else Job.objects.none()
    owners = rows.values_list("pk", "import_source", "import_key")
    return {(source, key): pk for pk, source, key in owners}
