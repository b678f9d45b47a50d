"""Clocks of a node, and a dispatcher that keeps runs in memory."""

import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

from django_dcron.dispatch.base import DispatchFailed, DueRun, PartlyPublished, Undeliverable

START = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


class StillClock:
    """The wall clock and the monotonic clock of a node. Only the test advances them."""

    def __init__(self, now: datetime = START):
        self.instant = now
        self.seconds = 1000.0

    def now(self) -> datetime:
        return self.instant

    def monotonic(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        self.instant += timedelta(seconds=seconds)
        self.seconds += seconds


class SystemClock:
    """This machine's clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


class MemoryDispatcher:
    """Implements the protocol of ``django_dcron.dispatch.base``."""

    address = "memory://"
    batch_size = 2000

    def __init__(self) -> None:
        self.dispatched: list[DueRun] = []
        self.batches: list[int] = []
        self.broker_unreachable = False
        self.tried = threading.Semaphore(0)
        """Released at each publish, whether or not it succeeds."""
        self.undeliverable: set[str] = set()
        self.broken: set[str] = set()
        self.poison: set[str] = set()
        """Names of jobs whose publishing raises an exception."""
        self.room: dict[str, int] = {}
        """Maximum number of accepted runs by target. Other targets are unlimited."""
        self.unstarted: list[tuple[UUID, int]] = []
        self.revoked: list[tuple[UUID, int]] = []
        self.closed: list[bool] = []

    def prepare(self, run: DueRun) -> DueRun:
        if run.job_name in self.undeliverable:
            raise Undeliverable(f"no queue for {run.job_name}")
        if run.job_name in self.broken:
            raise ZeroDivisionError("a router's own mistake")
        return run

    def publish(self, prepared: Sequence[DueRun]) -> None:
        self.batches.append(len(prepared))
        try:
            if self.broker_unreachable:
                raise DispatchFailed("connection refused")
            for run in prepared:
                if run.job_name in self.poison:
                    raise ZeroDivisionError(f"the driver fails for {run.job_name}")
                if run.job_name in self.undeliverable:
                    raise Undeliverable(f"no queue for {run.job_name}")
            left = {position for position, run in enumerate(prepared) if not self._take(run)}
            if left:
                raise PartlyPublished("a queue is full", left)
        finally:
            self.tried.release()

    def _take(self, run: DueRun) -> bool:
        if run.target in self.room:
            if not self.room[run.target]:
                return False
            self.room[run.target] -= 1
        self.dispatched.append(run)
        return True

    def revoke(self, run_id: UUID, attempt: int, worker: str = "") -> None:
        self.revoked.append((run_id, attempt))

    def take_unstarted(self) -> list[tuple[UUID, int]]:
        return self.unstarted

    def executing(self) -> list[str]:
        return []

    def close(self, wait: bool = True) -> None:
        self.closed.append(wait)

    @property
    def names(self) -> list[str]:
        return [run.job_name for run in self.dispatched]


def due_run(
    name: str, seconds: float = 0.0, attempt: int = 1, run_id: UUID | None = None, target: str = "t"
) -> DueRun:
    """Return a run that is due ``seconds`` after ``START``."""
    return DueRun(
        run_id=run_id or uuid4(),
        attempt=attempt,
        due_at=START + timedelta(seconds=seconds),
        job_id=1,
        job_name=name,
        target=target,
    )
