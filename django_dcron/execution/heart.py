"""One thread in each worker process that keeps the runs executing there alive in the database.

Every third of ``DCRON_RUN_LEASE`` it writes, for each of them, the heartbeat, and what is new of its log and progress;
and learns whether its cancel was requested, or whether it was declared lost and must stop. It may be told to look in
between, and a run may ask for a beat of its own. A row that somebody has locked is not waited for, as its holder may be
frozen: it is tried again soon, after those that were free. A database that is away is tried again at the next beat: the scheduler
waits a whole lease after an outage before it declares anything lost. With ``DCRON_STOP_UNHEARD_AFTER`` a run whose heartbeats
can't be written for so long is stopped. Nothing that goes wrong with one run ends the thread.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from queue import Empty, SimpleQueue

from django.db import connections

from django_dcron import revocation, transitions
from django_dcron.conclusion import Ending
from django_dcron.conf import settings
from django_dcron.domain.lifecycle import Outcome
from django_dcron.execution.current import CurrentRun
from django_dcron.execution.stubborn import end_by_force
from django_dcron.models import Attempt, Run
from django_dcron.models.database import AWAY, WaitLimits, alias_for, is_contention

logger = logging.getLogger("django_dcron.runs")

LONGEST_ANSWER = 5.0
"""Seconds that a run which asked for a beat waits for it."""
LOCK_PATIENCE = timedelta(milliseconds=200)
"""All others wait for it. (MariaDB knows whole seconds only.)"""
AGAIN_AFTER = 1.0
"""Seconds until a heartbeat that was in somebody's way is tried again."""


@dataclass(eq=False)
class _Pulse:
    run: CurrentRun
    written: dict[str, str | int | None] = field(default_factory=dict)
    """The output last written for it."""
    blocked: bool = False
    """Somebody had locked its row when it was last tried."""
    heard_at: float = field(default_factory=time.monotonic)
    """When the last heartbeat that was written was sent, on the monotonic clock."""
    ended: threading.Event = field(default_factory=threading.Event)


@dataclass(eq=False)
class _Wish:
    """For a beat at once. Queues in C, as the code that waits may be interrupted at any point."""

    pulse: _Pulse
    answer: SimpleQueue[None] = field(default_factory=SimpleQueue)


class Heart:
    def __init__(self) -> None:
        self._pulses: list[_Pulse] = []
        self._lock = threading.Lock()
        self._wishes: SimpleQueue[_Wish | None] = SimpleQueue()
        """None: for a beat of all."""
        self._thread: threading.Thread | None = None
        self._limits = WaitLimits(alias_for(Run))
        """Of the thread's connection."""
        self.looks = 0
        """How often it was told to look."""

    @contextmanager
    def watching(self, run: CurrentRun, *, looks: int | None = None) -> Iterator[None]:
        """``looks``: how often it had been told to before ``run`` started. If it was since, that may have been for it."""
        pulse = _Pulse(run)
        run.ask_for_beat = lambda: self._beat_now(pulse)
        with self._lock:
            self._pulses.append(pulse)
            if self._thread is None:
                self._thread = threading.Thread(target=self._live, name="dcron-heart", daemon=True)
                self._thread.start()
        if looks not in (None, self.looks):
            self._wishes.put(None)
        if patience := settings.STOP_UNHEARD_AFTER:
            # Not by the heart's thread, which may wait for a connection that has fallen silent.
            seconds = patience.total_seconds()
            threading.Thread(
                target=_stop_unheard, args=(pulse, seconds), name="dcron-unheard", daemon=True
            ).start()
        try:
            yield
        finally:
            pulse.ended.set()
            with self._lock:
                self._pulses.remove(pulse)

    def look(self) -> None:
        """Beat for all at once: one of them may be asked to stop. Never waits; fit for a signal handler."""
        self.looks += 1
        if self._thread is not None:
            self._wishes.put(None)

    def _beat_now(self, pulse: _Pulse) -> None:
        wish = _Wish(pulse)
        self._wishes.put(wish)
        try:
            wish.answer.get(timeout=LONGEST_ANSWER)
        except Empty:
            logger.warning(
                "%s: no heartbeat within %g s",
                pulse.run.job,
                LONGEST_ANSWER,
                extra={"event": "heartbeat_late", **_about(pulse.run)},
            )

    def _live(self) -> None:
        due = _next_round()
        while True:
            if wish := self._next_wish(due - time.monotonic()):
                self._beat(wish.pulse)
                wish.answer.put(None)
            if wish is None or time.monotonic() >= due:
                with self._lock:
                    pulses = sorted(self._pulses, key=lambda pulse: pulse.blocked)
                for pulse in pulses:
                    self._beat(pulse)
                due = _next_round(soon=any(pulse.blocked for pulse in pulses))
            with suppress(Exception):
                self._limits.lift()  # it may go back to a pool
            connections.close_all()  # this thread's own; most runs end before the next beat

    def _next_wish(self, seconds: float) -> _Wish | None:
        try:
            return self._wishes.get(timeout=max(seconds, 0))
        except Empty:
            return None

    def _beat(self, pulse: _Pulse) -> None:
        run, pulse.blocked, sent_at = pulse.run, False, time.monotonic()
        try:
            self._limits.impose(lock=LOCK_PATIENCE, silence=settings.RUN_LEASE)
            alive = transitions.beat(run.id, run.attempt)
            pulse.heard_at = sent_at
            if not alive or _cancel_requested(run):
                _stop(run)
            if alive:
                _write_news(pulse)
        except AWAY as error:
            pulse.blocked = is_contention(error)
            extra = {"event": "heartbeat_failed", **_about(run)}
            logger.warning("heartbeat of %s not written: %s", run.job, error, extra=extra)
        except Exception:  # whatever it is, the other runs must not be lost for it
            extra = {"event": "heartbeat_failed", **_about(run)}
            logger.exception("heartbeat of %s failed", run.job, extra=extra)


def _stop_unheard(pulse: _Pulse, patience: float) -> None:
    """Stop the run once no heartbeat was written for so many seconds; the thread ends with the run."""
    run = pulse.run
    while not pulse.ended.wait(max(pulse.heard_at + patience - time.monotonic(), 0)):
        silent = time.monotonic() - pulse.heard_at
        if silent < patience:
            continue
        extra = {"event": "stopped_unheard", **_about(run)}
        logger.error(
            "run stopped: its heartbeat could not be written for %.0f s: job=%s", silent, run.job, extra=extra
        )
        run.stop_unheard()
        ended = pulse.ended.wait(settings.HARD_TIMEOUT_AFTER.total_seconds())
        if run.end_process is not None and not ended and run.interruption.armed:  # still in the job's code
            run.end_process()
        return


def _about(run: CurrentRun) -> dict[str, str | int]:
    """For the log: this thread looks after all runs."""
    return {"job": str(run.job), "run": str(run.id), "attempt": run.attempt, "worker": run.worker}


def _next_round(*, soon: bool = False) -> float:
    third = settings.RUN_LEASE.total_seconds() / 3
    return time.monotonic() + (min(third, AGAIN_AFTER) if soon else third)


def _stop(run: CurrentRun) -> None:
    """Tell the job's code, and give it as long as after a timeout. Without a process to kill, nothing would be won by more."""
    if not run.cancelled and run.end_process is not None:
        timer = threading.Timer(settings.HARD_TIMEOUT_AFTER.total_seconds(), _end_if_at_work, [run])
        timer.daemon = True
        timer.start()
    run.cancel()


def _end_if_at_work(run: CurrentRun) -> None:
    if run.interruption.armed:
        message = f"did not stop within {settings.HARD_TIMEOUT_AFTER} after it was told to"
        end_by_force(run, Ending(Outcome.CANCELLED, message=message, kept=run.output()))


def _cancel_requested(run: CurrentRun) -> bool:
    return transitions.runs().filter(pk=run.id).exclude(cancel_requested_at=None).exists()


def _write_news(pulse: _Pulse) -> None:
    """The log and the progress so far, if there is more of them than was written before."""
    run, output = pulse.run, pulse.run.output()
    if output == pulse.written:
        return
    row = Attempt.objects.using(alias_for(Attempt)).filter(
        run=run.id, number=run.attempt, token=run.token, outcome=""
    )
    row.update(**output)
    pulse.written = output


_hearts: dict[int, Heart] = {}


def heart() -> Heart:
    """This process's. (A forked worker has inherited its parent's, but not the parent's thread.)"""
    return _hearts.setdefault(os.getpid(), Heart())


def look_for_cancels() -> None:
    """Somebody says that a run which may be executing in this process is to stop."""
    heart().look()


revocation.listeners.append(look_for_cancels)
