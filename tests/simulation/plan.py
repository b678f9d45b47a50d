"""What happens in a simulation, drawn from its seed: jobs, actions of people, and faults.

A plan is a list of plain items, so that the shrinker can omit any of them. What an execution
does depends only on the seed and the execution.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any, get_args

from django_dcron.utils.sync_points import Point
from tests.simulation.settings import DCRON_LEASE, DCRON_RUN_LEASE

HOUR = 3600.0
LEASE, RUN_LEASE = DCRON_LEASE.total_seconds(), DCRON_RUN_LEASE.total_seconds()
NODES = ("node-a", "node-b", "node-c")
WORKERS = ("worker-1", "worker-2")
PROCESSES = (*NODES, *WORKERS)
POINTS: tuple[str, ...] = get_args(Point)
NODE_POINTS = tuple(
    point
    for point in POINTS
    if point.partition(".")[0] in ("claim", "publish", "mark", "release", "prune", "rescue")
)
WORKER_POINTS = tuple(point for point in POINTS if point not in NODE_POINTS)
SCHEDULES = (
    *("*/10 * * * *", "*/7 * * * *", "*/15 * * * *", "*/20 * * * *", "5,35 * * * *"),
    *("0 * * * *", "30 */2 * * *", "@hourly", "25 * * * *", "0 30 */3 * * *"),
)


@dataclass(frozen=True)
class Item:
    at: float
    """Seconds since the begin."""
    kind: str
    given: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        given = ", ".join(
            f"{name}={value:.0f}" if isinstance(value, float) else f"{name}={value}"
            for name, value in self.given.items()
        )
        return f"{self.kind}({given})"


@dataclass(frozen=True)
class Plan:
    seed: int
    hours: float
    nodes: int
    lock: str
    jobs: tuple[dict[str, Any], ...]
    links: tuple[tuple[int, int, str], ...]
    """Tuples of the following job, the preceding job, and the end that links them."""
    items: tuple[Item, ...]

    @property
    def end(self) -> float:
        return self.hours * HOUR


def draw(seed: int, hours: float) -> Plan:
    random = Random(f"plan {seed}")
    nodes = random.choice((2, 2, 3))
    jobs = tuple(_job(random, number) for number in range(random.randint(3, 6)))
    links = []
    if random.random() < 0.4:
        on = random.choice(("succeeded", "failed", "ended"))
        links.append((len(jobs) - 1, 0, on))
    faults = random.choice((2.0, 5.0, 9.0))
    items = [
        _fault(random, random.random() * hours * HOUR, nodes) for _ in range(int(faults * hours))
    ]
    actions = random.choice((0.0, 1.5, 4.0))
    items += [
        _action(random, random.random() * hours * HOUR, len(jobs))
        for _ in range(int(actions * hours))
    ]
    items.sort(key=lambda item: item.at)
    lock = random.choice(("redis", "redis", "database"))
    return Plan(seed, hours, nodes, lock, jobs, tuple(links), tuple(items))


def minutes(random: Random, low: float, high: float) -> timedelta:
    return timedelta(seconds=random.randint(int(low * 60), int(high * 60)))


def _job(random: Random, number: int) -> dict[str, Any]:
    return {
        "name": f"job-{number}",
        "schedule": random.choice(SCHEDULES),
        "misfire_policy": random.choice(("skip", "run_latest", "run_all")),
        "misfire_grace": minutes(random, 2, 20),
        "catchup_limit": random.choice((2, 5, 100)),
        "overlap_policy": random.choice(
            ("allow", "skip", "queue_one", "queue_all", "cancel_running")
        ),
        "max_attempts": random.choice((1, 2, 3, 5)),
        "retry_backoff": minutes(random, 0.2, 5),
        "retry_jitter": random.choice((0.0, 0.1)),
        "timeout": random.choice((None, None, timedelta(minutes=4))),
        "start_deadline": random.choice((None, None, None, timedelta(minutes=8))),
        "pause_after_failures": random.choice((None, None, None, None, 3)),
        "jitter": random.choice((timedelta(), timedelta(), timedelta(seconds=90))),
        "keep_runs": random.choice((None, None, 8)),
        "priority": None,
    }


ACTIONS = (
    *("trigger", "trigger", "cancel", "cancel", "pause", "resume", "rerun"),
    *("edit", "edit", "edit"),
    *("backfill", "backfill", "freeze_jobs", "unfreeze_jobs", "edit_without_save"),
)


def _action(random: Random, at: float, jobs: int) -> Item:
    kind = random.choice(ACTIONS)
    given: dict[str, Any] = {"job": random.randrange(jobs), "which": random.randrange(8)}
    match kind:
        case "pause":
            given["seconds"] = random.choice((None, 60.0, 1200.0))
        case "freeze_jobs":
            given["seconds"] = random.choice((120.0, 1200.0))
        case "backfill":
            given["seconds"] = random.choice((1800.0, 7200.0))
        case "edit":
            given["fields"] = random.choice(
                (
                    {"description": "new"},
                    {"schedule": random.choice(SCHEDULES)},
                    {"overlap_policy": random.choice(("allow", "skip", "queue_all"))},
                    {"max_attempts": random.randint(1, 4)},
                )
            )
        case "edit_without_save":
            given["schedule"] = random.choice((*SCHEDULES, "every now and then"))
    return Item(at, kind, given)


def _fault(random: Random, at: float, nodes: int) -> Item:
    kind = random.choice(FAULTS)
    if random.random() < 0.5:  # Most happens at whole minutes.
        at = max(at - at % 300 + random.uniform(-20, 40), 1.0)
    node = random.choice(NODES[:nodes])
    worker = random.choice(WORKERS)
    given: dict[str, Any] = {}
    match kind:
        case "at_point":
            given = _at_point(random, node, worker)
        case "kill" | "freeze":
            given = {"process": random.choice((node, worker))}
            given["seconds"] = _duration(random)
        case "kill_child" | "freeze_child":
            given = {"process": worker, "child": random.randrange(2)}
            given["seconds"] = _duration(random)
        case "drain":
            given = {"process": node, "seconds": _duration(random)}
        case "database_unreachable" | "broker_unreachable" | "locks_unreachable":
            everybody = random.random() < 0.5
            given = {"process": "" if everybody else random.choice((node, worker))}
            given["seconds"] = _duration(random)
        case "database_read_only":
            given = {"seconds": _duration(random)}
        case "clock_stepped":
            given = {"process": node, "seconds": random.choice((-600.0, -30.0, 30.0, 600.0))}
        case "messages_lost" | "messages_doubled":
            given = {"number": random.randint(1, 5)}
        case "messages_delayed":
            given = {"number": random.randint(1, 5), "seconds": _duration(random)}
    return Item(at, kind, given)


FAULTS = (
    *("at_point",) * 24,
    *("kill", "kill", "freeze", "freeze", "kill_child", "kill_child", "freeze_child", "drain"),
    *("database_unreachable", "database_read_only", "broker_unreachable", "locks_unreachable"),
    *("clock_stepped", "locks_flushed", "locks_lost", "queue_lost"),
    *("messages_lost", "messages_doubled", "messages_doubled", "messages_delayed"),
)


def _duration(random: Random) -> float:
    return random.choice(
        (
            random.uniform(1, 30),
            random.uniform(1, 30),
            random.uniform(30, LEASE),
            random.uniform(LEASE, 2 * LEASE),
            random.uniform(RUN_LEASE, 3 * RUN_LEASE),
        )
    )


def _at_point(random: Random, node: str, worker: str) -> dict[str, Any]:
    fault = random.choice(("crash", "crash", "freeze", "stall", "lost_answer", "abort"))
    process = random.choice((node, worker))
    match fault:
        case "lost_answer":
            where = "after"
        case "abort":
            where = random.choice(("before", "inside", "inside", "commit"))
        case _:
            points = NODE_POINTS if process in NODES else WORKER_POINTS
            where = random.choice((*points, *points, "before", "inside", "commit", "after"))
    return {
        "process": process,
        "fault": fault,
        "where": where,
        "skip": random.choice((0, 0, 0, 1, 2, 5)),
        "seconds": _duration(random) if fault != "stall" else random.choice((0.5, 5.0, 300.0)),
    }


@dataclass(frozen=True)
class Behavior:
    """What one execution of a job's code does."""

    seconds: float
    how: str
    """``succeeds``, ``fails``, ``fails for good``, ``retries later`` or ``ignores interruptions``.
    """


DURATIONS = (1.0, 2.0, 5.0, 5.0, 10.0, 20.0, 40.0, 60.0, 150.0, 300.0, 400.0, 700.0, 1300.0)
"""Seconds that the code of a job takes."""


def behavior(seed: int, job: str, scheduled_at: object, attempt: int) -> Behavior:
    random = Random(f"behavior {seed} {job} {scheduled_at} {attempt}")
    seconds = random.choice(DURATIONS)
    drawn = random.random()
    for how, share in (
        ("fails", 0.15),
        ("fails for good", 0.02),
        ("retries later", 0.03),
        ("ignores interruptions", 0.02),
    ):
        drawn -= share
        if drawn < 0:
            return Behavior(seconds, how)
    return Behavior(seconds, "succeeds")
