"""The links of chains: what jobs say in ``after``, as rows that whoever ends a run can look up.

Invariants:

- A job's links change with its ``after``, in the transaction that saves it, and so do the names in the ``after`` of others when a job
  they come after is renamed or deleted.
- Links never lead round in a circle, also if each of several people saves a part of one at the same time: who changes links first
  locks every job of the chains concerned, its own among them, in the order of their keys, and then looks. Of any two whose changes
  would close a circle, one finds the other's job locked, and sees the other's change afterwards.
- ``Statistics.followed`` is true of every job that another one comes after, from the transaction of its first link on: whoever ends a run
  looks for links only then.
- Rows are locked in the order cursor, jobs, runs, statistics.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from django.core.exceptions import ValidationError
from django.db.models import F, Q, QuerySet
from django.utils.translation import gettext as _

from django_dcron.domain.chains import circle, key_of, label_of
from django_dcron.models import Cursor, Job, Link, Statistics

Edges = dict[int, set[int]]
"""The jobs that each comes after."""


def check(
    job: Job, using: str, visible: QuerySet[Job] | None = None, named_before: Collection[str] = ()
) -> None:
    """Raises ``ValidationError`` on ``after``: it names no job, or leads round in a circle.

    ``visible``: the jobs that the user may see, if not all. Others count as missing unless they are in ``named_before``, which is what
    ``after`` was; an error names none of them."""
    if not job.after:
        return
    if visible is not None:
        named = _named(job, using)
        keys = [pk for pk in named.values() if pk is not None]
        seen = set(visible.filter(pk__in=keys).values_list("pk", flat=True))
        for label, pk in sorted(named.items()):
            if pk not in seen and label not in named_before:
                raise _unknown(label)
    _links_of(job, _edges(using), using, visible)


def changes(job: Job, using: str) -> bool:
    """Whether a save of ``job`` changes links, or the name that others come after."""
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
    """Lock ``job`` and all jobs of the chains that it is, or says it is, a part of."""
    if job.pk is not None:
        Cursor.objects.using(using).select_for_update().filter(pk=job.pk).first()
    named = {pk for pk in _named(job, using).values() if pk is not None}
    concerned = _connected({*named, job.pk} - {None}, _edges(using))
    locked = Job.objects.using(using).select_for_update().filter(pk__in=concerned).order_by("pk")
    list(locked.values_list("pk", flat=True))


def place(job: Job, before: Job | None, using: str) -> None:
    """Make the links stand for ``job``, which is saved. The caller has called ``lock``. Raises ``ValidationError``."""
    links = _links_of(job, _edges(using), using)
    _replace(job, links, using)
    if before is not None and (before.namespace, before.name) != (job.namespace, job.name):
        _rename(job.pk, (before.namespace, before.name), label_of(job.namespace, job.name), using)


def forget(job: Job, using: str) -> None:
    """``job`` is about to be deleted: it comes after nobody, and nobody after it any more. The caller has called ``lock``."""
    _replace(job, [], using)
    _rename(job.pk, (job.namespace, job.name), None, using)


def _replace(job: Job, links: list[Link], using: str) -> None:
    own = Link.objects.using(using).filter(job=job.pk)
    concerned = {*own.values_list("after_id", flat=True), *(link.after_id for link in links)}
    own.delete()
    Link.objects.using(using).bulk_create(links)
    statistics = Statistics.objects.using(using)
    statistics.bulk_create([Statistics(job_id=pk) for pk in sorted(concerned)], ignore_conflicts=True)
    followed = set(Link.objects.using(using).filter(after__in=concerned).values_list("after_id", flat=True))
    for pk in sorted(concerned):
        statistics.filter(pk=pk).update(followed=pk in followed)


def is_linked(job: Job, using: str) -> bool:
    return Link.objects.using(using).filter(Q(job=job.pk) | Q(after=job.pk)).exists()


def _links_of(job: Job, edges: Edges, using: str, visible: QuerySet[Job] | None = None) -> list[Link]:
    named = _named(job, using)
    unknown = sorted(label for label, pk in named.items() if pk is None)
    if unknown:
        raise _unknown(unknown[0])
    links = [Link(job=job, after_id=pk, on=job.after[label]) for label, pk in named.items() if pk is not None]
    if job.pk is not None:
        edges[job.pk] = {link.after_id for link in links}
        if way := circle(edges, job.pk):
            jobs = (Job.objects.using(using) if visible is None else visible).in_bulk(way)
            if len(jobs) < len({*way}):
                raise ValidationError({"after": _("Each would come after the other, in a circle.")})
            text = _("Each would come after the other, in a circle: %(jobs)s.")
            raise ValidationError({"after": text % {"jobs": " → ".join(str(jobs[pk]) for pk in way)}})
    return links


def _unknown(label: str) -> ValidationError:
    text = _("There is no job %(job)s. Another namespace's is named namespace/name.")
    return ValidationError({"after": text % {"job": label}})


def _named(job: Job, using: str) -> dict[str, int | None]:
    """The key of each job that ``after`` names; None: there is none."""
    keys = {label: key_of(label) for label in job.after}
    if not keys:
        return {}
    jobs = Job.objects.using(using).filter(name__in={name for _, name in keys.values()})
    found = {(namespace, name): pk for pk, namespace, name in jobs.values_list("pk", "namespace", "name")}
    return {label: found.get(key) for label, key in keys.items()}


def _edges(using: str) -> Edges:
    edges: Edges = defaultdict(set)
    for job_id, after_id in Link.objects.using(using).values_list("job_id", "after_id"):
        edges[job_id].add(after_id)
    return edges


def _connected(jobs: Iterable[int], edges: Edges) -> set[int]:
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
    """In the ``after`` of those that come after it. ``new`` None: they do so no longer."""
    followers = Job.objects.using(using).filter(links__after=job_id).order_by("pk")
    for follower in followers:
        after = {}
        for label, on in follower.after.items():
            if key_of(label) != old:
                after[label] = on
            elif new is not None:
                after[new] = on
        Job.objects.using(using).filter(pk=follower.pk).update(after=after, version=F("version") + 1)
