"""Store the links of chains: ``Job.after`` as rows, which the code that ends a run can query.

Invariants:

- A job's links change with its ``after``, in the transaction that saves it. If a job is renamed or
  deleted, the same transaction updates the ``after`` of the jobs that follow it.
- Links never form a cycle, even if several users each save a part of one at the same time.
- Therefore, a change of links first locks all jobs of the affected chains, including the changed
  job, in the order of their primary keys. Then it checks for a cycle. If two changes together would
  form a cycle, one change waits for the other's lock and then sees the other change.
- ``Statistics.followed`` is true for every job that another job follows, from the transaction of
  its first link on. The usual end of a run (``runs.endings``) looks for links only in that case.
- Rows are locked in the order cursor, jobs, runs, statistics.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field

from django.core.exceptions import ValidationError
from django.db.models import F, Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from django_dcron.models import Job, Link, Statistics
from django_dcron.policies.chains import find_cycle
from django_dcron.policies.job_labels import split_label

Key = tuple[str, str]
"""Namespace and name of a job."""
Edges = dict[int, set[int]]
"""For each job, the jobs that it follows."""
Follows = dict[int, str]
"""The jobs that a job follows, each with the required outcome."""


@dataclass(slots=True)
class StoredLinks:
    """The stored links of one job."""

    after: dict[Key, str] = field(default_factory=dict)
    """The jobs that it follows, each with the required outcome."""
    followed_as: Key | None = None
    """The job's stored namespace and name, if other jobs follow it."""


def check_links(
    job: Job,
    using: str,
    visible: QuerySet[Job] | None = None,
    previous_labels: Collection[str] = (),
) -> None:
    """Check ``after``. Raises ``ValidationError`` if it names a missing job or forms a cycle.

    ``visible``: The jobs that the user may see; by default, all. Other jobs count as missing and no
    error names them, unless they are in ``previous_labels``, the previous value of ``after``.
    """
    if not job.after:
        return
    if visible is not None:
        require_visible(job, visible_keys([job], visible), previous_labels)
    ids = read_ids(map(split_label, job.after), using)
    shown = Job.objects.using(using) if visible is None else visible
    resolve_follows(job, job.pk, ids, read_edges(using), lambda cycle: shown.in_bulk(cycle))


def check_links_of(jobs: Sequence[Job], using: str) -> dict[int, ValidationError]:
    """Return the errors of ``after`` by position, as if the stored jobs were saved in this order.

    Links of refused jobs don't count for the jobs after them.
    """
    errors: dict[int, ValidationError] = {}
    if not jobs:
        return errors
    ids = read_ids({split_label(label) for job in jobs for label in job.after}, using)
    edges = read_edges(using)
    for position, job in enumerate(jobs):
        try:
            resolve_follows(job, job.pk, ids, edges, Job.objects.using(using).in_bulk)
        except ValidationError as error:
            errors[position] = error
    return errors


def visible_keys(jobs: Iterable[Job], visible: QuerySet[Job]) -> set[Key]:
    """Return the keys of the jobs in ``visible`` whose names occur in the ``after`` of ``jobs``."""
    names = {split_label(label).name for job in jobs for label in job.after}
    rows = visible.filter(name__in=names).values_list("namespace", "name") if names else ()
    return set(rows)


def require_visible(job: Job, keys: Collection[Key], previous_labels: Collection[str]) -> None:
    """Raise ``ValidationError`` if ``after`` names a job that isn't in ``keys``.

    Labels in ``previous_labels`` are allowed.
    """
    for label in sorted(job.after):
        if split_label(label) not in keys and label not in previous_labels:
            raise _unknown_job(label)


def without_names(error: ValidationError) -> ValidationError:
    """Return the error without job names, for a user who may not see all jobs of the cycle."""
    hidden = {
        name: [_hidden_cycle() if each.code == "cycle" else each for each in errors]
        for name, errors in error.error_dict.items()
    }
    return ValidationError(hidden)


def read_links(job_ids: Collection[int], using: str) -> dict[int, StoredLinks]:
    """Return the stored links of jobs. Jobs without links are absent."""
    links: defaultdict[int, StoredLinks] = defaultdict(StoredLinks)
    if not job_ids:
        return links
    about = Link.objects.using(using).filter(Q(job__in=job_ids) | Q(after__in=job_ids))
    rows = about.values_list("job_id", "after_id", "on", "after__namespace", "after__name")
    requested = {*job_ids}
    for job_id, after_id, on, namespace, name in rows:
        if job_id in requested:
            links[job_id].after[namespace, name] = on
        if after_id in requested:
            links[after_id].followed_as = namespace, name
    return links


def changes_links(job: Job, linked: StoredLinks | None) -> bool:
    """Return whether a save of ``job`` changes links, or its name in the ``after`` of others."""
    linked = linked or StoredLinks()
    if changes_name(job, linked):
        return True
    return linked.after != {split_label(label): on for label, on in job.after.items()}


def changes_name(job: Job, linked: StoredLinks | None) -> bool:
    """Return whether a save of ``job`` changes its name in the ``after`` of others."""
    followed_as = linked.followed_as if linked else None
    return followed_as is not None and followed_as != (job.namespace, job.name)


def read_ids(keys: Iterable[Key], using: str) -> dict[Key, int]:
    """Return the ids of the jobs with these keys.

    The result may include jobs with the same names in other namespaces.
    """
    names = {name for _namespace, name in keys}
    if not names:
        return {}
    rows = Job.objects.using(using).filter(name__in=names)
    return {
        (namespace, name): pk for pk, namespace, name in rows.values_list("pk", "namespace", "name")
    }


def read_edges(using: str) -> Edges:
    edges: Edges = defaultdict(set)
    for job_id, after_id in Link.objects.using(using).values_list("job_id", "after_id"):
        edges[job_id].add(after_id)
    return edges


def connected_jobs(job_ids: Collection[int], edges: Edges) -> set[int]:
    """Return the jobs of all chains that contain any of the jobs."""
    neighbors: Edges = defaultdict(set)
    for job, others in edges.items():
        for other in others:
            neighbors[job].add(other)
            neighbors[other].add(job)
    connected, to_visit = set(job_ids), list(job_ids)
    while to_visit:
        fresh = neighbors[to_visit.pop()] - connected
        connected |= fresh
        to_visit += fresh
    return connected


def resolve_follows(
    job: Job,
    job_id: int | None,
    ids: Mapping[Key, int],
    edges: Edges,
    jobs_of: Callable[[list[int]], Mapping[int, Job]],
) -> Follows:
    """Return the jobs that ``job`` is about to follow, and enter them in ``edges``.

    ``job_id`` is the job's id in ``edges``, or None if no other job can follow it yet. ``ids`` has
    the existing jobs. ``jobs_of`` returns the jobs of a cycle that a message may name.

    Raises ``ValidationError`` if ``after`` names a missing job or forms a cycle. In both cases,
    ``edges`` is unchanged.
    """
    named = {label: ids.get(split_label(label)) for label in job.after}
    if unknown := sorted(label for label, pk in named.items() if pk is None):
        raise _unknown_job(unknown[0])
    follows = {pk: job.after[label] for label, pk in named.items() if pk is not None}
    if job_id is not None:
        before = edges.get(job_id)
        edges[job_id] = {*follows}
        if cycle := find_cycle(edges, job_id):
            if before is None:
                del edges[job_id]
            else:
                edges[job_id] = before
            raise _cycle_error(cycle, jobs_of(cycle))
    return follows


def _cycle_error(cycle: list[int], jobs: Mapping[int, Job]) -> ValidationError:
    if len(jobs) < len({*cycle}):
        return ValidationError({"after": _hidden_cycle()})
    text = _("The jobs would start each other in an endless cycle: %(jobs)s.") % {
        "jobs": " → ".join(str(jobs[pk]) for pk in cycle)
    }
    return ValidationError({"after": ValidationError(text, code="cycle")})


def _hidden_cycle() -> ValidationError:
    return ValidationError(_("The jobs would start each other in an endless cycle."), code="cycle")


def _unknown_job(label: str) -> ValidationError:
    text = _(
        "There is no job %(job)s. To name a job outside the namespace default, write "
        "namespace/name."
    )
    return ValidationError({"after": text % {"job": label}})


def write_links(changed: Mapping[int, Follows], using: str) -> None:
    """Replace the links of the jobs ``changed``. The caller has locked the jobs of their chains."""
    if not changed:
        return
    own = Link.objects.using(using).filter(job__in=changed)
    concerned = {
        *own.values_list("after_id", flat=True),
        *(after for links in changed.values() for after in links),
    }
    own.delete()
    Link.objects.using(using).bulk_create(
        Link(job_id=job_id, after_id=after, on=on)
        for job_id, links in changed.items()
        for after, on in links.items()
    )
    _mark_followed(concerned, using)


def _mark_followed(job_ids: Collection[int], using: str) -> None:
    statistics = Statistics.objects.using(using)
    statistics.bulk_create([Statistics(job_id=pk) for pk in sorted(job_ids)], ignore_conflicts=True)
    followed = set(
        Link.objects.using(using).filter(after__in=job_ids).values_list("after_id", flat=True)
    )
    # One statement that changes several rows would lock them in an unknown order.
    rows = statistics.select_for_update().filter(pk__in=job_ids).order_by("pk")
    marked = dict(rows.values_list("pk", "followed"))
    for is_followed in (True, False):
        wrong = {pk for pk, mark in marked.items() if mark is not is_followed}
        outdated = wrong & followed if is_followed else wrong - followed
        if outdated:
            statistics.filter(pk__in=outdated).update(followed=is_followed)


def delete_links(job: Job, using: str) -> list[tuple[Job, Job]]:
    """Remove all links from and to ``job`` before it is deleted.

    The caller has locked the jobs of its chains. Returns each changed follower, after and before
    the change.
    """
    write_links({job.pk: {}}, using)
    changed = rename_in_links(job.pk, (job.namespace, job.name), None, using)
    Link.objects.using(using).filter(after=job.pk).delete()
    return changed


def is_linked(job: Job, using: str) -> bool:
    return Link.objects.using(using).filter(Q(job=job.pk) | Q(after=job.pk)).exists()


def followers(job: Job, using: str) -> list[int]:
    """Return the primary keys of the jobs that follow ``job``."""
    links = Link.objects.using(using).filter(after=job.pk).order_by("job_id")
    return list(links.values_list("job_id", flat=True))


def rename_in_links(
    job_id: int, old_key: Key, new_label: str | None, using: str
) -> list[tuple[Job, Job]]:
    """Rename the job in the ``after`` of the jobs that follow it.

    If ``new_label`` is None, remove the job from their ``after``. Returns each changed follower,
    after and before the change.
    """
    changed, now = [], timezone.now()
    for before in Job.objects.using(using).filter(links__after=job_id).order_by("pk"):
        follower = copy(before)
        follower.after, follower.version, follower.updated_at = {}, before.version + 1, now
        for label, on in before.after.items():
            if split_label(label) != old_key:
                follower.after[label] = on
            elif new_label is not None:
                follower.after[new_label] = on
        Job.objects.using(using).filter(pk=follower.pk).update(
            after=follower.after, version=F("version") + 1, updated_at=now
        )
        changed.append((follower, before))
    return changed
