"""Find the jobs that a test names: a job itself, or the function or task below ``@cron``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from django_dcron import targets
from django_dcron.db.routing import alias_for
from django_dcron.jobs import sync
from django_dcron.jobs.sync.stored import from_stored, stored_declaration
from django_dcron.models import Job
from django_dcron.policies.job_labels import split_label
from django_dcron.targets.django_tasks import is_django_task

if TYPE_CHECKING:
    from django.tasks import Task

Subject: TypeAlias = "Job | Callable[..., Any] | Task[Any, Any]"


def stored_jobs(subjects: Iterable[Subject]) -> list[Job]:
    """Return the rows of the jobs that ``subjects`` name.

    Declared jobs that have no row are saved first, as by ``dcron sync``. In a chain, the earlier
    jobs are saved first.
    """
    rows: list[Job] = []
    declared: list[targets.Declaration] = []
    for subject in subjects:
        if not isinstance(subject, Job):
            declared += declarations_of(subject)
        elif subject.pk is None:
            raise ValueError(f"Job {subject} is not saved. Save it with django_dcron.control.save.")
        else:
            rows.append(subject)
    return [*rows, *map(_find_or_create_job, _earlier_jobs_first(declared))]


def _earlier_jobs_first(declared: Iterable[targets.Declaration]) -> Iterator[targets.Declaration]:
    waiting = {declaration.key: declaration for declaration in declared}
    while waiting:
        ready = [key for key, each in waiting.items() if not waiting.keys() & _followed(each)]
        for key in ready or [*waiting]:  # in a cycle, none is ready, and the save raises the error
            yield waiting.pop(key)


def _followed(declaration: targets.Declaration) -> set[tuple[str, str]]:
    return {split_label(label) for label in declaration.fields.get("after", ())}


def declarations_of(subject: Subject) -> tuple[targets.Declaration, ...]:
    """Return the declarations of ``subject``, at least one."""
    if not (is_django_task(subject) or callable(subject)):
        raise TypeError(
            f"{subject!r:.100} is neither a job nor a function or task with @cron. Pass the job's "
            "row, or the function itself instead of its name."
        )
    declarations = targets.declared_for(subject)
    if not declarations:
        raise ValueError(
            f"{subject!r:.100} has no @cron, so no job is declared for it. Pass a Job instead, for "
            "example from control.update_or_create."
        )
    return declarations


def job_from_declaration(declaration: targets.Declaration) -> Job:
    """Return the job that the code declares, unsaved."""
    namespace, name = declaration.key
    return Job(namespace=namespace, name=name, **from_stored(stored_declaration(declaration)))


def _find_or_create_job(declaration: targets.Declaration) -> Job:
    namespace, name = declaration.key
    rows = Job.objects.using(alias_for(Job)).filter(namespace=namespace, name=name)
    if not rows.exists():
        for change in sync.apply(sync.plan(only=declaration.key)):
            if change.is_problem:
                advice = ". Pass the jobs that it follows, too." if _followed(declaration) else ""
                raise ValueError(
                    f"Job {declaration} is declared but can't be saved: {change}{advice}"
                )
    return rows.get()
