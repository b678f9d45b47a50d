"""Actions of users on jobs and runs, with and without ``control``. Refused actions are ignored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.core.exceptions import ValidationError

from django_dcron import control
from django_dcron.admin.jobs import deletion
from django_dcron.exceptions import Conflict, InvalidSchedule, NotPossible
from django_dcron.models import Job, Limit, Run
from django_dcron.policies.lifecycle import FINAL
from tests.scheduler.stand_ins import StillClock
from tests.stateful.guarantees import Guarantees
from tests.stateful.rows import LIMITS
from tests.stateful.transactions import Crash, ResponseLost

MAX_JOBS = 3
NOBODY = 0
REFUSALS = (
    Conflict,
    InvalidSchedule,
    NotPossible,
    ValidationError,
    Job.DoesNotExist,
    Run.DoesNotExist,
)


class Users:
    def __init__(self, guarantees: Guarantees, clock: StillClock, numbers: Iterator[int]):
        self.guarantees = guarantees
        self.clock = clock
        self._numbers = numbers

    def make_limits(self) -> None:
        for name, fields in LIMITS.items():
            control.save_limit(Limit(name=name, **fields))

    def set_limit(self, name: str, maximum: int) -> None:
        with _ignoring_refusals():
            limit = Limit.objects.get(pk=name)
            for field in ("max_running", "max_started"):
                if field in LIMITS[name]:
                    setattr(limit, field, maximum)
            control.save_limit(limit)

    def create(self, fields: dict[str, Any]) -> None:
        if len(self.guarantees.rows.jobs) < MAX_JOBS:
            job = Job(
                name=f"job-{next(self._numbers)}",
                target="tests.app.tasks.witness",
                retry_jitter=0,
                **fields,
            )
            with _ignoring_refusals():
                control.save(job)

    def _job(self, which: int) -> Job:
        jobs = list(self.guarantees.rows.jobs)
        return Job.objects.get(pk=jobs[which % len(jobs)] if jobs else NOBODY)

    def edit(self, which: int, fields: dict[str, Any]) -> None:
        with _ignoring_refusals():
            job = self._job(which)
            for name, value in fields.items():
                setattr(job, name, value)
            control.save(job)

    def chain(self, which: int, after: int, on: str | None) -> None:
        """Chain the job after another, or after none if ``on`` is None. Some links form a cycle."""
        with _ignoring_refusals():
            job = self._job(which)
            job.after = {str(self._job(after)): on} if on else {}
            control.save(job)

    def edit_without_save(self, which: int, schedule: str) -> None:
        with _ignoring_refusals():
            Job.objects.filter(pk=self._job(which).pk).update(schedule=schedule)

    def pause(self, which: int, seconds: float | None) -> None:
        """Pause the job for this many seconds, or until it is resumed."""
        with _ignoring_refusals(), suppress(ValueError):  # other events may outlast the pause
            until = None if seconds is None else self.clock.now() + timedelta(seconds=seconds)
            control.pause(self._job(which), "by hand", until)

    def resume(self, which: int) -> None:
        with _ignoring_refusals():
            control.resume(self._job(which))

    def freeze(self, namespace: str | None, seconds: float | None) -> None:
        """Freeze scheduling for this many seconds, or until someone ends the freeze."""
        # Another event may outlast it, or there are no jobs.
        with _ignoring_refusals(), suppress(ValueError):
            until = None if seconds is None else self.clock.now() + timedelta(seconds=seconds)
            control.freeze("by hand", namespace, until, replace=True)

    def unfreeze(self, namespace: str | None) -> None:
        with _ignoring_refusals():
            control.unfreeze(namespace)

    def delete(self, which: int) -> None:
        with _ignoring_refusals():
            deletion.delete_unless_gone(self._job(which))

    def trigger(self, which: int, key: str | None) -> None:
        with _ignoring_refusals():
            job = self._job(which)
            made = control.trigger(job, idempotency_key=key)
            again = Run.objects.filter(job=job, idempotency_key=key) if key else ()
            assert all(run == made for run in again)

    def backfill(self, which: int, seconds: float) -> None:
        """Backfill the occurrences of the last ``seconds`` seconds."""
        with _ignoring_refusals():
            now = self.clock.now()
            control.backfill(self._job(which), now - timedelta(seconds=seconds), now, limit=5)

    def _run(self, which: int, *, finished: bool) -> Run:
        runs = [
            run.pk for run in self.guarantees.rows.runs.values() if (run.state in FINAL) is finished
        ]
        return Run.objects.select_related("job").get(
            pk=runs[which % len(runs)] if runs else UUID(int=NOBODY)
        )

    def rerun(self, which: int) -> None:
        with _ignoring_refusals():
            control.rerun(self._run(which, finished=True))

    def cancel(self, which: int) -> None:
        with _ignoring_refusals():
            control.cancel(self._run(which, finished=False))


@contextmanager
def _ignoring_refusals() -> Iterator[None]:
    """Ignore refusals and failures, because a user may give up."""
    with suppress(*REFUSALS, ResponseLost, Crash):
        yield
