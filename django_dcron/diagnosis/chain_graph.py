"""Find the chain around a run or a job: the steps before it, and those after it by level.

Invariants:

- The number of queries depends on the depth of the chain, which is bounded, and not on its width.
- The graph has at most ``MAX_STEPS`` steps, and at most ``LEVELS_BEFORE + LEVELS_AFTER`` levels
  after the first step. If there are more, ``is_truncated`` is true.
- The graph contains only jobs and runs that the reader may see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.chains import followed_run
from django_dcron.diagnosis.scope import EVERYTHING, Scope
from django_dcron.models import Job, Link, Run
from django_dcron.runs.chains import follower_key, parse_follower_key

LEVELS_BEFORE = 3
LEVELS_AFTER = 3
MAX_STEPS = 40


@dataclass(slots=True)
class ChainStep:
    job: Job
    on: str = ""
    """How the previous step must end, as a label; empty for the first step."""
    run: Run | None = None
    """The run of the job in this chain; None if it doesn't exist, or in the chain of a job."""
    steps: list[ChainStep] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ChainGraph:
    first: ChainStep
    of_runs: bool
    """Whether the steps are runs, and not only jobs."""
    is_truncated: bool


def chain_of_run(run: Run, scope: Scope = EVERYTHING) -> ChainGraph | None:
    """Return the chain that ``run`` belongs to, or None if it belongs to none.

    Steps that haven't started have no run. Runs of jobs that aren't linked any more are omitted.
    """
    first = run
    for _level in range(LEVELS_BEFORE):
        before = followed_run(first, scope)
        if before is None:
            break
        first = before
    return _graph(ChainStep(first.job, run=first), scope)


def chain_of_job(job: Job, scope: Scope = EVERYTHING) -> ChainGraph | None:
    """Return the jobs that follow ``job``, directly or through others, or None if it has no chain.

    The chain begins at most ``LEVELS_BEFORE`` jobs earlier. It goes back only while exactly one job
    comes before.
    """
    first = job
    for _level in range(LEVELS_BEFORE):
        if len(first.after) != 1:
            break
        links = Link.objects.using(alias_for(Link)).filter(job=first.pk).select_related("after")
        link = scope.of_jobs(links, "after").first()
        if link is None:
            break
        first = link.after
    return _graph(ChainStep(first), scope)


def _graph(first: ChainStep, scope: Scope) -> ChainGraph | None:
    level, left, is_truncated = [first], MAX_STEPS - 1, False
    for _number in range(LEVELS_BEFORE + LEVELS_AFTER):
        links = _links_after(level, scope, left + 1)
        pairs = [(step, link) for step in level for link in links if link.after_id == step.job.pk]
        is_truncated = len(pairs) > left
        runs = _runs_after(level, links, scope) if first.run else {}
        level = []
        for step, link in pairs[:left]:
            run = runs.get((step.run.pk, link.job_id)) if step.run else None
            step.steps.append(ChainStep(link.job, str(link.get_on_display()), run))
            level.append(step.steps[-1])
        left -= len(level)
        if not level or is_truncated:
            break
    else:
        is_truncated = bool(_links_after(level, scope, 1))
    return ChainGraph(first, first.run is not None, is_truncated) if first.steps else None


def _links_after(level: Sequence[ChainStep], scope: Scope, most: int) -> list[Link]:
    links = Link.objects.using(alias_for(Link)).filter(after__in={step.job.pk for step in level})
    links = scope.of_jobs(links, "job").select_related("job", "job__statistics")
    return list(links.order_by("job__namespace", "job__name", "pk")[:most])


def _runs_after(
    level: Sequence[ChainStep], links: Sequence[Link], scope: Scope
) -> dict[tuple[object, int], Run]:
    """Return the following runs by the run that they follow and by their job."""
    keys = [follower_key(step.run.pk) for step in level if step.run]
    if not keys or not links:
        return {}
    jobs = {link.job_id for link in links}
    found = scope.runs.filter(job__in=jobs, idempotency_key__in=keys).defer("args", "kwargs")
    return {(parse_follower_key(run.idempotency_key), run.job_id): run for run in found}
