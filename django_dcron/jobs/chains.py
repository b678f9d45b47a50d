"""Keep the links of chains: ``Job.after`` as rows, which the end of a run can look up.

Invariants:

- A job's links change with its ``after``, in the transaction that saves it. If a job is renamed or
  deleted, the same transaction updates the ``after`` of the jobs that follow it.
- Links never form a cycle, even if several users each save a part of one at the same time.
- Therefore, a change of links first locks all jobs of the affected chains, including the changed
  job, in the order of their primary keys. Then it checks for a cycle. If two changes together would
  form a cycle, one change waits for the other's lock and then sees the other change.
- ``Statistics.followed`` is true for every job that another job follows, from the transaction of
  its first link on. The end of a run looks for links only in that case.
- Rows are locked in the order cursor, jobs, runs, statistics.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from django.core.exceptions import ValidationError
from django.db.models import F, Q, QuerySet
from django.utils.translation import gettext as _

from django_dcron.models import Cursor, Job, Link, Statistics
from django_dcron.policies.chains import circle, key_of, label_of

Edges = dict[int, set[int]]
"""For each job, the jobs that it follows."""


def check(
    job: Job, using: str, visible: QuerySet[Job] | None = None, named_before: Collection[str] = ()
) -> None:
    """Check ``after``. Raises ``ValidationError`` if it names a missing job or forms a cycle.

    ``visible``: The jobs that the user may see; by default, all. Other jobs count as missing and no
    error names them, unless they are in ``named_before``, the previous value of ``after``.
    """
    if not job.after:
        return
    if visible is not None:
        named = _job_ids_by_label(job, using)
        keys = [pk for pk in named.values() if pk is not None]
        seen = set(visible.filter(pk__in=keys).values_list("pk", flat=True))
        for label, pk in sorted(named.items()):
            if pk not in seen and label not in named_before:
                raise _unknown(label)
    _links_of(job, _edges(using), using, visible)


def changes(job: Job, using: str) -> bool:
    """Return whether a save of ``job`` changes links, or its name in the ``after`` of others."""
    if job._state.adding:
        return bool(job.after)
    about = Link.objects.using(using).filter(Q(job=job.pk) | Q(after=job.pk))
    rows = about.values_list("job_id", "on", "after__namespace", "after__name")
    own = {}
    for job_id, on, *key in rows:
        if job_id == job.pk:
            own[tuple(key)] = on
        elif tuple(key) != (job.namespace, job.name):
            return True
    return own != {key_of(label): on for label, on in job.after.items()}


def lock(job: Job, using: str) -> None:
    """Lock ``job`` and all jobs of the chains that it belongs to or is about to join."""
    if job.pk is not None:
        Cursor.objects.using(using).select_for_update().filter(pk=job.pk).first()
    named = {pk for pk in _job_ids_by_label(job, using).values() if pk is not None}
    concerned = _connected_jobs({*named, job.pk} - {None}, _edges(using))
    locked = Job.objects.using(using).select_for_update().filter(pk__in=concerned).order_by("pk")
    list(locked.values_list("pk", flat=True))


def place_links(job: Job, before: Job | None, using: str) -> None:
    """Write the links of ``job``, which is saved. The caller has called ``lock``.

    Raises ``ValidationError``.
    """
    links = _links_of(job, _edges(using), using)
    _replace(job, links, using)
    if before is not None and (before.namespace, before.name) != (job.namespace, job.name):
        _rename(job.pk, (before.namespace, before.name), label_of(job.namespace, job.name), using)


def forget(job: Job, using: str) -> None:
    """Remove all links from and to ``job`` before it is deleted. The caller has called ``lock``."""
    _replace(job, [], using)
    _rename(job.pk, (job.namespace, job.name), None, using)


def _replace(job: Job, links: list[Link], using: str) -> None:
    own = Link.objects.using(using).filter(job=job.pk)
    concerned = {*own.values_list("after_id", flat=True), *(link.after_id for link in links)}
    own.delete()
    Link.objects.using(using).bulk_create(links)
    statistics = Statistics.objects.using(using)
    statistics.bulk_create(
        [Statistics(job_id=pk) for pk in sorted(concerned)], ignore_conflicts=True
    )
    followed = set(
        Link.objects.using(using).filter(after__in=concerned).values_list("after_id", flat=True)
    )
    for pk in sorted(concerned):
        statistics.filter(pk=pk).update(followed=pk in followed)


def is_linked(job: Job, using: str) -> bool:
    return Link.objects.using(using).filter(Q(job=job.pk) | Q(after=job.pk)).exists()


def followers(job: Job, using: str) -> list[int]:
    """Return the keys of the jobs that follow ``job``."""
    links = Link.objects.using(using).filter(after=job.pk).order_by("job")
    return list(links.values_list("job_id", flat=True))


def _links_of(
    job: Job, edges: Edges, using: str, visible: QuerySet[Job] | None = None
) -> list[Link]:
    named = _job_ids_by_label(job, using)
    unknown = sorted(label for label, pk in named.items() if pk is None)
    if unknown:
        raise _unknown(unknown[0])
    links = [
        Link(job=job, after_id=pk, on=job.after[label])
        for label, pk in named.items()
        if pk is not None
    ]
    if job.pk is not None:
        edges[job.pk] = {link.after_id for link in links}
        if way := circle(edges, job.pk):
            jobs = (Job.objects.using(using) if visible is None else visible).in_bulk(way)
            if len(jobs) < len({*way}):
                raise _cycle(_("The jobs would wait for each other in a cycle."))
            text = _("The jobs would wait for each other in a cycle: %(jobs)s.")
            raise _cycle(text % {"jobs": " → ".join(str(jobs[pk]) for pk in way)})
    return links


def _cycle(message: str) -> ValidationError:
    return ValidationError({"after": ValidationError(message, code="cycle")})


def _unknown(label: str) -> ValidationError:
    text = _("There is no job %(job)s. To name a job in another namespace, write namespace/name.")
    return ValidationError({"after": text % {"job": label}})


def _job_ids_by_label(job: Job, using: str) -> dict[str, int | None]:
    """Return the key of each job that ``after`` names, or None if there is no such job."""
    keys = {label: key_of(label) for label in job.after}
    if not keys:
        return {}
    jobs = Job.objects.using(using).filter(name__in={name for _, name in keys.values()})
    found = {
        (namespace, name): pk for pk, namespace, name in jobs.values_list("pk", "namespace", "name")
    }
    return {label: found.get(key) for label, key in keys.items()}


def _edges(using: str) -> Edges:
    edges: Edges = defaultdict(set)
    for job_id, after_id in Link.objects.using(using).values_list("job_id", "after_id"):
        edges[job_id].add(after_id)
    return edges


def _connected_jobs(jobs: Iterable[int], edges: Edges) -> set[int]:
    beside: Edges = defaultdict(set)
    for job, others in edges.items():
        for other in others:
            beside[job].add(other)
            beside[other].add(job)
    found, to_visit = set(jobs), list(jobs)
    while to_visit:
        fresh = beside[to_visit.pop()] - found
        found |= fresh
        to_visit += fresh
    return found


def _rename(job_id: int, old: tuple[str, str], new: str | None, using: str) -> None:
    """Rename the job in the ``after`` of the jobs that follow it. None removes it from there."""
    followers = Job.objects.using(using).filter(links__after=job_id).order_by("pk")
    for follower in followers:
        after = {}
        for label, on in follower.after.items():
            if key_of(label) != old:
                after[label] = on
            elif new is not None:
                after[new] = on
        Job.objects.using(using).filter(pk=follower.pk).update(
            after=after, version=F("version") + 1
        )
