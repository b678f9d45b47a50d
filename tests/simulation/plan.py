"""What happens in a simulation, drawn from its seed: jobs, actions of people, and faults.

A plan is a list of plain items, so that the shrinker can omit any of them. What the code of a job
does depends only on the seed, the job, the occurrence and the attempt.

The time between two calm periods has its own style: it leaves out some kinds of faults and repeats
others, and jobs are shorter or longer, and fail more or less often. A uniform mixture would seldom
produce several faults of the same kind in a row, or long jobs and long suspensions together ("swarm
testing").
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache
from math import ceil
from random import Random
from typing import Any, get_args

from django_dcron.utils.sync_points import Point
from tests.simulation.primitives import EPOCH
from tests.simulation.settings import DCRON_LEASE, DCRON_RUN_LEASE
from tests.simulation.timing import SCHEDULES, calendar_edit, draw_calendars, draw_timing

HOUR = 3600.0
LEASE, RUN_LEASE = DCRON_LEASE.total_seconds(), DCRON_RUN_LEASE.total_seconds()
NODES = ("node-a", "node-b", "node-c")
WORKERS = ("worker-1", "worker-2")
PROCESSES = (*NODES, *WORKERS)
NAMESPACES = ("default", "shop")
POINTS: tuple[str, ...] = get_args(Point)
PARTS_OF_NODES = ("claim", "publish", "mark", "release", "prune", "rescue")
IN_RESCUES = ("finish.ended", "follow.made", "retry.written", "limit.freed")
"""Points that a node reaches when it ends the attempt of a dead worker."""
NODE_POINTS = (
    *(point for point in POINTS if point.partition(".")[0] in PARTS_OF_NODES),
    *IN_RESCUES,
)
IN_TRANSACTIONS = (
    *("claim.locked", "claim.written", "release.locked", "start.held", "limit.joined"),
    *IN_RESCUES,
)
WORKER_POINTS = tuple(point for point in POINTS if point not in NODE_POINTS or point in IN_RESCUES)


@dataclass(frozen=True)
class Item:
    at: float
    """Seconds since the beginning."""
    kind: str
    given: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        given = ", ".join(
            f"{name}={value:.0f}" if isinstance(value, float) else f"{name}={value}"
            for name, value in self.given.items()
        )
        return f"{self.kind}({given})"


@dataclass(frozen=True)
class Style:
    """The mixture of faults, actions and jobs between two calm periods."""

    faults: float
    """Faults per hour."""
    actions: float
    """Actions per hour."""
    kinds: tuple[str, ...]
    """The kinds of faults. One is drawn from them, so more frequent kinds are in it more often."""
    slow_rescue: bool
    """Whether each node takes long between the read of an old heartbeat and the end of its attempt.
    """
    has_outage: bool
    """Whether nobody reaches the database for about a run lease."""
    spares_nodes: bool
    """Whether no fault hits a single node. Nodes rescue runs only after a run lease without a fault
    of their own. An outage of the database still hits all nodes.
    """
    bursts: float
    """The share of faults and actions that are followed by another one at once."""
    around_lease: float
    """The share of faults that last about as long as a run lease."""
    durations: tuple[float, ...]
    """Seconds that the code of a job takes."""
    fails: float
    """The share of executions that fail."""
    ignores: float
    """The share of executions that ignore interruptions."""


@cache
def style(seed: int, period: int) -> Style:
    random = Random(f"style {seed} {period}")
    if random.random() < 0.5:
        number = random.choice((2, 3, 4, 6))
        kinds = random.choices(tuple(FAULTS), tuple(FAULTS.values()), k=number)
    else:
        kinds = []
        for kind, share in FAULTS.items():
            kinds += [kind] * (share * random.choice((0, 0, 1, 1, 4)))
    slow_rescue = random.random() < 0.35
    spares_nodes = slow_rescue or random.random() < 0.1
    if spares_nodes:
        kinds = [kind for kind in kinds if kind not in OF_NODES]
    if random.random() < 0.2:  # Many guards matter only if workers are suspended.
        kinds += ["suspend_child"] * (len(kinds) // 3 + 1)
    return Style(
        faults=random.choice((3.0, 6.0, 12.0, 18.0)),
        actions=random.choice((0.0, 2.0, 6.0)),
        kinds=tuple(kinds or ("suspend_child",)),
        slow_rescue=slow_rescue,
        has_outage=random.random() < 0.3,
        spares_nodes=spares_nodes,
        bursts=random.choice((0.0, 0.2, 0.5)),
        around_lease=random.choice((0.0, 0.2, 0.6)),
        durations=random.choice((SHORT, MIXED, LONG, LONG)),
        fails=random.choice((0.05, 0.15, 0.15, 0.4)),
        ignores=random.choice((0.0, 0.02, 0.2)),
    )


@dataclass(frozen=True)
class Plan:
    seed: int
    hours: float
    nodes: tuple[str, ...]
    """The namespace of each node; empty for all namespaces."""
    lock: str
    jobs: tuple[dict[str, Any], ...]
    links: tuple[tuple[int, int, str], ...]
    """Tuples of the following job, the preceding job, and the end that links them."""
    limits: tuple[dict[str, Any], ...]
    calendars: tuple[dict[str, str], ...]
    items: tuple[Item, ...]

    @property
    def end(self) -> float:
        return self.hours * HOUR


def draw(seed: int, hours: float) -> Plan:
    random = Random(f"plan {seed}")
    nodes = random.choice((2, 2, 3))
    limits = tuple(_limit(random, number) for number in range(random.choice((0, 1, 1, 1, 2))))
    names = tuple(limit["name"] for limit in limits)
    timing = Random(f"timing {seed}")
    calendars = draw_calendars(timing)
    calendar_names = tuple(calendar["name"] for calendar in calendars)
    jobs = tuple(
        _job(random, number, names)
        | (draw_timing(timing, calendar_names) if timing.random() < 0.5 else {})
        for number in range(random.randint(3, 6))
    )
    links = []
    if random.random() < 0.4:
        on = random.choice(("succeeded", "failed", "ended"))
        links.append((len(jobs) - 1, 0, on))
    items = []
    for period in range(ceil(hours / CALM_EVERY)):
        begin = period * CALM_EVERY
        until = min(begin + CALM_EVERY, hours)
        since = begin * HOUR + (CALM if period else 0.0)
        if since >= until * HOUR:
            continue
        items += _items(random, style(seed, period), since, until * HOUR, len(jobs), nodes, names)
    items += [
        _timing_action(timing, hours * HOUR, len(jobs), calendar_names)
        for _ in range(int(hours * TIMING_ACTIONS))
    ]
    clocks = Random(f"clocks {seed}")
    steps = [_clock_step(clocks, hours * HOUR, nodes) for _ in range(int(hours * CLOCK_STEPS))]
    items += [
        step for step in steps if not style(seed, int(step.at / HOUR / CALM_EVERY)).spares_nodes
    ]
    items = [item for item in items if not _is_calm(item.at)]
    items += [Item(at * HOUR, "calm") for at in range(CALM_EVERY, int(hours), CALM_EVERY)]
    items.sort(key=lambda item: item.at)
    lock = random.choice(("redis", "redis", "database"))
    served, namespaces = _namespaces(seed, nodes, len(jobs))
    jobs = tuple(
        job | {"namespace": namespace} for job, namespace in zip(jobs, namespaces, strict=True)
    )
    return Plan(seed, hours, served, lock, jobs, tuple(links), limits, calendars, tuple(items))


def _namespaces(seed: int, nodes: int, jobs: int) -> tuple[tuple[str, ...], list[str]]:
    """Return the namespace of each node and each job. One of four simulations has two namespaces.

    A third node serves one of them, or all.
    """
    random = Random(f"namespaces {seed}")
    if random.random() >= 0.25:
        return (("",) * nodes), [NAMESPACES[0]] * jobs
    served = (*NAMESPACES, random.choice(("", *NAMESPACES)))[:nodes]
    return served, random.choices(NAMESPACES, k=jobs)


def _clock_step(random: Random, until: float, nodes: int) -> Item:
    given = {
        "process": random.choice(NODES[:nodes]),
        "seconds": random.choice((-600.0, -30.0, 30.0, 600.0)),
    }
    return Item(random.uniform(0.0, until), "clock_stepped", given)


def _items(
    random: Random,
    drawn: Style,
    begin: float,
    until: float,
    jobs: int,
    nodes: int,
    limits: tuple[str, ...],
) -> list[Item]:
    """Draw the faults and actions of a period, in seconds since the beginning."""
    items = _slow_rescue(random, begin, until) if drawn.slow_rescue else []
    if drawn.has_outage:
        given = {
            "process": "",
            "seconds": random.uniform(0.8, 1.8) * RUN_LEASE,
            "lag": _lag(random),
        }
        items.append(Item(random.uniform(begin, until), "database_unreachable", given))
    hours = (until - begin) / HOUR
    for _ in range(int(drawn.faults * hours)):
        items.append(_fault(random, drawn, random.uniform(begin, until), nodes))
        if random.random() < drawn.bursts:
            soon = items[-1].at + random.choice((0.1, 1.0, 5.0, 30.0, 120.0))
            if random.random() < 0.3:
                items.append(_action(random, items[-1].at, jobs, limits))
            else:
                items.append(replace(_fault(random, drawn, soon, nodes), at=soon))
    for _ in range(int(drawn.actions * hours)):
        items.append(_action(random, random.uniform(begin, until), jobs, limits))
        if random.random() < drawn.bursts:
            soon = items[-1].at + random.choice((0.1, 1.0, 5.0, 30.0))
            items.append(replace(_fault(random, drawn, soon, nodes), at=soon))
    return items


def _slow_rescue(random: Random, begin: float, until: float) -> list[Item]:
    """Draw what makes a heartbeat arrive late: slow nodes, and suspensions of pool processes."""
    items = [Item(begin, "slow_rescue", {"until": until})]
    for _ in range(6):
        given = {
            "process": random.choice(WORKERS),
            "child": random.randrange(4),
            "seconds": random.uniform(1.0, 2.0) * RUN_LEASE,
        }
        at = random.uniform(begin, max(until - RUN_LEASE, begin))
        items.append(Item(at, "suspend_child", given))
    return items


KEYS = ("", "customer:{kwargs[customer_id]}", "customer:{kwargs[customer_id]}", "{args[0]}")
"""The keys of limits. Without one, all runs of a limit count together."""
CUSTOMERS = (1, 2, 3)
REGIONS = ("north", "south")


def _limit(random: Random, number: int) -> dict[str, Any]:
    limit = {"name": f"limit-{number}", "key": random.choice(KEYS)}
    limit |= _max_running(random)
    if random.random() < 0.4:
        limit |= _max_started(random)
    return limit


def _max_running(random: Random) -> dict[str, Any]:
    return {"max_running": random.choice((1, 2, 3))}


def _max_started(random: Random) -> dict[str, Any]:
    return {"max_started": random.choice((1, 2, 3)), "interval": minutes(random, 2, 20)}


def _customer(random: Random) -> dict[str, Any]:
    return {"customer_id": random.choice(CUSTOMERS)}


TIMING_ACTIONS = 0.6
"""Edits of schedules and calendars per hour, besides the actions of the style."""
CLOCK_STEPS = 0.5
"""Steps of a node's wall clock per hour, besides the faults of the style."""
CALM_EVERY = 2
"""Hours from the beginning of a calm period, which has no faults and actions, to the next."""
CALM = LEASE + 600.0
"""Seconds of a calm period."""


def _is_calm(at: float) -> bool:
    return at >= CALM_EVERY * HOUR and at % (CALM_EVERY * HOUR) < CALM


def minutes(random: Random, low: float, high: float) -> timedelta:
    return timedelta(seconds=random.randint(int(low * 60), int(high * 60)))


def _job(random: Random, number: int, limits: tuple[str, ...]) -> dict[str, Any]:
    return {
        "name": f"job-{number}",
        "args": [random.choice(REGIONS)],
        "kwargs": _customer(random),
        "limit_id": random.choice((*limits, None)),
        "schedule": random.choice(SCHEDULES),
        "misfire_policy": random.choice(("skip", "run_latest", "run_all")),
        "misfire_grace": minutes(random, 2, 20),
        "catchup_limit": random.choice((2, 5, 100)),
        "overlap_policy": random.choice(
            ("allow", "skip", "queue_one", "queue_all", "cancel_running")
        ),
        "max_attempts": random.choice((1, 2, 3, 5, 5, 5)),
        "retry_backoff": random.choice((minutes(random, 0.1, 1), minutes(random, 0.2, 5))),
        "retry_jitter": random.choice((0.0, 0.1)),
        "timeout": random.choice((None, None, None, timedelta(minutes=4))),
        "start_deadline": random.choice((None, None, None, timedelta(minutes=8))),
        "pause_after_failures": random.choice((None, None, None, None, 3)),
        "jitter": random.choice((timedelta(), timedelta(), timedelta(seconds=90))),
        "keep_runs": random.choice((None, None, 8)),
        "priority": None,
    }


ACTIONS = (
    *("trigger", "trigger", "cancel", "cancel", "pause", "resume", "rerun"),
    *("edit", "edit", "edit"),
    *("backfill", "backfill", "freeze", "unfreeze", "edit_without_save", "delete"),
)
ACTIONS_WITH_LIMITS = (*ACTIONS, "edit_limit", "edit_limit", "trigger_many", "trigger_many")


def _action(random: Random, at: float, jobs: int, limits: tuple[str, ...]) -> Item:
    kind = random.choice(ACTIONS_WITH_LIMITS if limits else ACTIONS)
    given: dict[str, Any] = {"job": random.randrange(jobs), "which": random.randrange(8)}
    match kind:
        case "trigger":
            given["kwargs"] = random.choice((None, _customer(random)))
        case "trigger_many":
            given = {"job": given["job"], "kwargs": [_customer(random) for _ in range(6)]}
        case "edit_limit":
            no_interval = {"max_started": None, "interval": None}
            edits = (_max_running(random), _max_running(random), _max_started(random), no_interval)
            given = {"name": random.choice(limits), "fields": random.choice(edits)}
        case "pause":
            given["seconds"] = random.choice((None, 60.0, 1200.0))
        case "freeze":
            given["seconds"] = random.choice((120.0, 1200.0))
            given["of_job"] = given["which"] % 2 == 0
        case "backfill":
            given["seconds"] = random.choice((1800.0, 7200.0))
        case "edit":
            given["fields"] = random.choice(
                (
                    {"description": "new"},
                    {"schedule": random.choice(SCHEDULES)},
                    {"schedule": random.choice(SCHEDULES)},
                    {"overlap_policy": random.choice(("allow", "skip", "queue_all"))},
                    {"max_attempts": random.randint(1, 4)},
                    {"kwargs": _customer(random)},
                    {"limit_id": random.choice((*limits, None))},
                )
            )
        case "edit_without_save":
            given["schedule"] = random.choice((*SCHEDULES, "every now and then"))
    return Item(at, kind, given)


def _timing_action(random: Random, until: float, jobs: int, calendars: tuple[str, ...]) -> Item:
    at = random.random() * until
    if calendars and random.random() < 0.5:
        return Item(at, "edit_calendar", calendar_edit(random, random.choice(calendars)))
    given = {"job": random.randrange(jobs), "which": 0, "fields": draw_timing(random, calendars)}
    return Item(at, "edit", given)


def _fault(random: Random, drawn: Style, at: float, nodes: int) -> Item:
    kind = random.choice(drawn.kinds)
    if random.random() < 0.5:  # Most work happens at whole minutes.
        at = max(at - at % 300 + random.uniform(-20, 40), 1.0)
    node = random.choice(NODES[:nodes])
    worker = random.choice(WORKERS)
    either = worker if drawn.spares_nodes else random.choice((node, worker))
    given: dict[str, Any] = {}
    if kind in ("suspend", "suspend_child", "database_unreachable") and random.random() < 0.6:
        drawn = replace(drawn, around_lease=1.0)
    match kind:
        case "at_point":
            given = _at_point(random, drawn, either)
        case "kill" | "suspend":
            given = {"process": either, "seconds": _duration(random, drawn)}
        case "kill_child" | "suspend_child":
            given = {"process": worker, "child": random.randrange(2)}
            given["seconds"] = _duration(random, drawn)
        case "drain":
            given = {"process": node, "seconds": _duration(random, drawn)}
        case "database_unreachable" | "broker_unreachable" | "locks_unreachable":
            for_all = random.random() < 0.5 and not drawn.spares_nodes
            given = {"process": "" if for_all else either, "seconds": _duration(random, drawn)}
            if for_all and kind == "database_unreachable":
                given["lag"] = _lag(random)
        case "slow":
            given = {"process": worker if drawn.spares_nodes else random.choice(("", either))}
            given["seconds"] = random.choice((LEASE, RUN_LEASE, 3 * RUN_LEASE))
            given["slowness"] = random.choice((5.0, 60.0, 600.0))
        case "database_read_only":
            given = {"seconds": _duration(random, drawn)}
        case "clock_stepped":
            given = {"process": node, "seconds": random.choice((-600.0, -30.0, 30.0, 600.0))}
        case "messages_lost":
            given = {"number": random.randint(1, 5)}
        case "messages_duplicated":
            given = {"number": random.randint(1, 5)}
            given["seconds"] = random.choice((0.0, 0.001, 5.0, random.uniform(5, 1800)))
        case "messages_delayed":
            given = {"number": random.randint(1, 5), "seconds": _duration(random, drawn)}
        case "messages_returned":
            given = {"seconds": random.choice((600.0, 1800.0, 3600.0))}
        case "statistics_locked" | "ended_runs_locked":
            given = {"seconds": _duration(random, drawn)}
        case "other_release":
            given = {"process": node, "seconds": _duration(random, drawn)}
    return Item(at, kind, given)


FAULTS = {
    "at_point": 24,
    "kill": 2,
    "suspend": 5,
    "kill_child": 3,
    "suspend_child": 9,
    "slow_rescue": 0,
    "slow": 4,
    "drain": 1,
    "database_unreachable": 4,
    "database_read_only": 1,
    "broker_unreachable": 1,
    "locks_unreachable": 1,
    "clock_stepped": 1,
    "locks_flushed": 1,
    "locks_lost": 1,
    "queue_lost": 1,
    "messages_lost": 1,
    "messages_duplicated": 2,
    "messages_delayed": 1,
    "messages_returned": 3,
    "statistics_locked": 2,
    "ended_runs_locked": 2,
    "other_release": 1,
}
"""The kinds of faults, and their shares on average over all seeds. Styles plan slow rescues."""
OF_NODES = frozenset(
    {
        *("drain", "database_read_only", "locks_unreachable", "locks_flushed", "locks_lost"),
        *("clock_stepped", "other_release"),
    }
)
"""The kinds of faults that always hit nodes."""


def _duration(random: Random, drawn: Style) -> float:
    if random.random() < drawn.around_lease:
        return random.uniform(0.9 * RUN_LEASE, random.choice((1.9, 1.9, 3.0)) * RUN_LEASE)
    return random.choice(
        (
            random.uniform(1, 30),
            random.uniform(1, 30),
            random.uniform(30, LEASE),
            random.uniform(LEASE, 2 * LEASE),
            random.uniform(RUN_LEASE, 3 * RUN_LEASE),
        )
    )


FAULTS_AT_POINTS = ("crash", "crash", "suspend", "stall", "lost_answer", "lost_answer", "abort")


def _lag(random: Random) -> float:
    """Return within how many seconds after an outage all processes reach the database again."""
    return random.choice((0.0, 30.0, 300.0, 900.0))


def _at_point(random: Random, drawn: Style, process: str) -> dict[str, Any]:
    fault = random.choice(FAULTS_AT_POINTS)
    points = NODE_POINTS if process in NODES else WORKER_POINTS
    if fault in ("lost_answer", "abort"):
        points = tuple(point for point in points if point in IN_TRANSACTIONS)
    seconds = _duration(random, drawn)
    if fault == "stall":
        seconds = random.choice((0.5, 5.0, 300.0))
    match fault:
        case "lost_answer":
            claims = ("claim.written",) * 3 if process in NODES else ()
            where = random.choice(("after", "after", *claims, *points))
        case "abort":
            where = random.choice(("before", "inside", "inside", "commit", "commit", *points))
        case "suspend" if process in WORKERS and random.random() < 0.5:
            where = random.choice(("start.done", "work.done"))
            seconds = random.uniform(0.9 * RUN_LEASE, 1.6 * RUN_LEASE)
        case _:
            where = random.choice((*points, *points, *("before", "inside", "commit", "after") * 2))
    return {
        "process": process,
        "fault": fault,
        "where": where,
        "skip": random.choice((0, 0, 0, 1, 2, 5)),
        "seconds": seconds,
    }


@dataclass(frozen=True)
class Behavior:
    """What one execution of a job's code does."""

    seconds: float
    how: str
    """``succeeds``, ``fails``, ``fails for good`` or ``retries later``."""
    ignores: bool
    """Whether the code ignores interruptions."""


SHORT = (1.0, 2.0, 5.0, 10.0, 20.0, 60.0)
MIXED = (1.0, 2.0, 5.0, 5.0, 10.0, 20.0, 40.0, 60.0, 150.0, 300.0, 400.0, 700.0, 1300.0)
LONG = (20.0, 150.0, 700.0, 1300.0, 2000.0, 3000.0, 4000.0)
"""Seconds that the code of a job takes."""


def behavior(seed: int, job: str, scheduled_at: datetime, attempt: int) -> Behavior:
    random = Random(f"behavior {seed} {job} {scheduled_at} {attempt}")
    since = scheduled_at.timestamp() - EPOCH
    drawn = style(seed, max(int(since // (CALM_EVERY * HOUR)), 0))
    seconds = random.choice(drawn.durations)
    how = "succeeds"
    left = random.random()
    for kind, share in (("fails", drawn.fails), ("fails for good", 0.02), ("retries later", 0.03)):
        left -= share
        if left < 0:
            how = kind
            break
    return Behavior(seconds, how, ignores=random.random() < drawn.ignores)
