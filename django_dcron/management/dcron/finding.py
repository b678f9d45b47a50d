"""The job or the run that somebody names on the command line."""

from __future__ import annotations

import re
from difflib import get_close_matches
from uuid import UUID

from django.core.management.base import CommandError

from django_dcron.management.dcron.exits import cannot
from django_dcron.models import Job, Run
from django_dcron.models.database import alias_for
from django_dcron.models.job import JobQuerySet

JOB_HELP = "a job: NAME, NAMESPACE/NAME or its number"
RUN_HELP = "a run: its id, or the first characters of it, at least 8"

DEFAULT_NAMESPACE = "default"
SHORTEST_ID = 8
CANDIDATES = 5
NAMES_COMPARED = 20_000

LOWEST_ID, HIGHEST_ID = "0" * 12 + "7" + "0" * 3 + "8" + "0" * 15, "f" * 12 + "7" + "f" * 3 + "b" + "f" * 15
"""Of the ids that ``new_run_id`` makes. A database may sort others elsewhere."""


def find_job(text: str) -> Job:
    """With its cursor and statistics, if there are any. A name comes before a number; a name alone is one of the namespace
    ``default`` before any other."""
    jobs = Job.objects.using(alias_for(Job)).select_related("cursor", "statistics", "calendar")
    namespace, slash, name = text.rpartition("/")
    exact = jobs.filter(namespace=namespace if slash else DEFAULT_NAMESPACE, name=name).first()
    if exact:
        return exact
    elsewhere = [] if slash else list(jobs.filter(name=name).order_by("namespace")[: CANDIDATES + 1])
    if len(elsewhere) == 1:
        return elsewhere[0]
    if elsewhere:
        raise cannot(f"Several jobs are called {text!r}: {_listed([_full_name(job) for job in elsewhere])}.")
    numbered = jobs.filter(pk=int(text)).first() if re.fullmatch(r"[0-9]{1,18}", text) else None
    if numbered:
        return numbered
    raise cannot(f"There is no job {text!r}{_hint(text, jobs)}")


def find_run(text: str) -> Run:
    """With its job. The answer is the one run whose id begins so."""
    digits = text.replace("-", "").lower()
    if not re.fullmatch(r"[0-9a-f]{1,32}", digits):
        raise cannot(f"{text!r} is no run's id (allowed: hexadecimal digits, such as 019a9f3c-5b7e).")
    if len(digits) < SHORTEST_ID:
        raise cannot(
            f"{text!r} is too short for a run's id (allowed: at least {SHORTEST_ID} characters of it)."
        )
    runs = Run.objects.using(alias_for(Run)).select_related("job")
    if len(digits) == len(LOWEST_ID):
        found = list(runs.filter(pk=UUID(digits)))
    else:
        lowest, highest = (UUID(digits + bound[len(digits) :]) for bound in (LOWEST_ID, HIGHEST_ID))
        found = list(runs.filter(pk__gte=lowest, pk__lte=highest).order_by("pk")[: CANDIDATES + 1])
    if len(found) == 1:
        return found[0]
    if found:
        raise cannot(
            f"Several runs' ids begin with {text!r}: {_listed([str(run.pk) for run in found])}. Give more of it."
        )
    raise cannot(
        f"There is no run {text!r}. It may have been deleted; manage.py dcron history JOB lists those of a job."
    )


def find_job_or_run(text: str) -> Job | Run:
    """What names a job is a job; anything else that may be one is the beginning of a run's id."""
    try:
        return find_job(text)
    except CommandError:
        if not re.fullmatch(rf"[0-9a-fA-F-]{{{SHORTEST_ID},}}", text):
            raise
    return find_run(text)


def _hint(text: str, jobs: JobQuerySet) -> str:
    """Names that have it as a part, else such as are spelled alike."""
    _, _, name = text.rpartition("/")
    alike = list(jobs.filter(name__icontains=name).order_by("namespace", "name")[:CANDIDATES]) if name else []
    if not alike:
        names = jobs.order_by().values_list("name", flat=True)[:NAMES_COMPARED]
        alike = list(jobs.filter(name__in=get_close_matches(name, set(names), n=CANDIDATES))[:CANDIDATES])
    if not alike:
        return ". manage.py dcron list shows them all."
    return f"; did you mean {_listed([str(job) for job in alike], ' or ')}?"


def _listed(names: list[str], last: str = ", ") -> str:
    """The first few."""
    if len(names) > CANDIDATES:
        return ", ".join([*names[:CANDIDATES], "..."])
    return last.join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _full_name(job: Job) -> str:
    return f"{job.namespace}/{job.name}"
