"""What a test may name a job by: the job itself, or the function or task that ``@cron`` declares one for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from django_dcron import sync, targets
from django_dcron.models import Job
from django_dcron.models.database import alias_for
from django_dcron.sync.stored import decoded, wanted_by
from django_dcron.targets.django_tasks import is_task

if TYPE_CHECKING:
    from django.tasks import Task

Subject: TypeAlias = "Job | Callable[..., Any] | Task[Any, Any]"


def stored_jobs(subject: Subject) -> list[Job]:
    """The rows. A declared job that has none is brought into the database, as ``dcron sync`` would."""
    if isinstance(subject, Job):
        if subject.pk is None:
            raise ValueError(f"job {subject} is not saved: save it with django_dcron.control.save")
        return [subject]
    return [_stored(declaration) for declaration in declared(subject)]


def declared(subject: Subject) -> tuple[targets.Declaration, ...]:
    """At least one."""
    if not (is_task(subject) or callable(subject)):
        raise TypeError(f"{subject!r:.100} is neither a job nor a function that @cron declares one for")
    found = targets.declared_for(subject)
    if not found:
        raise ValueError(f"no job is declared for {subject!r:.100}: it has no @cron")
    return found


def as_declared(declaration: targets.Declaration) -> Job:
    """The job that the code declares, not saved."""
    namespace, name = declaration.key
    return Job(namespace=namespace, name=name, **decoded(wanted_by(declaration)))


def _stored(declaration: targets.Declaration) -> Job:
    namespace, name = declaration.key
    rows = Job.objects.using(alias_for(Job)).filter(namespace=namespace, name=name)
    if not rows.exists():
        for change in sync.apply(sync.plan(only=declaration.key)):
            if change.is_problem:
                raise ValueError(f"job {declaration} is declared, but cannot be saved: {change}")
    return rows.get()
