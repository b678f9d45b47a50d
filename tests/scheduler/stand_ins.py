"""A clock that stands still until told, and a dispatcher that keeps what it is given."""

import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

from django_dcron.dispatch.base import DispatchFailed, DueRun, TakenInPart, Undeliverable

START = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


class StillClock:
    """Both clocks of a node, moved by the test alone."""

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


class MemoryDispatcher:
    """Implements the protocol of ``django_dcron.dispatch.base``."""

    address = "memory://"
    batch_size = 2000

    def __init__(self) -> None:
        self.handed_over: list[DueRun] = []
        self.batches: list[int] = []
        self.broker_away = False
        self.tried = threading.Semaphore(0)
        """Released at each publish, whatever comes of it."""
        self.undeliverable: set[str] = set()
        self.broken: set[str] = set()
        self.poison: set[str] = set()
        """The names of those whose publishing raises."""
        self.room: dict[str, int] = {}
        """How many of a target it takes, at the most, of those that are named here."""
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
            if self.broker_away:
                raise DispatchFailed("gone fishing")
            for run in prepared:
                if run.job_name in self.poison:
                    raise ZeroDivisionError(f"{run.job_name} upsets the driver")
                if run.job_name in self.undeliverable:
                    raise Undeliverable(f"no queue for {run.job_name}")
            left = {position for position, run in enumerate(prepared) if not self._take(run)}
            if left:
                raise TakenInPart("a queue is full", left)
        finally:
            self.tried.release()

    def _take(self, run: DueRun) -> bool:
        if run.target in self.room:
            if not self.room[run.target]:
                return False
            self.room[run.target] -= 1
        self.handed_over.append(run)
        return True

    def revoke(self, run_id: UUID, attempt: int, worker: str = "") -> None:
        self.revoked.append((run_id, attempt))

    def take_back(self) -> list[tuple[UUID, int]]:
        return self.unstarted

    def executing(self) -> list[str]:
        return []

    def close(self, wait: bool = True) -> None:
        self.closed.append(wait)

    @property
    def names(self) -> list[str]:
        return [run.job_name for run in self.handed_over]


def due_run(
    name: str, seconds: float = 0.0, attempt: int = 1, run_id: UUID | None = None, target: str = "t"
) -> DueRun:
    """A run due so many seconds after ``START``."""
    return DueRun(
        run_id=run_id or uuid4(),
        attempt=attempt,
        due_at=START + timedelta(seconds=seconds),
        job_id=1,
        job_name=name,
        target=target,
    )
