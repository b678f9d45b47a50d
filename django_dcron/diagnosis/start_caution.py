"""Warn users who start or backfill runs, or resume or restore jobs.

The runs may execute nothing, fail, repeat work, overlap with an unfinished run, or wait for a node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import cache

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.cluster import how_to_start_node
from django_dcron.diagnosis.job_arguments import unknown_target_problem
from django_dcron.diagnosis.scope import EVERYTHING, Scope
from django_dcron.jobs.sync import enabled_twins
from django_dcron.models import Deletion, Job, Run
from django_dcron.models.job_states import IS_FINISHED
from django_dcron.policies.overlap import OverlapPolicy, read_overlap_policy
from django_dcron.policies.slots import Slot
from django_dcron.targets.shadow import PREFIX, is_shadow

CAUTIONS = {
    OverlapPolicy.SKIP: gettext_lazy(
        "An earlier run is unfinished. The new run is skipped unless the earlier one finishes "
        "first (overlap policy: skip)."
    ),
    OverlapPolicy.QUEUE_ONE: gettext_lazy(
        "An earlier run is unfinished. The new run waits for it, or is skipped if another run "
        "waits already (overlap policy: queue one)."
    ),
    OverlapPolicy.QUEUE_ALL: gettext_lazy(
        "An earlier run is unfinished. The new run waits for it (overlap policy: queue all)."
    ),
    OverlapPolicy.CANCEL_RUNNING: gettext_lazy(
        "An earlier run is unfinished. The new run cancels it (overlap policy: cancel running)."
    ),
}


def start_cautions(job: Job) -> tuple[str, ...]:
    """Return what a user who starts a run of this job should know."""
    return start_cautions_of_many([job])[job.pk]


def start_cautions_of_many(jobs: Sequence[Job]) -> dict[int, tuple[str, ...]]:
    """Return the cautions of each job, by its primary key. See ``start_cautions``."""
    of_target = cache(target_cautions)  # the search for similar names of targets takes long
    overlaps = _overlap_cautions(jobs)
    return {job.pk: (*of_target(job.target), *overlaps[job.pk]) for job in jobs}


def target_cautions(target: str) -> tuple[str, ...]:
    """Return that runs with the target fail or execute nothing; empty if they execute it."""
    problem = unknown_target_problem(target)
    return (problem,) if problem else shadow_cautions(target)


def shadow_cautions(target: str) -> tuple[str, ...]:
    """Return that runs with the target execute nothing; empty if it isn't that of a shadow."""
    if not is_shadow(target):
        return ()
    text = _("The job is a shadow. The run is recorded, but %(target)s isn't executed.")
    return (text % {"target": target.removeprefix(PREFIX)},)


def backfill_cautions(job: Job) -> list[str]:
    """Return what a user who backfills this job should know."""
    imported = _(
        "The job was imported from %(source)s. If %(source)s ran it at these times, the backfill "
        "runs it again."
    )
    source = [imported % {"source": job.import_source}] if job.import_source else []
    return [*source, *target_cautions(job.target)]


def node_cautions(job: Job, live_namespaces: Collection[str]) -> list[str]:
    """Return that no live node serves the job; empty if one does.

    ``live_namespaces``: the namespaces of the live nodes (``cluster.live_namespaces``).
    """
    if "" in live_namespaces or job.namespace in live_namespaces:
        return []
    text = _("No node that serves the job is running: the runs start when one starts.")
    return [f"{text} {how_to_start_node()}"]


def handover_cautions(job: Job) -> tuple[str, ...]:
    """Return that the source of a paused job may run it, too; empty if it waits for no handover.

    Call this function before the job is resumed.
    """
    if not job.awaits_handover or is_shadow(job.target):
        return ()
    source, _space, path = job.import_source.partition(" ")
    if path:  # a crontab, which has no handover
        text = _(
            "The job was imported as paused from %(source)s. If cron still runs its line, the work "
            "is done twice."
        )
    else:
        text = _(
            "The job was paused until the handover from %(source)s. If %(source)s still runs its "
            "entry, the work is done twice. To switch all jobs: manage.py dcron handover %(source)s"
        )
    return (text % {"source": source},)


def restore_cautions(
    job: Job, scope: Scope = EVERYTHING, *, missed_handover: bool
) -> tuple[str, ...]:
    """Return why the restored job does no work, or who else may do its work.

    ``scope`` contains the jobs that the user may see. ``missed_handover``: the result of
    ``restoring.has_missed_handover``.
    """
    twins = tuple(twin_cautions([job], scope).values())
    if missed_handover:
        text = _(
            "The restored job does no work, because it was deleted before the handover from "
            "%(source)s. To start it, repeat the handover: manage.py dcron handover %(source)s"
        )
    elif job.awaits_handover and not is_shadow(job.target):
        text = _("The restored job is paused, because %(source)s may still do its work.")
    elif _pause_lost_its_end(job):
        text = _(
            "The pause of the restored job no longer has an end, because %(source)s may still do "
            "its work."
        )
    elif _is_rest_of_source_paused(job, scope):
        text = _(
            "All other jobs imported from %(source)s are paused. If %(source)s still runs the "
            "entry of the restored job, the work is done twice."
        )
    else:
        return twins
    return (text % {"source": job.import_source.partition(" ")[0]}, *twins)


def _is_rest_of_source_paused(job: Job, scope: Scope) -> bool:
    """Return whether the other jobs of the source are paused, and the job executes its work.

    To hand the work back to a source whose last runs can't be set, users pause its jobs.
    """
    may_start = job.enabled or job.paused_until is not None
    if not (job.import_source and may_start) or is_shadow(job.target):
        return False
    others = scope.jobs.filter(import_source=job.import_source).exclude(pk=job.pk)
    enabled = others.exclude(IS_FINISHED).values_list("enabled", flat=True).distinct()
    return {*enabled} == {False}


def _pause_lost_its_end(job: Job) -> bool:
    if job.enabled or job.paused_until is not None:
        return False
    deletions = Deletion.objects.using(alias_for(Deletion))
    deletion = deletions.filter(restored_job_id=job.pk).first()
    return deletion is not None and deletion.values.get("paused_until") is not None


def twin_cautions(jobs: Iterable[Job], scope: Scope = EVERYTHING) -> dict[int, str]:
    """Return which other enabled job does the same work, by the key of each enabled job.

    One of the two is declared in code, and the other was imported. ``scope`` contains the jobs that
    the user may see.
    """
    enabled = {job.pk: job for job in jobs if job.enabled}
    twins = enabled_twins(enabled.values(), scope.jobs)
    return {pk: _twin_caution(enabled[pk], twin) for pk, twin in twins.items()}


def _twin_caution(job: Job, twin: Job) -> str:
    imported = twin if job.declared is not None else job
    if is_shadow(imported.target):
        text = _(
            "The enabled job %(twin)s has the same target and arguments. If %(source)s still runs "
            "the entry of the shadow %(imported)s, the work is done twice."
        )
    else:
        text = _(
            "The enabled job %(twin)s has the same target and arguments, so both jobs do the same "
            "work. One is declared in code, the other was imported from %(source)s. Pause or "
            "delete one of them."
        )
    return text % {"twin": twin, "imported": imported, "source": imported.import_source}


def _overlap_cautions(jobs: Sequence[Job]) -> dict[int, list[str]]:
    """Return what the overlap policy of each job does to a new run.

    The list is empty if no earlier run is unfinished.
    """
    cautions = {job.pk: CAUTIONS.get(read_overlap_policy(job.overlap_policy)) for job in jobs}
    holders = Run.objects.using(alias_for(Run)).filter(
        slot=Slot.RUNNING, job__in=[pk for pk, caution in cautions.items() if caution]
    )
    busy = {*holders.values_list("job_id", flat=True)}
    return {pk: [str(caution)] if pk in busy else [] for pk, caution in cautions.items()}
