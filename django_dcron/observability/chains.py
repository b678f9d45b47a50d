"""Chains: which run a run follows, which follow it, and which jobs come after a job. Each by an index, and bounded."""

from __future__ import annotations

from uuid import UUID

from django_dcron.domain.lifecycle import Trigger
from django_dcron.following import followed, key_after
from django_dcron.models import Job, Link, Run
from django_dcron.models.database import alias_for
from django_dcron.observability.scope import EVERYTHING, Scope

SHOWN = 20


def followed_id(run: Run) -> UUID | None:
    """The run that ``run`` follows, which may have been pruned; None: it follows none."""
    return followed(run.idempotency_key) if run.trigger == Trigger.CHAIN else None


def followed_run(run: Run, scope: Scope = EVERYTHING) -> Run | None:
    """None also if it was pruned."""
    run_id = followed_id(run)
    return scope.runs.select_related("job").filter(pk=run_id).first() if run_id else None


def followers_of(run: Run, scope: Scope = EVERYTHING) -> list[Run]:
    """The runs that follow ``run``, of the jobs that come after its own as the links are now."""
    jobs = Link.objects.using(alias_for(Link)).filter(after=run.job_id).values_list("job_id", flat=True)
    runs = scope.runs.select_related("job")
    return list(runs.filter(job__in=list(jobs), idempotency_key=key_after(run.pk)).order_by("pk")[:SHOWN])


def jobs_after(job: Job, scope: Scope = EVERYTHING) -> list[Link]:
    """At most one more than are shown."""
    links = Link.objects.using(alias_for(Link)).filter(after=job.pk).select_related("job")
    return list(scope.of_jobs(links, "job").order_by("job__namespace", "job__name")[: SHOWN + 1])
