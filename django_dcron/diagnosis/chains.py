"""Look up chains: the run that a run follows, its followers, and the jobs after a job.

Each query is bounded and uses an index.
"""

from __future__ import annotations

from uuid import UUID

from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.scope import EVERYTHING, Scope
from django_dcron.models import Job, Link, Run
from django_dcron.policies.lifecycle import Trigger
from django_dcron.runs.chains import follower_key, parse_follower_key

SHOWN = 20
"""The maximum number of followers shown for a run, and of following jobs shown for a job."""


def followed_run_id(run: Run) -> UUID | None:
    """Return the id of the run that ``run`` follows, or None if it follows none.

    That run may have been pruned.
    """
    return parse_follower_key(run.idempotency_key) if run.trigger == Trigger.CHAIN else None


def followed_run(run: Run, scope: Scope = EVERYTHING) -> Run | None:
    """Return the run that ``run`` follows; None if there is none or if it was pruned."""
    run_id = followed_run_id(run)
    return scope.runs.select_related("job").filter(pk=run_id).first() if run_id else None


def followers_of(run: Run) -> list[Run]:
    """Return the runs that follow ``run``, of the jobs that are linked after its job now."""
    jobs = (
        Link.objects.using(alias_for(Link))
        .filter(after=run.job_id)
        .values_list("job_id", flat=True)
    )
    runs = EVERYTHING.runs.select_related("job")
    return list(
        runs.filter(job__in=list(jobs), idempotency_key=follower_key(run.pk)).order_by("pk")[:SHOWN]
    )


def jobs_after(job: Job, scope: Scope = EVERYTHING) -> list[Link]:
    """Return the links to the jobs after ``job``, at most ``SHOWN + 1``."""
    links = Link.objects.using(alias_for(Link)).filter(after=job.pk).select_related("job")
    return list(scope.of_jobs(links, "job").order_by("job__namespace", "job__name")[: SHOWN + 1])
