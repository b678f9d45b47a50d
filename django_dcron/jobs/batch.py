"""Save a batch of jobs in one transaction, in a fixed number of statements.

``save_batch`` reads what the decisions need, decides about each job in turn on plain data, and
writes the accepted jobs. The results are those of a save of each job in turn. The decision about a
job considers the names and links of the accepted jobs before it.

Invariants:

- A refused job changes nothing, and neither does a batch that raises an exception. Their instances
  keep their old keys, versions and states, so that they can be saved again.
- A job starts a new batch if it depends on an earlier job in a way that one statement can't save.
  For example, both are the same row, the job takes a name or an import key that the earlier job
  gives up, or it renames a job that others follow.
- Rows are locked in the order cursors, jobs, runs, statistics (``locking``).
- ``pre_save`` and ``post_save`` of ``Job`` are sent for each job, as by ``Job.save``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.db import transaction
from django.db.models import F, Field
from django.db.models.signals import post_save, pre_save
from django.utils import timezone
from django.utils.translation import gettext

from django_dcron import targets
from django_dcron.db.updates import same_value, update_each
from django_dcron.exceptions import Conflict
from django_dcron.jobs import chains, placement
from django_dcron.jobs.audit.entries import FOLLOWED_RENAMED
from django_dcron.jobs.audit.recording import record_saves
from django_dcron.jobs.batch_reading import (
    Errors,
    JobToSave,
    StoredRows,
    affects_chains,
    check_origin,
    clean_each,
    read_stored,
)
from django_dcron.jobs.batching import BatchResult
from django_dcron.jobs.chains import Follows
from django_dcron.jobs.definitions import definition_id, store_definitions
from django_dcron.jobs.locking import check_version
from django_dcron.jobs.placement import Placement
from django_dcron.models import Job
from django_dcron.models.job_validation import pause_end_errors
from django_dcron.policies.job_labels import label_of, split_label

MAX_DUE = 5_000
"""A batch ends once its changes create about this many runs for earlier due occurrences."""
SAVED_FIELDS = [
    each
    for each in Job._meta.concrete_fields
    if not each.primary_key and each.name not in ("version", "updated_at")
]
"""The columns that a save writes if they have changed."""


@dataclass(frozen=True, slots=True)
class OriginalState:
    """An instance before the save, to restore it."""

    job: Job
    key: Any
    version: int
    enabled: bool
    pause_reason: str
    is_adding: bool

    @classmethod
    def of(cls, job: Job) -> OriginalState:
        return cls(job, job.pk, job.version, job.enabled, job.pause_reason, job._state.adding)

    def restore(self) -> None:
        self.job.version = self.version
        self.job.enabled, self.job.pause_reason = self.enabled, self.pause_reason
        if self.key is None:
            self.job.pk, self.job._state.adding = None, self.is_adding


@dataclass(slots=True)
class AcceptedJob:
    """What to write for one job."""

    job: Job
    before: Job | None
    """The stored job. None: it is new."""
    id_in_chains: int
    """The job's key, or a negative number until it has one."""
    follows: Follows | None
    """The jobs to follow, if the links change."""
    placed: Placement
    reason: str
    """The reason of the audit entry."""


def save_batch(changes: Sequence[JobToSave], using: str) -> BatchResult:
    """Save ``changes`` in one transaction, up to the first one that needs another batch.

    The changes from there on need another call. If there is only one change, raises its error
    instead of returning it.
    """
    jobs = [change.job for change in changes]
    originals = [OriginalState.of(job) for job in jobs]
    errors = clean_each(jobs, using)
    try:
        with transaction.atomic(using=using):
            batch = _Batch(read_stored(changes, errors, using), changes, errors, using)
            done = batch.decide()
            batch.write()
    except BaseException:
        restore_originals(originals)
        raise
    restore_originals(originals[position] for position in batch.refused)
    return BatchResult(done, batch.refused)


def restore_originals(originals: Iterable[OriginalState]) -> None:
    for original in originals:
        original.restore()


class _Batch:
    """The decisions about the jobs of a batch, in their order."""

    def __init__(
        self,
        stored: StoredRows,
        changes: Sequence[JobToSave],
        errors: Sequence[Errors],
        using: str,
    ) -> None:
        self.stored = stored
        self.changes = changes
        self.errors = errors
        self.using = using
        self.accepted: list[AcceptedJob] = []
        self.refused: dict[int, Exception] = {}
        self._jobs: dict[int, Job] = {}
        """The accepted jobs by ``id_in_chains``."""
        self._followed: set[int] = set()
        """The ids in chains of the jobs that accepted jobs are about to follow."""
        self._received: set[int] = set()
        """The positions of the jobs for which receivers got ``pre_save``."""
        self._instances: set[int] = set()
        """The ``id()`` of each instance so far."""
        self._keys: set[int] = set()
        """The key of each stored job so far."""

    def decide(self) -> int:
        """Decide about the jobs in turn.

        Returns the number of jobs decided. The other jobs need another batch.
        """
        due = 0
        for position, change in enumerate(self.changes):
            if position and self._needs_another_batch(position):
                return position
            renames = self._renames(change.job)
            self._instances.add(id(change.job))
            self._keys |= {change.job.pk} - {None}
            try:
                accepted = self._accept(position, change)
            except (ValidationError, Conflict) as error:
                # Only a rollback undoes what receivers of the signal have written.
                if len(self.changes) == 1 or position in self._received:
                    raise
                self.refused[position] = error
                continue
            due += len(accepted.placed.due)
            if renames or due >= MAX_DUE:
                return position + 1
        return len(self.changes)

    def _needs_another_batch(self, position: int) -> bool:
        """Return whether one statement can't save both the job and an earlier one.

        The job is the same row again, or depends on a name or key that the batch changes.
        """
        job, errors = self.changes[position].job, self.errors[position]
        if id(job) in self._instances or job.pk in self._keys:
            return True
        if errors:
            return False
        names, row = self.stored.names, self.stored.jobs.get(job.pk)
        renamed = row is not None and names.value_of(row) != names.value_of(job)
        return (
            self._renames(job)
            or (renamed and job.pk in self._followed)
            or names.value_of(job) in names.released
            or self.stored.import_keys.value_of(job) in self.stored.import_keys.released
            or any(split_label(label) in names.released for label in job.after)
        )

    def _renames(self, job: Job) -> bool:
        return chains.changes_name(job, self.stored.links.get(job.pk))

    def _accept(self, position: int, change: JobToSave) -> AcceptedJob:
        """Decide about one job. Raises ``ValidationError`` or ``Conflict``."""
        job, stored, before = change.job, self.stored, None
        self._require_valid(job, self.errors[position])
        is_rechained = affects_chains(job, stored.links)
        id_in_chains = -position - 1 if change.key is None else change.key
        if change.key is not None:
            before = check_version(stored.jobs.get(change.key), change.version)
            check_origin(before, change.expected_origin)
            job.version = change.version + 1
            _require_declared_name(job, before)
            may_start = change.is_handover and before.awaits_handover
            if not may_start and (found := pause_end_errors(job, before)):
                raise ValidationError(found)
            if placement.starts_again(before, job, stored.now):
                job.enabled, job.pause_reason = True, ""
        sent = {"instance": job, "raw": False, "using": self.using, "update_fields": None}
        if pre_save.send(sender=type(job), **sent):
            self._received.add(position)
        follows, followed_before = None, stored.edges.get(id_in_chains, set())
        if is_rechained:
            jobs_of = partial(self._jobs_of, present={id_in_chains: job})
            follows = chains.resolve_follows(
                job, id_in_chains, stored.names.ids, stored.edges, jobs_of
            )
        cursor = stored.cursors.get(id_in_chains)
        placed = placement.decide_placement(job, cursor, stored.now, before, phase=change.phase)
        try:
            placement.require_occurrence(job, placed.cursor)
        except ValidationError:
            stored.edges[id_in_chains] = followed_before
            raise
        accepted = AcceptedJob(job, before, id_in_chains, follows, placed, change.reason)
        self._remember(accepted)
        return accepted

    def _remember(self, accepted: AcceptedJob) -> None:
        """Let the decisions about later jobs consider this one."""
        self.accepted.append(accepted)
        self._jobs[accepted.id_in_chains] = accepted.job
        self._followed |= {*(accepted.follows or ())}
        for owners in (self.stored.names, self.stored.import_keys):
            owners.move(accepted.before, accepted.job, accepted.id_in_chains)

    def _require_valid(self, job: Job, errors: Errors) -> None:
        """Complete the validation, as ``Job.full_clean`` does. Raises ``ValidationError``."""
        excluded = {*errors} - {NON_FIELD_ERRORS}
        try:
            job.validate_unique(excluded)
        except ValidationError as error:
            errors = error.update_error_dict(errors)
        for owners in (self.stored.names, self.stored.import_keys):
            if not excluded & {*owners.fields} and owners.is_taken(job):
                taken = job.unique_error_message(Job, owners.fields)
                errors = taken.update_error_dict(errors)
        if errors:
            raise ValidationError(errors)

    def _jobs_of(self, cycle: Sequence[int], present: Mapping[int, Job]) -> dict[int, Job]:
        """Return the jobs of a cycle by their ids in chains."""
        known = {**self._jobs, **present}
        others = Job.objects.using(self.using).in_bulk({*cycle} - {*known})
        return {each: known.get(each) or others[each] for each in cycle}

    def write(self) -> None:
        """Write the accepted jobs with their links and cursors."""
        self._write_jobs()
        changed = {
            each.job.pk: {
                followed if followed > 0 else self._jobs[followed].pk: on
                for followed, on in each.follows.items()
            }
            for each in self.accepted
            if each.follows is not None
        }
        chains.write_links(changed, self.using)
        relinked: list[tuple[Job, Job]] = []
        for each in self.accepted:
            if each.before is not None and self._renames(each.job):
                old = (each.before.namespace, each.before.name)
                new = label_of(each.job.namespace, each.job.name)
                relinked += chains.rename_in_links(each.job.pk, old, new, self.using)
        placement.write_placements(
            [each.placed for each in self.accepted], self.stored.now, self.using
        )
        record_saves(
            [(each.job, each.before) for each in self.accepted],
            self.using,
            {each.job.pk: each.reason for each in self.accepted},
        )
        record_saves(relinked, self.using, {job.pk: FOLLOWED_RENAMED for job, _before in relinked})
        store_definitions(
            [
                each.job
                for each in self.accepted
                if each.before is None or definition_id(each.before) != definition_id(each.job)
            ]
        )

    def _write_jobs(self) -> None:
        rows = Job.objects.using(self.using)
        if stored := [each for each in self.accepted if each.before is not None]:
            now = timezone.now()
            update_each(
                rows,
                [each.job for each in stored],
                [field for field in SAVED_FIELDS if _differs(field, stored)],
                version=F("version") + 1,
                updated_at=now,
            )
            for each in stored:
                each.job.updated_at = now
                each.job._state.db, each.job._state.adding = self.using, False
        if new := [each.job for each in self.accepted if each.before is None]:
            rows.bulk_create(new)
            self._read_keys([job for job in new if job._state.adding])
        for each in self.accepted:
            post_save.send(
                sender=type(each.job),
                instance=each.job,
                created=each.before is None,
                update_fields=None,
                raw=False,
                using=self.using,
            )

    def _read_keys(self, inserted: Sequence[Job]) -> None:
        """Set the keys of the inserted jobs if the database hasn't returned them."""
        ids = chains.read_ids({(job.namespace, job.name) for job in inserted}, self.using)
        for job in inserted:
            job.pk = ids[job.namespace, job.name]
            job._state.db, job._state.adding = self.using, False


def _require_declared_name(job: Job, before: Job) -> None:
    """Refuse another name for a job that code declares, because a sync would create it again."""
    key = (before.namespace, before.name)
    if before.declared is None or (job.namespace, job.name) == key:
        return
    targets.discovery_problem()  # imports task modules, which declare jobs
    if any(declaration.key == key for declaration in targets.declarations()):
        text = gettext(
            "The code declares this job as %(name)s with @cron, and the next sync would create it "
            "again. Change the name in the code instead. To keep the history, delete the job that "
            "the sync then creates, and rename this one."
        )
        field = "name" if job.name != before.name else "namespace"
        error = ValidationError(text, code="declared", params={"name": str(before)})
        raise ValidationError({field: error})


def _differs(field: Field[Any, Any], stored: Sequence[AcceptedJob]) -> bool:
    name = field.attname
    return any(
        not same_value(field, getattr(each.job, name), getattr(each.before, name))
        for each in stored
    )
