"""The admin saves jobs while a node claims them."""

from functools import partial

import pytest

from django_dcron import control
from django_dcron.exceptions import Conflict
from django_dcron.models import Job, Run
from django_dcron.policies.lifecycle import FINAL
from tests.checker import check
from tests.cluster.cluster import SECOND, WITNESS, now
from tests.conftest import StartProcess
from tests.factories import make_job
from tests.threads import repeating
from tests.waiting import wait_until


@pytest.mark.slow
def test_repeated_saves_during_claims_lose_no_update(
    start_runcron: StartProcess, transactional_db: None
) -> None:
    """The admin's saves don't overwrite the scheduler's changes, and vice versa."""
    jobs = [make_job(target=WITNESS, overlap_policy="allow") for _ in range(4)]
    after = now()
    node = start_runcron("--embedded")
    saved = dict.fromkeys((job.pk for job in jobs), 0)
    conflicts: list[Exception] = []

    def edit(own_jobs: list[Job]) -> None:
        """Change the description, and switch between two spellings of the same schedule."""
        for job in own_jobs:
            fresh = Job.objects.get(pk=job.pk)
            number = saved[job.pk] + 1
            fresh.description = f"edit {number}"
            fresh.schedule = "* * * * * *" if number % 4 < 2 else "*/1 * * * * *"
            try:
                control.save(fresh)
            except Conflict as error:
                conflicts.append(error)
                continue
            saved[job.pk] = number

    with repeating(partial(edit, jobs[:2])) as first, repeating(partial(edit, jobs[2:])) as second:
        wait_until(
            lambda: first or second or (now() >= after + 8 * SECOND and min(saved.values()) > 10),
            what="eight seconds, and ten saves of each job",
        )
    assert not conflicts, "the scheduler never changes the version that a save compares"
    until = now().replace(microsecond=0)
    wait_until(lambda: now() > until + SECOND, what="the next second")
    due = Run.objects.exclude(state__in=FINAL).filter(scheduled_at__lte=until)
    wait_until(lambda: not due.exists(), what="all due runs to end")
    node.terminate()
    assert node.wait() == 0
    for job in jobs:
        fresh = Job.objects.get(pk=job.pk)
        assert (fresh.description, fresh.version) == (f"edit {saved[job.pk]}", saved[job.pk] + 1)
    verdict = check(after, until)
    assert not verdict.problems, str(verdict)
    assert verdict.expected >= 4 * 7
