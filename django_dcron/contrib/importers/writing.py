"""Apply a comparison: save the jobs in batches, after the calendars.

If a job's import key belongs to another job, the job is saved separately.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.db import IntegrityError, OperationalError, transaction

from django_dcron import control
from django_dcron.contrib.importers.entry_plans import EntryPlan, ImportOutcome, has_work_of
from django_dcron.contrib.importers.origins import forget_deletions
from django_dcron.contrib.importers.source_contents import unexpected_error_text
from django_dcron.db.contention import despite_contention
from django_dcron.db.routing import alias_for
from django_dcron.db.updates import update_each
from django_dcron.exceptions import BulkSaveError, Conflict
from django_dcron.jobs.audit.entries import IMPORTED
from django_dcron.jobs.batch_reading import ORIGIN, JobToSave, Origin, check_origin, origin_of
from django_dcron.jobs.batching import REFUSALS
from django_dcron.jobs.locking import check_version, lock_all, lock_jobs
from django_dcron.jobs.pausing import is_left_to_source
from django_dcron.jobs.placement import is_retimed
from django_dcron.jobs.saving import SAVED_AT_ONCE, TAKEN, save_changes
from django_dcron.jobs.sync.changes import messages_of
from django_dcron.models import Cursor, Job, Run
from django_dcron.models.job_states import ARRIVED_PAUSED
from django_dcron.policies.chains import in_dependency_order
from django_dcron.policies.job_labels import JobKey, split_label
from django_dcron.policies.lifecycle import State, Trigger
from django_dcron.utils.batches import in_batches

CHANGED_MEANWHILE = "changed or deleted by someone else during the import; run the import again"
CREATED_MEANWHILE = "created by someone else during the import; run the import again"
CONTINUES = "handover: continues after the last run in the source"
"""The reason of a pause that the same transaction ends. The audit log shows it."""
ORIGIN_FIELDS = [field for field in Job._meta.concrete_fields if field.name in ORIGIN]


def apply_entry_plans(plans: Iterable[EntryPlan]) -> Iterator[EntryPlan]:
    """Save the jobs, and yield each one when its batch is done.

    A job that can no longer be saved is refused.
    """
    ordered = _predecessors_first(list(plans))
    chained = [plan for plan in ordered if plan.existing is not None and plan.existing.after]
    for chunk in in_batches(ordered, SAVED_AT_ONCE):
        taken = _taken_keys(chunk)
        batch: list[EntryPlan] = []
        for plan in chunk:
            if _key_of(plan) not in taken and not _renames(plan):
                batch.append(plan)
                continue
            yield from _write_batch(batch)
            batch = []
            written = _write(plan)
            if written.job is not None and _renames(plan):
                _accept_new_name(plan, chained)
            yield written
        yield from _write_batch(batch)


def _renames(plan: EntryPlan) -> bool:
    job, before = plan.job, plan.existing
    return job is not None and before is not None and _name_of(job) != _name_of(before)


def _name_of(job: Job) -> JobKey:
    return JobKey(job.namespace, job.name)


def _accept_new_name(renamed: EntryPlan, plans: Iterable[EntryPlan]) -> None:
    """Base the plans for the followers of a renamed job on what the rename has written.

    A follower that someone else changed, too, keeps its version, so its save will be refused.
    """
    assert renamed.existing is not None  # noqa: S101 (for the type checker)
    assert renamed.job is not None  # noqa: S101 (for the type checker)
    old_name, new_name = _name_of(renamed.existing), _name_of(renamed.job)
    followers = {
        plan.existing.pk: (plan.existing, plan.job)
        for plan in plans
        if plan.existing is not None and old_name in map(split_label, plan.existing.after)
    }
    for row in Job.objects.using(alias_for(Job)).filter(pk__in=followers):
        before, after = followers[row.pk]
        links = _links_of(before)
        links[new_name] = links.pop(old_name)
        if row.version == before.version + 1 and _links_of(row) == links:
            for job in (before, after):
                if job is not None:
                    job.version, job.after = row.version, row.after


def _links_of(job: Job) -> dict[JobKey, str]:
    return {split_label(label): on for label, on in job.after.items()}


def _key_of(plan: EntryPlan) -> tuple[str, str | None]:
    job = plan.job
    return (job.import_source, job.import_key) if job is not None else ("", None)


def _taken_keys(plans: Sequence[EntryPlan]) -> set[tuple[str, str | None]]:
    """Return the import keys of the plans that another job or another plan has, too."""
    job_ids: dict[tuple[str, str | None], int | None] = {}
    taken = set()
    for plan in plans:
        if plan.job is not None and plan.job.import_key is not None:
            if _key_of(plan) in job_ids:
                taken.add(_key_of(plan))
            job_ids[_key_of(plan)] = plan.job.pk
    keys = {key for _source, key in job_ids}
    rows = Job.objects.using(alias_for(Job)).filter(import_key__in=keys) if keys else ()
    return taken | {
        (job.import_source, job.import_key)
        for job in rows
        if job_ids.get((job.import_source, job.import_key), job.pk) != job.pk
    }


def _write_batch(plans: Sequence[EntryPlan]) -> Iterator[EntryPlan]:
    to_save = [plan for plan in plans if plan.job is not None]
    if not any(plan.ran_until or plan.deletion or _begins_at_next_due(plan) for plan in to_save):
        yield from _write_changes(plans)
    elif len(plans) == 1:
        yield _write(plans[0])
    elif _error_of(partial(_save, to_save)) is None:
        yield from plans
    else:
        # A refused job must not stay paused until its source's last run, and stays deleted.
        middle = len(plans) // 2
        yield from _write_batch(plans[:middle])
        yield from _write_batch(plans[middle:])


def _write_changes(plans: Sequence[EntryPlan]) -> Iterator[EntryPlan]:
    origins = {number: plan for number, plan in enumerate(plans) if _changes_only_origin(plan)}
    jobs = {
        number: _change_of(plan, plan.job)
        for number, plan in enumerate(plans)
        if plan.job is not None and number not in origins
    }
    errors = save_changes(jobs.values(), keep_going=True) if jobs else {}
    refused = dict(zip(jobs, map(errors.get, range(len(jobs))), strict=True))
    if origins and _error_of(partial(_save, [*origins.values()])) is None:
        origins = {}  # all are written
    for number, plan in enumerate(plans):
        error = refused.get(number)
        if number in origins:
            yield _write(plan)
        else:
            yield plan if error is None else _refusal(plan, error)


def _changes_only_origin(plan: EntryPlan) -> bool:
    """Return whether only the job's key in the source or the stored values change."""
    job, before = plan.job, plan.existing
    if job is None or before is None or plan.changes or plan.ran_until is not None:
        return False
    return job.import_source == before.import_source


def _replaced_origin(plan: EntryPlan) -> Origin | None:
    """Return the origin that the import read, if the plan changes it.

    An import of an export changes none.
    """
    job, before = plan.job, plan.existing
    if job is None or before is None or origin_of(job) == origin_of(before):
        return None
    return origin_of(before)


def _predecessors_first(plans: list[EntryPlan]) -> list[EntryPlan]:
    """Sort the plans so that each job comes after its predecessors, which must exist first."""
    before: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for plan in plans:
        labels = plan.job.after if plan.job else ()
        before.setdefault((plan.namespace, plan.name), []).extend(map(split_label, labels))
    rank = {key: number for number, key in enumerate(in_dependency_order(before))}
    return sorted(plans, key=lambda plan: rank[plan.namespace, plan.name])


def _write(plan: EntryPlan) -> EntryPlan:
    error = _error_of(partial(_save, [plan], release_keys=True))
    return plan if error is None else _refusal(plan, error)


def _refusal(plan: EntryPlan, error: Exception) -> EntryPlan:
    existing, reasons = plan.existing, reasons_of(error)
    if existing is None and _is_taken(error):
        existing, reasons = _new_job_with_its_work(plan), (CREATED_MEANWHILE,)
    return replace(
        plan,
        outcome=ImportOutcome.REFUSED,
        reasons=reasons,
        changes={},
        kept={},
        job=None,
        existing=existing,
        is_write_refused=True,
    )


def _new_job_with_its_work(plan: EntryPlan) -> Job | None:
    """Return the job that took the entry's name during the import, if it does the entry's work."""
    jobs = Job.objects.using(alias_for(Job))
    taken = jobs.filter(namespace=plan.namespace, name=plan.name).first()
    return taken if taken is not None and has_work_of(plan, taken) else None


def _is_taken(error: Exception) -> bool:
    """Return whether a unique value of the job belongs to another job."""
    if not isinstance(error, ValidationError):
        return isinstance(error, IntegrityError)
    return any(each.code in TAKEN for each in error.error_dict.get(NON_FIELD_ERRORS, ()))


def _save(plans: Sequence[EntryPlan], *, release_keys: bool = False) -> None:
    """Save the jobs of the plans, or none. Raises ``BulkSaveError``.

    A job that takes over also runs the occurrences since the source's last run. An interval also
    begins on time if it became due after the source was read.
    """
    jobs = despite_contention(partial(_save_all, plans, release_keys=release_keys), alias_for(Job))
    for plan, job in zip(plans, jobs, strict=True):
        vars(plan.job).update(vars(job))


def _save_all(plans: Sequence[EntryPlan], *, release_keys: bool) -> list[Job]:
    """Save copies of the jobs, so that a repetition starts from the same values."""
    using = alias_for(Job)
    jobs = [copy.copy(job) for job in (plan.job for plan in plans) if job is not None]
    with transaction.atomic(using=using):
        if release_keys:
            for job in jobs:
                _release_key(job)
        lock_all({job.pk for job in jobs if not job._state.adding}, using)
        pairs = list(zip(plans, jobs, strict=True))
        _begin_after_the_source(pairs)
        save_changes(_change_of(*pair) for pair in pairs if not _changes_only_origin(pair[0]))
        _write_origins([pair for pair in pairs if _changes_only_origin(pair[0])], using)
        _claim_passed_starts(pairs)
        forget_deletions([plan.deletion for plan in plans if plan.deletion])
        for plan, job in pairs:
            if plan.ran_until is not None and _is_running_shadow(plan):
                _repeat_latest(job, plan.ran_until)
    return jobs


def _change_of(plan: EntryPlan, job: Job) -> JobToSave:
    return JobToSave(job, expected_origin=_replaced_origin(plan), reason=IMPORTED)


def _write_origins(pairs: Sequence[tuple[EntryPlan, Job]], using: str) -> None:
    """Write the origins of locked jobs that don't change otherwise. Raises ``Conflict``.

    The version stays the same and the audit log gets no entry, because only imports read and write
    these columns.
    """
    stored = lock_jobs({job.pk for _plan, job in pairs}, using)
    for plan, job in pairs:
        row = check_version(stored.get(job.pk), job.version)
        check_origin(row, _replaced_origin(plan))
    if pairs:
        update_each(Job.objects.using(using), [job for _plan, job in pairs], ORIGIN_FIELDS)


def _is_running_shadow(plan: EntryPlan) -> bool:
    return plan.existing is not None and plan.existing.enabled


def _begin_after_the_source(pairs: Sequence[tuple[EntryPlan, Job]]) -> None:
    """Save the jobs that start now, as if they had been paused until the source's last run.

    The end of a pause is where the occurrences of a job begin to count. If the entry was retimed
    after its import, the new times count, because the source ran these.
    """
    starting = [
        (plan, job)
        for plan, job in pairs
        if plan.ran_until is not None and not _is_running_shadow(plan)
    ]
    definitions = [_definition_until_start(plan, job) for plan, job in starting]
    paused_jobs = [
        _paused_until(definition, plan.ran_until)
        for definition, (plan, _job) in zip(definitions, starting, strict=True)
    ]
    save_changes(JobToSave(job, is_handover=True, reason=IMPORTED) for job in paused_jobs)
    # A job that has never run here, or its times, may be newer than the source's last run.
    begins: dict[int, datetime] = {}
    for (plan, job), definition, paused in zip(starting, definitions, paused_jobs, strict=True):
        if plan.existing is None:
            vars(job).update(vars(paused), enabled=True, pause_reason="")
        job.version = paused.version
        is_newer = definition is job or definition.pause_reason == ARRIVED_PAUSED
        if plan.ran_until is not None and is_newer:
            begins[job.pk] = plan.ran_until
    cursors = Cursor.objects.using(alias_for(Cursor))
    late = [each for each in cursors.filter(pk__in=begins) if each.placed_at > begins[each.pk]]
    for cursor in late:
        cursor.placed_at = begins[cursor.pk]
    if late:
        update_each(cursors.all(), late, [Cursor._meta.get_field("placed_at")])


def _definition_until_start(plan: EntryPlan, job: Job) -> Job:
    """Return the job whose occurrences since the source's last run count, as it is now or will be.

    A job that has done the work of its entry keeps its own times until now.
    """
    before = plan.existing
    if before is None:
        return job
    return job if is_left_to_source(before) and is_retimed(before, job) else before


def _begins_at_next_due(plan: EntryPlan) -> bool:
    """Return whether the job starts, or is retimed, at the next due time of its entry."""
    job, due = plan.job, plan.entry.next_due
    if job is None or due is None or not job.enabled or job.starts_at != due:
        return False
    return not plan.changes.keys().isdisjoint({"starts_at", "enabled", "target"})


def _claim_passed_starts(pairs: Sequence[tuple[EntryPlan, Job]]) -> None:
    """Make starts due that have passed since the source was read.

    Otherwise, the interval would begin with its second occurrence.
    """
    starts = {job.pk: job.starts_at for plan, job in pairs if _begins_at_next_due(plan)}
    cursors = Cursor.objects.using(alias_for(Cursor))
    passed = [
        cursor
        for cursor in cursors.filter(pk__in=starts, next_at__isnull=False)
        if (start := starts[cursor.pk]) is not None and start <= cursor.placed_at
    ]
    for cursor in passed:
        cursor.next_at = starts[cursor.pk]
    if passed:
        update_each(cursors.all(), passed, [Cursor._meta.get_field("next_at")])


def _paused_until(job: Job, at: datetime | None) -> Job:
    paused = copy.copy(job)
    paused.enabled, paused.pause_reason, paused.paused_until = False, CONTINUES, at
    return paused


def _repeat_latest(job: Job, ran_until: datetime) -> None:
    """Run the latest occurrence that only the shadow has run since the source stopped."""
    shadowed = Run.objects.using(alias_for(Run)).filter(
        job=job, trigger=Trigger.SCHEDULE, state=State.SUCCEEDED, scheduled_at__gt=ran_until
    )
    if (latest := shadowed.order_by("-scheduled_at").first()) is not None:
        control.rerun(latest)


def _release_key(job: Job) -> None:
    """Take the job's import key from another job, whose entry got another key in the source."""
    if job.import_key is not None:
        same_key = Job.objects.using(alias_for(Job)).filter(
            import_source=job.import_source, import_key=job.import_key
        )
        same_key.exclude(pk=job.pk).update(import_key=None)


def why_refused(save: Callable[[], object]) -> tuple[str, ...]:
    """Call ``save``. Return why it has written nothing, or an empty tuple."""
    error = _error_of(save)
    return () if error is None else reasons_of(error)


def _error_of(save: Callable[[], object]) -> Exception | None:
    try:
        save()
    except BulkSaveError as refused:
        return next(iter(refused.errors.values()))
    except REFUSALS as error:
        return error
    return None


def reasons_of(error: Exception) -> tuple[str, ...]:
    """Return why a row wasn't written. Raises an error that doesn't concern the row."""
    if isinstance(error, OperationalError):
        raise error
    if isinstance(error, ValidationError):
        return messages_of(error)
    if isinstance(error, Conflict):
        return (CHANGED_MEANWHILE,)
    return (unexpected_error_text(error),)
