"""A cluster under test: supervised nodes and workers, jobs that record witnesses, and a final
account.

A scenario starts the cluster, injects faults, lets it settle, and verifies its guarantees:

    cluster.start(jobs=10)
    cluster.nodes[0].process.kill()
    cluster.run_for(SECONDS)
    verdict = cluster.account()

A process that exits unexpectedly is started again, as a supervisor would do. For example, Celery's
workers may exit when their broker does.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
from django.db import DatabaseError, connection
from django.db.models import F, Max, Min

from django_dcron.db.now import database_now
from django_dcron.models import Attempt, Job, Node, Run
from django_dcron.policies.lifecycle import FINAL
from tests import services
from tests.app import faults
from tests.app.tasks import WITNESS_LOG
from tests.checker import Verdict, check
from tests.conftest import StartProcess
from tests.factories import make_job
from tests.model.transitions import Transition, is_outcome_of_a_claim, not_allowed
from tests.verdict import changes
from tests.verdict.history import History
from tests.verdict.judgement import Totals, judge
from tests.verdict.tables import read_history
from tests.verdict.witness import Anchor, read_log
from tests.waiting import TIMEOUT, wait_until, wait_until_none

SECOND = timedelta(seconds=1)
ON_TIME = SECOND
"""A run that starts within this time after it was due is on time."""
WITNESS = "tests.app.tasks.witness"
AWAITED_WITNESS = "tests.app.tasks.awaited_witness"
RESTART_AFTER = 0.2
"""Seconds between two passes of the supervisor, which restarts processes that exited."""
# Rates that a machine sustains even if it is several times slower than usual. With more runs than
# the workers can execute, no scenario ends.
EVERY = "*/2 * * * * *"
EXCLUSIVE_EVERY = "*/4 * * * * *"
IN_ALL_SHARDS: dict[str, Any] = {"jobs": 64, "schedule": "H/8 * * * * *"}
"""For ``Cluster.start``: a job in each shard, and 8 runs per second in all."""


def now() -> datetime:
    return database_now("default")


@dataclass
class Member:
    """A node or worker, and whether its supervisor keeps it running."""

    process: services.Process
    supervised: bool = True
    exits: list[int | None] = field(default_factory=list)
    """Its exit codes, one for each unexpected exit."""

    def revive(self) -> None:
        if self.supervised and not self.process.running:
            self.exits.append(self.process.exit_code)
            self.process.start()

    def leave(self) -> int:
        """Stop the process cleanly and for good. Wait for its end and return its exit code."""
        self.supervised = False
        self.process.terminate()
        return self.process.wait(TIMEOUT)

    def kill_for_good(self) -> None:
        self.supervised = False
        self.process.kill()


class Cluster:
    def __init__(
        self,
        start_runcron: StartProcess,
        start_worker: StartProcess,
        start_process: StartProcess,
        witness_log: Path,
    ):
        self._start_runcron = start_runcron
        self._witness_log = witness_log
        self._start_worker = start_worker
        self._start_process = start_process
        self.nodes: list[Member] = []
        self.workers: list[Member] = []
        self.history: History | None = None
        self.totals: Totals | None = None
        self.recoveries: list[Recovery] = []
        self.doctor_env: dict[str, str] = {}
        self._records_changes = False
        self._jobs: list[Job] = []
        self._stopping = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, name="supervisor")

    # --- lifecycle -------------------------------------------------------------------------------

    def start(
        self,
        *,
        jobs: int,
        nodes: int = 2,
        workers: int = 2,
        node_env: Mapping[str, str] | None = None,
        worker_env: Mapping[str, str] | None = None,
        exclusive: str = "queue_all",
        record_changes: bool = True,
        **fields: Any,
    ) -> list[Job]:
        """Start jobs that run every 2 s and record witnesses, unless ``fields`` override this.

        The window opens before the first node starts. Every other job has the policy ``exclusive``
        and half as many occurrences, because its runs may wait for one another. ``queue_all`` loses
        none of them. ``skip`` is for an outage whose occurrences aren't caught up. Triggers record
        the changes of runs on PostgreSQL, unless ``record_changes`` is false.
        """
        self._records_changes = record_changes and connection.vendor == "postgresql"
        for _ in range(workers):
            self.add_worker(env=worker_env, wait=False)
        for worker in self.workers:
            worker.process.wait_for_log(" ready.", TIMEOUT)
        defaults = {
            "target": WITNESS,
            "schedule": EVERY,
            "overlap_policy": "allow",
            "max_attempts": 5,
            "retry_backoff": SECOND,
        }
        one_at_a_time = defaults | {"overlap_policy": exclusive, "schedule": EXCLUSIVE_EVERY}
        made = [
            make_job(**(one_at_a_time if number % 2 else defaults) | fields)
            for number in range(jobs)
        ]
        if self._records_changes:
            with connection.cursor() as cursor:
                changes.install(cursor)
        self.after = now()
        for _ in range(nodes):
            self.add_node(env=node_env)
        self._supervisor.start()
        self._wait_until_each_has_led()
        self._jobs = made
        return made

    def add_node(self, *options: str, env: Mapping[str, str] | None = None) -> Member:
        name = f"node-{len(self.nodes)}"
        env = {WITNESS_LOG: str(self._witness_log), **(env or {})}  # for ``--embedded``
        self.nodes.append(Member(self._start_runcron("--name", name, *options, env=env)))
        return self.nodes[-1]

    def add_worker(self, *options: str, env: Mapping[str, str] | None = None, **how: Any) -> Member:
        env = {WITNESS_LOG: str(self._witness_log), **(env or {})}
        self.workers.append(Member(self._start_worker(*options, env=env, **how)))
        return self.workers[-1]

    def nodes_with_claims(self) -> list[Member]:
        """The nodes that have claimed runs. If there are few jobs, one node may claim all runs."""
        claimers = set(Run.objects.exclude(node="").values_list("node", flat=True))
        names = {claimer.rpartition("-")[0] for claimer in claimers}
        return [member for number, member in enumerate(self.nodes) if f"node-{number}" in names]

    def _wait_until_each_has_led(self) -> None:
        """Wait until each node has led once. A fault may kill nodes as soon as they lead."""
        names: set[str] = set()

        def all_have_led() -> bool:
            leaders = Node.objects.filter(shards__gt=0).values_list("name", flat=True)
            names.update(leaders)
            return len(names) == len(self.nodes)

        wait_until(all_have_led, TIMEOUT, what="each node to lead", interval=0.1)

    def leading(self) -> int:
        """The number of live nodes that lead shards."""
        return Node.objects.live(6 * SECOND).filter(shards__gt=0).count()

    def run_for(self, seconds: float) -> None:
        """Wait until this many seconds after the window opened."""
        self.wait_for(self.after + seconds * SECOND)

    def wait_for(self, instant: datetime) -> None:
        wait_until(lambda: now() >= instant, TIMEOUT + 120, what=f"{instant}", interval=0.1)

    def _supervise(self) -> None:
        while not self._stopping.wait(RESTART_AFTER):
            for member in [*self.nodes, *self.workers]:
                member.revive()

    def close(self) -> None:
        self._stopping.set()
        if self._supervisor.is_alive():
            self._supervisor.join()
        if self._records_changes:
            with suppress(DatabaseError), connection.cursor() as cursor:
                changes.remove(cursor)

    # --- faults ----------------------------------------------------------------------------------

    def remove_faults(self) -> None:
        """Kill each process that has a fault. Its supervisor starts it again without the fault."""
        for member in [*self.nodes, *self.workers]:
            if member.process.env.pop(faults.VARIABLE, None):
                member.process.kill()

    def wait_for_recovery(self, kind: str, since: datetime | None = None) -> None:
        """Wait until all jobs run on time again, and record how long that took.

        The time counts from ``since``, by default from now: the end of the fault. It ends with the
        last start that was late, or with the first start if none was.
        """
        since = since or now()
        names = {job.pk for job in self._jobs}

        def recovered() -> bool:
            at = now()
            due = Run.objects.exclude(state__in=FINAL).filter(due_at__gt=self.after)
            if due.filter(due_at__lte=at - ON_TIME, started_at=None).exists():
                return False
            fresh = Attempt.objects.filter(due_at__gt=since, outcome="succeeded")
            on_time = fresh.filter(started_at__lte=F("due_at") + ON_TIME)
            return names <= set(on_time.values_list("run__job", flat=True))

        wait_until(recovered, TIMEOUT, what=f"all jobs to run on time after {kind}", interval=0.2)
        started = Attempt.objects.filter(started_at__gt=since)
        late = started.filter(started_at__gt=F("due_at") + ON_TIME)
        last = late.aggregate(at=Max("started_at"))["at"]
        ended = last or started.aggregate(at=Min("started_at"))["at"]
        self.recoveries.append(Recovery(kind, (ended - since) / SECOND))

    # --- the account -----------------------------------------------------------------------------

    def account(self, *, accepted: Collection[str] = ()) -> Verdict:
        """Close the window and verify it. Fail with the findings of the doctor, the strict checker
        and the verdict.

        All runs that are due in the window must end. While the nodes live, the doctor may find only
        ``accepted`` codes. Once no process writes any more, the strict checker must find nothing.
        Neither may the verdict, which shares no code with the package.
        """
        self.until = now().replace(microsecond=0)
        self.wait_for(self.until + SECOND)
        due = Run.objects.exclude(state__in=FINAL).filter(scheduled_at__lte=self.until)
        wait_until_none(due.count, TIMEOUT, what="all due runs to end")
        self._wait_for_a_clean_doctor(frozenset(accepted))
        self.stop()
        self.history = self._read_history()
        made = [Transition(each.old, each.new, each.attempts) for each in self.history.changes]
        assert not not_allowed(each for each in made if not is_outcome_of_a_claim(each))
        verdict = check(self.after, self.until)
        assert not verdict.problems, str(verdict)
        judged = judge(self.history)
        self.totals = judged.totals
        assert not judged.findings, str(judged)
        return verdict

    def stop(self) -> None:
        """Stop the nodes, let the workers finish, and stop them too. Nothing changes afterwards."""
        for node in self.nodes:
            if node.process.running:
                assert node.leave() == 0, node.process.log[-5000:]
        dispatched = Run.objects.filter(state__in=("queued", "running"))
        wait_until_none(dispatched.count, TIMEOUT, what="the workers to finish")
        # The end of a run may have dispatched a waiting run.
        for worker in self.workers:
            if worker.process.running:
                worker.leave()

    def _read_history(self) -> History:
        before, at, after = time.monotonic(), now(), time.monotonic()
        starts = read_log(self._witness_log, Anchor((before + after) / 2, at))
        exits = Counter(
            f"exit {code}" for member in [*self.nodes, *self.workers] for code in member.exits
        )
        with connection.cursor() as cursor:
            history = read_history(
                cursor,
                self.after,
                self.until,
                starts,
                witnessed=[WITNESS, AWAITED_WITNESS],
                with_changes=self._records_changes,
            )
        about = {"database": connection.vendor, "at": f"{at:%Y-%m-%d %H:%M:%S} UTC"}
        return replace(history, faults=dict(exits), about=about)

    def _wait_for_a_clean_doctor(self, accepted: frozenset[str]) -> None:
        """Nodes may need a lease to detect dead processes, and a heartbeat to lead all shards."""
        answers: list[str] = []

        def clean() -> bool:
            command = ["-m", "django", "dcron", "doctor", "--json"]
            doctor = self._start_process("doctor", *command, env=self.doctor_env)
            exit_code = doctor.wait(TIMEOUT)
            answers.append(doctor.log)
            # Log records come before the report, and a line for people after it.
            _, brace, report_and_text = doctor.log.partition("{\n")
            assert brace, f"the doctor printed no report and exited with {exit_code}"
            report, _ = json.JSONDecoder().raw_decode(brace + report_and_text)
            assert exit_code == (0 if report["healthy"] else 1)
            return accepted.issuperset(finding["code"] for finding in report["findings"])

        try:
            wait_until(clean, TIMEOUT, what="the doctor to find nothing", interval=1)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{answers[-1]}") from None


@dataclass(frozen=True)
class Recovery:
    """How long the cluster took to run all jobs on time again after a fault."""

    kind: str
    seconds: float


@dataclass(frozen=True)
class Line:
    """The line of a scenario in the summary."""

    scenario: str
    expected: int
    runs: int
    attempts: int
    starts: int
    lost: int
    duplicated: int
    seconds: float

    @classmethod
    def of(cls, scenario: str, totals: Totals, seconds: float) -> "Line":
        return cls(
            scenario,
            expected=totals.occurrences,
            runs=totals.runs,
            attempts=totals.attempts,
            starts=totals.starts,
            lost=totals.lost,
            duplicated=totals.duplicated,
            seconds=seconds,
        )


def shorter_durations(**seconds: float) -> dict[str, str]:
    """Return an environment with shorter durations, such as ``REDELIVER_AFTER=2``."""
    return {"DCRON_TEST_SETTINGS": json.dumps(seconds)}


def stopped(member: Member) -> bool:
    """Whether a fault has suspended the process."""
    return psutil.Process(member.process.pid).status() == psutil.STATUS_STOPPED


@contextmanager
def suspended(members: Collection[Member]) -> Iterator[None]:
    """Suspend these processes and their children. They don't notice."""
    for member in members:
        member.process.suspend()
    try:
        yield
    finally:
        for member in members:
            member.process.resume()


def fault(at: str | list[str], *, signal: str = "SIGKILL", **when: Any) -> dict[str, str]:
    """The environment of a process with this fault (see ``tests.app.faults``)."""
    return {faults.VARIABLE: json.dumps({"at": at, "signal": signal, **when})}
