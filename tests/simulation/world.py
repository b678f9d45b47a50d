"""One simulation: a cluster with its database, lock server, broker and people."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import DatabaseError, connection
from django.db.models import Q

from django_dcron import control
from django_dcron.db.clock import ClusterClock
from django_dcron.dispatch import best_effort
from django_dcron.exceptions import (
    Conflict,
    DcronError,
    PermanentFailure,
    RetryLater,
)
from django_dcron.execution import heartbeat, pending_outcomes
from django_dcron.execution.current import current_run
from django_dcron.locks.database import DatabaseLock
from django_dcron.models import Calendar, Freeze, Job, Limit, Run
from django_dcron.policies.lifecycle import FINAL, State
from django_dcron.runs import start_facts
from django_dcron.targets import functions
from django_dcron.utils import sync_points
from tests.simulation import primitives, rows
from tests.simulation.cluster import THIS_RELEASE, Node, Worker, deliver
from tests.simulation.counts import Result
from tests.simulation.database import ArmedFault, Database
from tests.simulation.engine import Engine, Killed, Process, Task
from tests.simulation.observer import Observer
from tests.simulation.plan import (
    CALM,
    HOUR,
    LEASE,
    NODES,
    PROCESSES,
    RUN_LEASE,
    WORKERS,
    Item,
    Plan,
    behavior,
)
from tests.simulation.primitives import EPOCH
from tests.simulation.quiet import exact_checks
from tests.simulation.servers import server
from tests.simulation.services import Broker, LockServer
from tests.verdict.history import History, Start
from tests.verdict.judgement import Verdict, judge
from tests.verdict.tables import read_history

QUIET = 1800.0
"""Seconds between two checks whether everything has ended, after the last fault."""
LONGEST_QUIET = 20 * HOUR
REFUSALS = (ValidationError, DcronError, DatabaseError, ValueError, Job.DoesNotExist)
"""Errors that an action of a person may raise."""
RULES_OF_LAST_DEFINITION = frozenset(
    {"overlaps", "late_starts", "misfires", "attempts", "retries", "off_schedule", "order"}
)
"""Rules of the verdict that apply the last definition of a job to all of its runs."""
TARGET = "tests.simulation.world.work"
FIRST = datetime.fromtimestamp(EPOCH, UTC)

world: World
"""The simulation that runs."""


def simulate(plan: Plan, *, with_log: bool = False, stop_at_first: bool = True) -> Result:
    """Run the plan and judge it. ``with_log``: also return the log of what happened."""
    global world
    world = World(plan, with_log=with_log)
    return world.run(stop_at_first=stop_at_first)


class World:
    def __init__(self, plan: Plan, *, with_log: bool) -> None:
        self.plan = plan
        self.log_lines: list[str] | None = [] if with_log else None
        self.random = Random(f"run {plan.seed}")
        self.engine = Engine(self.random, self._task_failed)
        primitives.engine = self.engine
        self.observer = Observer(self.engine, self.log, rows)
        self.observer.on_next_attempt = lambda: self._may_resume_workers(60.0)
        self.database = Database(self.engine, self.observer.changed, self.observer.report)
        self.locks = LockServer(self.engine)
        self.broker = Broker(self.engine, self.observer.published)
        self.broker.log = self.log
        self.broker.on_message = lambda: deliver(self.engine, self.broker, self.workers)
        self.broker.on_revoke = self._revoke
        self.workers: list[Worker] = []
        self.nodes: dict[str, Node] = {}
        self.people = Process(self.engine, "people")
        self.starts: list[Start] = []
        self.faults: Counter[str] = Counter()
        self.edited: set[str] = set()
        """The names of jobs whose schedule or policies have changed."""
        self.slow_rescues_until = 0.0
        """Until when each node is slow right after it has read an old heartbeat."""
        self.quiet = False
        """Whether the last fault is over."""
        self._last_process: Process | None = None
        self._settings = THIS_RELEASE
        self.engine.before_switch = self._switch_globals

    # --- the steps --------------------------------------------------------------------------------

    def run(self, *, stop_at_first: bool) -> Result:
        plan, engine = self.plan, self.engine
        server.clear()
        heartbeat._by_process.clear()
        pending_outcomes._by_process.clear()
        functions.registered[TARGET] = work
        with self._installed():
            try:
                self._begin()
                while engine.now < plan.end and not (stop_at_first and self.observer.findings):
                    engine.run_until(min(engine.now + HOUR, plan.end))
                if not (stop_at_first and self.observer.findings):
                    self._settle()
            finally:
                self._end()
        result = Result(
            seed=plan.seed,
            hours=plan.hours,
            events=engine.events,
            statements=self.database.statements,
            single_statement_starts=self.database.single_statement_starts,
            runs=self.observer.counts["made"],
            starts=len(self.starts),
            faults=self.faults,
            digest=self.observer.digest,
            findings=list(self.observer.findings),
            log_lines=self.log_lines or [],
        )
        if not result.findings:
            result.history = self._history()
            verdict = judge(result.history)
            result.occurrences = verdict.totals.occurrences
            result.lost, result.duplicated = verdict.totals.lost, verdict.totals.duplicated
            result.findings = self._findings_of(verdict)
        return result

    def _create_job(self, number: int) -> None:
        job = Job(target=TARGET, **self.plan.jobs[number])
        for later, earlier, on in self.plan.links:
            if later == number:
                job.after = {str(Job(**self.plan.jobs[earlier])): on}
        control.save(job)

    def _begin(self) -> None:
        for limit in self.plan.limits:
            control.save_limit(Limit(**limit))
        for calendar in self.plan.calendars:
            control.save_calendar(Calendar(**calendar))
        for number in range(len(self.plan.jobs)):
            self._create_job(number)
        for name, namespace in zip(NODES, self.plan.nodes, strict=False):
            node = Node(self.engine, name, self._lock, self.broker, namespace)
            self.nodes[name] = node
            self.engine.at(self.random.random() * 60, node.start)
        self.workers = [Worker(self.engine, name, self.broker) for name in WORKERS]
        for worker in self.workers:
            worker.start()
        for item in self.plan.items:
            self.engine.at(item.at, partial(self._apply, item))

    def _lock(self) -> Any:
        return self.locks if self.plan.lock == "redis" else DatabaseLock()

    def _settle(self) -> None:
        """End all faults, and let everything work until all runs of the window have ended."""
        self.log("the faults end")
        self.quiet = True
        now = self.engine.now
        self._end_faults()
        self.people.start("repair", self._repair)
        while self.engine.now < now + LONGEST_QUIET:
            self.engine.run_until(self.engine.now + QUIET)
            if self._is_settled() or self.observer.findings:
                return

    def _end_faults(self) -> None:
        now = self.engine.now
        self.database.unreachable_until = self.database.read_only_until = now
        self.database.statistics_locked_until = now
        self.database.attempts_locked_until = now
        began, ended = self.observer.outage
        self.observer.outage = began, min(ended, now)
        self.locks.unreachable_until = self.broker.unreachable_until = now
        for until in (
            self.database.unreachable_for,
            self.locks.unreachable_for,
            self.broker.unreachable_for,
        ):
            until.clear()
        for process in self._processes():
            process.armed.clear()
            process.resume()
        for worker in self.workers:
            worker.waiting_faults.clear()
        self.broker.message_faults.lose = self.broker.message_faults.delay = 0
        self.broker.message_faults.return_until = self.slow_rescues_until = now
        self.broker.on_message()

    def _begin_calm(self) -> None:
        """End all faults for a while, so that the next fault doesn't hide a forgotten run."""
        self._end_faults()
        began = self.engine.now
        self.engine.after(CALM - 60, lambda: self._check_calm(began))

    def _check_calm(self, began: float) -> None:
        """Report pending runs that were due long ago, although a node served them all the time.

        A node may have forgotten them. After the next fault, another node could take its shards
        and dispatch them.
        """
        served = {
            node.namespace
            for node in self.nodes.values()
            if node.process.alive and node.process.started_at < began
        }
        calm_since = self.database.now - timedelta(seconds=CALM)
        is_frozen = Freeze.objects.filter(Q(until=None) | Q(until__gt=calm_since)).exists()
        if self.quiet or is_frozen:
            return
        for run in Run.objects.pending().select_related("job"):
            if not served & {"", run.job.namespace}:
                continue
            due = run.due_at.timestamp() - EPOCH
            age = self.engine.now - max(due, self.observer.pending_since[run.pk.hex])
            if age > LEASE + 300:
                self.observer.report(
                    f"unfinished: run {run.pk.hex[-6:]} is pending {age:.0f} s after it was due, "
                    f"without a fault for {self.engine.now - began:.0f} s"
                )

    def _processes(self) -> Iterator[Process]:
        for node in self.nodes.values():
            yield node.process
        for worker in self.workers:
            yield worker.main
            for child in worker.children:
                yield child.process

    def _repair(self) -> None:
        """Resume paused jobs, correct invalid schedules, and let all runs start."""
        for limit in Limit.objects.exclude(max_started=None):
            limit.max_started = limit.interval = None  # otherwise, waiting runs may need days
            control.save_limit(limit)
        for freeze in Freeze.objects.all():
            with suppress(*REFUSALS):
                control.unfreeze(freeze.namespace or None)
        for job_id in list(Job.objects.values_list("pk", flat=True)):
            while not self._repair_job(job_id):
                pass

    def _repair_job(self, job_id: int) -> bool:
        """Return False if a node or worker changed the job at the same time."""
        job = Job.objects.get(pk=job_id)
        try:
            if job.schedule == "every now and then":
                job.schedule, job.pause_after_failures = "*/10 * * * *", None
                control.save(job)
            elif job.pause_after_failures:
                job.pause_after_failures = None
                control.save(job)
            if not job.enabled:
                control.resume(job)
        except Conflict:
            return False
        return True

    def _is_settled(self) -> bool:
        end = FIRST + timedelta(seconds=self.plan.end)
        left = Run.objects.filter(scheduled_at__lte=end).exclude(state__in=FINAL)
        behind = Job.objects.filter(enabled=True, cursor__next_at__lte=end)
        return not left.exists() and not behind.exists()

    def _end(self) -> None:
        """Kill all processes. Their tasks only run ``finally`` blocks."""
        for process in [*self._processes(), self.people]:
            process.on_death = lambda: None
            process.kill()
        for process in self.engine.killed:
            process.on_death = lambda: None
        while self.engine.killed:
            self.engine._end_tasks(self.engine.killed.pop(0))
        self._use_settings(THIS_RELEASE)

    def _history(self) -> History:
        with connection.cursor() as cursor:
            read = read_history(
                rows.AllRows(cursor),
                FIRST,
                FIRST + timedelta(seconds=self.plan.end),
                self.starts,
                witnessed=[TARGET],
            )
        # Nothing is missing, so retention excuses nothing.
        return replace(
            read,
            jobs=[replace(job, keep_runs=None, keep_for=None) for job in read.jobs],
            changes=self.observer.changes,
            limits=self.observer.limits,
        )

    def _findings_of(self, verdict: Verdict) -> list[str]:
        """Return the findings, without those that apply a job's last definition to earlier runs."""
        return [
            str(finding)
            for finding in verdict.findings
            if not (
                finding.rule in RULES_OF_LAST_DEFINITION
                and not finding.message.startswith("schedule run")
                and finding.about.partition(" ")[0].rpartition("/")[2] in self.edited
            )
        ]

    # --- surroundings -----------------------------------------------------------------------------

    @contextmanager
    def _installed(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(primitives.installed(self.random))
            stack.enter_context(server.installed(self.database))
            stack.enter_context(exact_checks())
            stack.enter_context(self.database.locks_of_statistics())
            stack.enter_context(self.database.locks_of_attempts())
            stack.enter_context(
                patch.object(best_effort, "shared_dispatcher", self.broker.dispatcher)
            )
            stack.enter_context(patch.object(sync_points, "listener", self._reach))
            stack.enter_context(patch.object(start_facts, "_clock", None))
            stack.enter_context(patch.object(best_effort, "_broker_unreachable_until", 0.0))
            if self.log_lines is not None:
                handler = _LogHandler(self)
                root = logging.getLogger("django_dcron")
                root.addHandler(handler)
                stack.callback(root.removeHandler, handler)
            yield

    def _reach(self, point: str) -> None:
        if point == "rescue.silent" and self.engine.now < self.slow_rescues_until:
            self._slow_down_rescue()
        self.database.reach(point)

    def _slow_down_rescue(self) -> None:
        """Let the current node pause. Workers may continue meanwhile.

        After a pause of more than a third of a run lease, the node rescues no run for a whole one.
        """
        random = self.random
        pause = random.uniform(60.0, random.choice((RUN_LEASE / 3, 1.5 * RUN_LEASE)))
        fault = random.choice(("suspend", "stall"))
        primitives.process().armed.append(
            ArmedFault(fault, "rescue.silent", seconds=pause, report=self._count)
        )
        self._may_resume_workers(pause)

    def _may_resume_workers(self, within: float) -> None:
        """In most cases, let workers that have been suspended for long continue soon."""
        if self.random.random() < 0.8:
            self.engine.after(self.random.random() * within, self._resume_workers)

    def _resume_workers(self) -> None:
        for worker in self.workers:
            for process in (worker.main, *(child.process for child in worker.children)):
                is_suspended = process.suspended_until > self.engine.now
                if is_suspended and self.engine.now - process.suspended_at > RUN_LEASE / 2:
                    self.log(f"{process.name}/{process.pid} continues")
                    process.resume()
        self.broker.on_message()

    def _switch_globals(self, process: Process) -> None:
        """Give each process its own values of the globals that real processes don't share."""
        last = self._last_process
        if process is last:
            return
        if last is not None:
            last.module_globals["until"] = best_effort._broker_unreachable_until
        best_effort._broker_unreachable_until = process.module_globals.get("until", float("-inf"))
        clock = process.module_globals.get("clock")
        if clock is None:
            clock = process.module_globals["clock"] = ClusterClock()
        start_facts._clock = clock
        self._use_settings(process.settings or THIS_RELEASE)
        self._last_process = process

    def _use_settings(self, of_release: dict[str, Any]) -> None:
        if of_release is not self._settings:
            self._settings = of_release
            for name, value in of_release.items():
                setattr(settings, name, value)

    def log(self, text: str) -> None:
        if self.log_lines is not None:
            at = datetime.fromtimestamp(EPOCH + self.engine.now, UTC)
            task = self.engine.current
            who = task.process.name if task else "-"
            self.log_lines.append(f"{at:%d %H:%M:%S.%f}"[:-3] + f" {who:9} {text}")

    def _task_failed(self, task: Task, error: BaseException) -> None:
        import traceback

        lines = "".join(traceback.format_exception(error)[-6:])
        self.observer.report(f"{task.process.name}/{task.name} died: {error!r}\n{lines}")

    def _revoke(self, key: Any, worker: str) -> None:
        for each in self.workers:
            each.revoke(key, worker)

    # --- faults and actions -----------------------------------------------------------------------

    def _apply(self, item: Item) -> None:
        if self.quiet:
            return
        self.log(f"* {item}")
        if item.kind == "calm":
            self._begin_calm()
        elif hasattr(self, f"_fault_{item.kind}"):
            self.faults[item.kind] += 1
            getattr(self, f"_fault_{item.kind}")(**item.given)
        else:
            act = getattr(self, f"_do_{item.kind}")
            self.people.start(item.kind, lambda: self._act(act, item.given))

    def _act(self, act: Callable[..., None], given: dict[str, Any]) -> None:
        try:
            act(**given)
        except REFUSALS as error:
            self.log(f"refused: {type(error).__name__}: {error}")

    def _on_busy_child(self, worker: str, number: int, act: Callable[[Process], None]) -> None:
        """Call ``act`` with a pool process that executes a run, now or later."""
        found = self._worker(worker)
        busy = [child for child in found.children if child.message is not None]
        if busy:
            act(busy[number % len(busy)].process)
        else:
            found.waiting_faults.append(partial(act))  # equal to no other fault

    def _worker(self, name: str) -> Worker:
        return next(worker for worker in self.workers if worker.name == name)

    def _count(self, fault: str, text: str) -> None:
        self.faults[fault] += 1
        self.log(f"* {text}")

    def _fault_at_point(
        self, process: str, fault: str, where: str, skip: int, seconds: float
    ) -> None:
        if process in NODES:
            self.nodes[process].restart_after = min(seconds, 900.0)
            targets = [self.nodes[process].process]
        else:
            targets = [child.process for child in self._worker(process).children]
        for target in targets:
            del target.armed[:-3]
            target.armed.append(ArmedFault(fault, where, skip, seconds, self._count))

    def _fault_slow_rescue(self, until: float) -> None:
        """Each node takes long between the read of an old heartbeat and the end of the attempt."""
        self.slow_rescues_until = until

    def _fault_slow(self, process: str, seconds: float, slowness: float) -> None:
        """The machine of one process, or of all, is slow: some statements take long."""
        for each in self._processes():
            if process in ("", each.name):
                each.slow_until, each.slowness = self.engine.now + seconds, slowness
                each.greatest_slowness = max(each.greatest_slowness, slowness)

    def _fault_kill(self, process: str, seconds: float) -> None:
        if process in NODES:
            self.nodes[process].restart_after = seconds
            self.nodes[process].process.kill()
        else:
            worker = self._worker(process)
            worker.restart_after = seconds
            worker.redeliver_after = self.random.choice((0.5, 60.0, 3600.0))
            worker.kill()

    def _fault_suspend(self, process: str, seconds: float) -> None:
        if process in NODES:
            self.nodes[process].process.suspend(seconds)
        else:
            self._worker(process).suspend(seconds)

    def _fault_kill_child(self, process: str, child: int, seconds: float) -> None:
        self._on_busy_child(process, child, Process.kill)

    def _fault_suspend_child(self, process: str, child: int, seconds: float) -> None:
        self._on_busy_child(process, child, lambda found: found.suspend(seconds))

    def _fault_drain(self, process: str, seconds: float) -> None:
        self.nodes[process].restart_after = seconds
        self.nodes[process].drain()

    def _fault_other_release(self, process: str, seconds: float) -> None:
        """The node ends and another release starts, or the current one again."""
        node = self.nodes[process]
        node.has_other_release = not node.has_other_release
        node.restart_after = seconds
        node.drain()

    def _fault_statistics_locked(self, seconds: float) -> None:
        self.database.statistics_locked_until = self.engine.now + seconds

    def _fault_ended_runs_locked(self, seconds: float) -> None:
        self.database.attempts_locked_until = self.engine.now + seconds

    def _fault_database_unreachable(self, process: str, seconds: float, lag: float = 0.0) -> None:
        """``lag``: within how many seconds after the outage all processes are connected again."""
        until = self.engine.now + seconds
        if process:
            self.database.unreachable_for[process] = until
            return
        for name in PROCESSES:
            again = until + self.random.random() * lag
            unreachable_for = self.database.unreachable_for
            unreachable_for[name] = max(unreachable_for.get(name, 0.0), again)
        is_over = self.database.unreachable_until < self.engine.now
        began = self.engine.now if is_over else self.observer.outage[0]
        self.database.unreachable_until = until
        self.observer.outage = began, until

    def _fault_database_read_only(self, seconds: float) -> None:
        self.database.read_only_until = self.engine.now + seconds

    def _fault_broker_unreachable(self, process: str, seconds: float) -> None:
        until = self.engine.now + seconds
        if process:
            self.broker.unreachable_for[process] = until
        else:
            self.broker.unreachable_until = until
        self.engine.at(until + 0.001, self.broker.on_message)

    def _fault_locks_unreachable(self, process: str, seconds: float) -> None:
        until = self.engine.now + seconds
        if process:
            self.locks.unreachable_for[process] = until
        else:
            self.locks.unreachable_until = until

    def _fault_locks_flushed(self) -> None:
        self.locks.flush()

    def _fault_locks_lost(self) -> None:
        for name in list(self.locks.keys)[::2]:
            del self.locks.keys[name]

    def _fault_queue_lost(self) -> None:
        self.broker.queue.clear()

    def _fault_clock_stepped(self, process: str, seconds: float) -> None:
        node = self.nodes[process]
        node.wall_offset += seconds
        node.process.wall_offset = node.wall_offset

    def _fault_messages_lost(self, number: int) -> None:
        self.broker.message_faults.lose = number

    def _fault_messages_duplicated(self, number: int, seconds: float) -> None:
        self.broker.message_faults.duplicate = number
        self.broker.message_faults.duplicate_after = seconds

    def _fault_messages_delayed(self, number: int, seconds: float) -> None:
        self.broker.message_faults.delay = number
        self.broker.message_faults.delay_for = seconds

    def _fault_messages_returned(self, seconds: float) -> None:
        self.broker.message_faults.return_until = self.engine.now + seconds

    def _job(self, number: int) -> Job:
        return Job.objects.get(name=f"job-{number}")

    def _until(self, seconds: float | None) -> datetime | None:
        return None if seconds is None else self.database.now + timedelta(seconds=seconds)

    def _do_trigger(self, job: int, which: int, kwargs: dict[str, Any] | None) -> None:
        key = f"key-{which}" if which < 3 else None
        control.trigger(self._job(job), kwargs=kwargs, idempotency_key=key)

    def _do_trigger_many(self, job: int, kwargs: list[dict[str, Any]]) -> None:
        for each in kwargs:
            control.trigger(self._job(job), kwargs=each)

    def _do_edit_limit(self, name: str, fields: dict[str, Any]) -> None:
        limit = Limit.objects.get(name=name)
        for field, value in fields.items():
            setattr(limit, field, value)
        control.save_limit(limit)

    def _do_edit_calendar(self, name: str, dates: str) -> None:
        calendar = Calendar.objects.get(name=name)
        self.edited.update(Job.objects.filter(calendar=calendar).values_list("name", flat=True))
        calendar.dates = dates
        control.save_calendar(calendar)

    def _some_run(self, job: int, which: int, *, finished: bool) -> Run | None:
        runs = Run.objects.select_related("job").filter(job__name=f"job-{job}")
        runs = runs.filter(state__in=FINAL) if finished else runs.exclude(state__in=FINAL)
        if not finished and which % 2:
            runs = runs.filter(state=State.RUNNING)
        found = list(runs.order_by("-scheduled_at")[:8])
        return found[which % len(found)] if found else None

    def _do_cancel(self, job: int, which: int) -> None:
        if run := self._some_run(job, which, finished=False):
            control.cancel(run)

    def _do_rerun(self, job: int, which: int) -> None:
        if run := self._some_run(job, which, finished=True):
            control.rerun(run)

    def _do_pause(self, job: int, which: int, seconds: float | None) -> None:
        control.pause(self._job(job), "by hand", self._until(seconds))

    def _do_resume(self, job: int, which: int) -> None:
        control.resume(self._job(job))

    def _do_edit(self, job: int, which: int, fields: dict[str, Any]) -> None:
        row = self._job(job)
        if not fields.keys() <= {"description", "kwargs"}:
            self.edited.add(row.name)
        for name, value in fields.items():
            setattr(row, name, value)
        control.save(row)

    def _do_edit_without_save(self, job: int, which: int, schedule: str) -> None:
        self.edited.add(f"job-{job}")
        Job.objects.filter(name=f"job-{job}").update(schedule=schedule)

    def _do_delete(self, job: int, which: int) -> None:
        """Delete the job, and create it again with the definition of the plan."""
        self.edited.add(f"job-{job}")
        if row := Job.objects.filter(name=f"job-{job}").first():
            control.delete(row)
        self._create_job(job)

    def _do_backfill(self, job: int, which: int, seconds: float) -> None:
        now = self.database.now
        control.backfill(self._job(job), now - timedelta(seconds=seconds), now, limit=8)

    def _do_freeze(self, job: int, which: int, seconds: float, of_job: bool) -> None:
        namespace = self.plan.jobs[job]["namespace"] if of_job else None
        control.freeze("by hand", namespace, self._until(seconds), replace=True)

    def _do_unfreeze(self, job: int, which: int) -> None:
        for freeze in Freeze.objects.all():
            control.unfreeze(freeze.namespace or None)


class _LogHandler(logging.Handler):
    def __init__(self, simulation: World) -> None:
        super().__init__()
        self._simulation = simulation

    def emit(self, record: logging.LogRecord) -> None:
        self._simulation.log(record.getMessage().partition("\n")[0])


def work(region: str, *, customer_id: int) -> str:
    """The code of all jobs: write to the witness log, and take some time."""
    run, engine = current_run(), world.engine
    about = behavior(world.plan.seed, str(run.job), run.scheduled_at, run.attempt)
    # Long jobs may have more runs than can ever end. When the faults are over, all runs must end.
    seconds = min(about.seconds, 5.0) if world.quiet else about.seconds
    world.observer.witnessed(run.id.hex, run.attempt)
    number = len(world.starts)
    begun = Start(
        run=str(run.id),
        attempt=run.attempt,
        job=str(run.job),
        scheduled_at=run.scheduled_at,
        began_at=_true_time(),
        process=run.worker,
    )
    world.starts.append(begun)
    try:
        _take(seconds, ignores=about.ignores)
    finally:
        if engine.current is not None and engine.current.process.alive:
            world.starts[number] = Start(**{**vars(begun), "ended_at": _true_time()})
    match about.how:
        case "fails":
            raise RuntimeError("as planned")
        case "fails for good":
            raise PermanentFailure("as planned")
        case "retries later":
            raise RetryLater("as planned", after=timedelta(seconds=90))
    return "done"


def _take(seconds: float, *, ignores: bool) -> None:
    """Compute for this long. While the process is suspended, the code makes no progress."""
    engine, process = world.engine, primitives.process()
    end = engine.now + seconds - process.suspended_for
    while (left := end + process.suspended_for - engine.now) > 0:
        try:
            engine.rest(left)
        except Killed:
            raise
        except Exception:
            if not ignores:
                raise


def _true_time() -> datetime:
    return datetime.fromtimestamp(EPOCH + world.engine.now, UTC)
