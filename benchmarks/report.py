"""Format a table of each measure's figure and its goal. The project chose the goals."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from benchmarks.burst import DCRON, not_caught_up

TITLES = ("measure", "figure", "goal", "")
BURST_GOALS = {1_000: 0.1, 10_000: 0.08, 50_000: 0.4, 100_000: 1.0}
SUSTAINED_GOAL = 0.1
NODE_CPU_GOAL_MS = 0.1
DATABASE_CPU_GOAL_MS = 0.3
CLAIM_GOALS = {"postgresql": 30_000, "sqlite": 20_000, "mysql": 15_000}
NAMES = {"postgresql": "PostgreSQL", "sqlite": "SQLite", "mysql": "MariaDB"}
MEMORY_GOALS = {100_000: 120, 1_000_000: 150}
"""MiB of an idle node, by the number of jobs."""
FIRST_TICK_GOALS = {100_000: 2, 1_000_000: 3}
"""Seconds until the first tick, by the number of jobs."""
SOONER = 1.6
"""Goal: the speedup of two nodes over one, if the machine has enough cores."""
FASTER_IN_THREADS = 3
"""Goal: the speedup of runs in threads over plain tasks in one prefork process."""
SAVED_SOONER = 3
"""Goal: the speedup of ``save_many`` over a loop of ``save``."""
MEASURABLE = 1.2
"""A ratio of two medians below this is noise on a machine that isn't idle."""
MEASURABLE_MS = 2.0
"""A difference of two medians up to this many milliseconds is noise as well."""

Figures = dict[str, Any]


class Measurement(NamedTuple):
    measure: str
    figure: str
    goal: str = ""
    met: bool | None = None

    @property
    def cells(self) -> tuple[str, ...]:
        return (
            self.measure,
            self.figure,
            self.goal,
            "" if self.met is None else "met" if self.met else "missed",
        )


def table(measures: dict[str, Any]) -> str:
    rows = [row.cells for name, figures in measures.items() for row in _rows_of(name, figures)]
    widths = [max(map(len, column)) for column in zip(TITLES, *rows, strict=True)]

    def line(cells: tuple[str, ...]) -> str:
        return "  ".join(
            cell.ljust(width) for cell, width in zip(cells, widths, strict=True)
        ).rstrip()

    return "\n".join([line(TITLES), line(tuple("-" * width for width in widths)), *map(line, rows)])


def _rows_of(name: str, figures: Any) -> Iterator[Measurement]:
    if isinstance(figures, dict) and "error" in figures:
        yield Measurement(name, f"not measured: {figures['error']}".splitlines()[0][:100])
    else:
        yield from ROWS[name](figures)


# --- bursts -------------------------------------------------------------------------------------


def _bursts(bursts: list[Figures]) -> Iterator[Measurement]:
    for jobs in sorted({burst["jobs"] for burst in bursts}):
        of_scheduler: dict[tuple[str, int], list[Figures]] = {}
        for burst in bursts:
            if burst["jobs"] == jobs:
                key = burst["contestant"], burst["nodes"]
                of_scheduler.setdefault(key, []).append(burst)
        for repeated in of_scheduler.values():
            yield _burst(repeated)
        yield from _sooner(jobs, of_scheduler.get((DCRON, 1), []), of_scheduler.get((DCRON, 2), []))


def _burst(repeated: list[Figures]) -> Measurement:
    """Return the median of the bursts, or the first one that failed or wasn't complete."""
    burst = next((each for each in repeated if not each.get("caught_up")), repeated[0])
    is_dcron = burst["contestant"] == DCRON
    name = f"django-dcron, {burst['nodes']} node(s)" if is_dcron else burst["contestant"]
    goal = BURST_GOALS.get(burst["jobs"]) if is_dcron and burst["nodes"] == 1 else None
    text = f"{goal:g} s" if goal else ""
    measure = f"burst of {burst['jobs']:,}, p99 lateness: {name}"
    if "error" in burst:
        return Measurement(measure, f"not measured: {burst['error']}".splitlines()[0][:100], text)
    if not burst["caught_up"]:
        return Measurement(measure, not_caught_up(burst), text, False if goal else None)
    p99 = _p99(repeated)
    figure = f"{p99:.3f} s"
    if len(repeated) > 1:
        ordered = sorted(each["p99"] for each in repeated)
        figure += f" ({len(ordered)} bursts: {ordered[0]:.3f} to {ordered[-1]:.3f} s)"
    return Measurement(measure, figure, text, p99 <= goal if goal else None)


def _p99(repeated: list[Figures]) -> float:
    return statistics.median(burst["p99"] for burst in repeated)


def _sooner(
    jobs: int, by_one_node: list[Figures], by_two_nodes: list[Figures]
) -> Iterator[Measurement]:
    bursts = [*by_one_node, *by_two_nodes]
    if by_one_node and by_two_nodes and all(burst.get("caught_up") for burst in bursts):
        ratio = _p99(by_one_node) / _p99(by_two_nodes)
        yield Measurement(
            f"burst of {jobs:,}: two nodes against one",
            f"{ratio:.2f} times sooner",
            f"{SOONER} if there are enough cores",
            ratio >= SOONER,
        )


def _sustained(sustained: Figures) -> Iterator[Measurement]:
    measure = (
        f"burst of {sustained['jobs']:,} every minute for {sustained['minutes']} minutes, "
        f"{sustained['worker_processes']} worker processes"
    )
    yield Measurement(
        f"{measure}: p99 lateness of the worst minute",
        f"{sustained['worst_p99']:.3f} s (median {sustained['median_p99']:.3f} s)",
        f"{SUSTAINED_GOAL} s",
        sustained["worst_p99"] <= SUSTAINED_GOAL,
    )
    yield Measurement(
        f"{measure}: CPU of the node per run",
        f"{sustained['node_cpu_ms']:.3f} ms",
        f"{NODE_CPU_GOAL_MS} ms",
        sustained["node_cpu_ms"] <= NODE_CPU_GOAL_MS,
    )


def _raw(raw: Figures) -> Iterator[Measurement]:
    for name, what in (
        ("dispatcher", "django-dcron's dispatcher"),
        ("kombu", "kombu, messages built ahead"),
        ("redis", "Redis alone, pipelines of LPUSH"),
    ):
        yield Measurement(
            f"publishing: {what}",
            f"{raw[name]:,.0f} messages/s ({10_000 / raw[name]:.3f} s for 10,000), "
            f"{raw[name] / raw['redis']:.2f} of Redis alone",
        )


# --- django-dcron alone -----------------------------------------------------------------------


def _claim(claim: Figures) -> Iterator[Measurement]:
    goal = CLAIM_GOALS[claim["database"]]
    yield Measurement(
        f"claim, {NAMES[claim['database']]}",
        f"{claim['rate']:,.0f} occurrences/s, {claim['rate_to_limit']:.2f} of plain inserts",
        f"{goal:,}/s",
        claim["rate"] >= goal,
    )


def _quiet(quiet: Figures) -> Iterator[Measurement]:
    measure = f"quiet system, {quiet['jobs']} every-second jobs, lateness p50 / p99"
    figure = f"{quiet['p50'] * 1000:.1f} / {quiet['p99'] * 1000:.1f} ms"
    yield Measurement(measure, figure, "p99 20 ms", quiet["p99"] <= 0.020)


def _idle(idle: Figures) -> Iterator[Measurement]:
    measure = f"{idle['jobs']:,} jobs, none due"
    memory, first_tick = MEMORY_GOALS.get(idle["jobs"]), FIRST_TICK_GOALS.get(idle["jobs"])
    yield Measurement(
        f"{measure}: CPU of a node", f"{idle['cpu']:.2%} of a core", "1 %", idle["cpu"] < 0.01
    )
    yield Measurement(f"{measure}: CPU of PostgreSQL", f"{idle['database_cpu']:.2%} of a core")
    yield Measurement(
        f"{measure}: memory of a node",
        f"{idle['rss_mib']:.0f} MiB",
        f"{memory} MiB" if memory else "",
        idle["rss_mib"] < memory if memory else None,
    )
    yield Measurement(
        f"{measure}: start to first tick",
        f"{idle['first_tick']:.2f} s",
        f"{first_tick} s" if first_tick else "",
        idle["first_tick"] < first_tick if first_tick else None,
    )


def _edit(edit: Figures) -> Iterator[Measurement]:
    figure = f"{edit['p50']:.2f} / {edit['max']:.2f} s"
    yield Measurement(
        "an edit seen by the scheduler, p50 / max", figure, "max 1 s", edit["max"] < 1
    )


def _save(save: Figures) -> Iterator[Measurement]:
    for way in ("create", "change"):
        figures = save[way]
        yield Measurement(
            f"{way} {save['jobs']:,} jobs at once, {NAMES[save['database']]}",
            f"{figures['many']:.1f} s; one by one {figures['one_by_one']:.1f} s",
            f"{SAVED_SOONER} times faster",
            figures["ratio"] >= SAVED_SOONER,
        )


def _worker(worker: Figures) -> Iterator[Measurement]:
    for name, what in (
        ("kept_connection", "kept connection"),
        ("new_connections", "new connection each"),
    ):
        dcron, plain = worker[name]["dcron"], worker[name]["plain"]
        measure = f"one worker process, empty job, {what}"
        figure = f"{dcron['rate']:.0f} runs/s, {dcron['cpu_ms']:.2f} ms CPU each"
        yield Measurement(
            f"{measure}: django-dcron", figure, "not slower", dcron["rate"] >= plain["rate"]
        )
        figure = f"{plain['rate']:.0f} tasks/s, {plain['cpu_ms']:.2f} ms CPU each"
        yield Measurement(f"{measure}: plain task, django-celery-results", figure)
    database = worker["kept_connection"]["dcron"]["database_cpu_ms"]
    yield Measurement(
        "one worker process, empty job, kept connection: CPU of PostgreSQL per run",
        f"{database:.2f} ms",
        f"{DATABASE_CPU_GOAL_MS} ms",
        database <= DATABASE_CPU_GOAL_MS,
    )
    if threads := worker.get("threads"):
        plain = threads["plain"]["rate"]
        for name, what in (
            ("celery", "Celery's threads pool"),
            ("dispatcher", "thread dispatcher"),
        ):
            dcron = threads[name]
            yield Measurement(
                f"one process with {threads['number']} threads, empty job: {what}",
                f"{dcron['rate']:.0f} runs/s, {dcron['cpu_ms']:.2f} ms CPU each; "
                f"{dcron['rate'] / plain:.1f} times a plain task",
                f"{FASTER_IN_THREADS} times",
                dcron["rate"] >= FASTER_IN_THREADS * plain,
            )


def _coroutines(coroutines: Figures) -> Iterator[Measurement]:
    waiting = f"one node, jobs that wait {coroutines['wait'] / 1000:g} s"
    limit = coroutines["limit"]
    for name, what in (
        ("threads", "default number of threads"),
        ("many threads", f"{limit} threads"),
        ("coroutines", f"{limit} coroutines"),
    ):
        side = coroutines[name]
        yield Measurement(
            f"{waiting}: {what}",
            f"{side['rate']:.0f} runs/s, {side['cpu_ms']:.1f} ms CPU each, "
            f"{side['memory_mib']:.0f} MiB",
        )


def _history(history: Figures) -> Iterator[Measurement]:
    with_history = f"{history['runs']:,} finished runs"
    for part, pairs, without in (
        ("the tick", history["tick_ms"], "none"),
        ("the admin's lists", history["admin_ms"], f"{history['small']:,}"),
    ):
        before, after = (sum(pair[n] for pair in pairs.values()) for n in (0, 1))
        yield Measurement(
            f"{with_history} against {without}: {part}, all queries",
            f"{after:.0f} ms against {before:.0f} ms",
            "none measurable",
            not any(_is_measurable(*pair) for pair in pairs.values()),
        )
        worst, pair = max(pairs.items(), key=lambda item: item[1][1] - item[1][0])
        yield Measurement(
            f"{with_history} against {without}: {part}, worst: {worst}",
            f"{pair[1]:.1f} ms against {pair[0]:.1f} ms",
        )


def _is_measurable(before: float, after: float) -> bool:
    return after > before * MEASURABLE and after - before > MEASURABLE_MS


def _stages(stages: Figures) -> Iterator[Measurement]:
    for name in (
        "claim",
        "prepare",
        "publish",
        "mark",
        "start, call and finish",
        "an empty statement",
        "an update of one row",
    ):
        stage = stages[name]
        figure = f"{stage['us']:,.0f} us; CPU {stage['python_cpu_us']:,.0f}"
        if stage["statements"]:
            figure += (
                f", PostgreSQL {stage['database_cpu_us']:,.0f}; {stage['statements']:.2g} round "
                "trips"
            )
        yield Measurement(f"where the time of a run goes: {name}", figure)


ROWS: dict[str, Callable[[Any], Iterator[Measurement]]] = {
    "bursts": _bursts,
    "sustained": _sustained,
    "raw": _raw,
    "claim, postgresql": _claim,
    "claim, sqlite": _claim,
    "claim, mariadb": _claim,
    "quiet": _quiet,
    "idle": _idle,
    "idle, 1,000,000 jobs": _idle,
    "edit": _edit,
    "save, postgresql": _save,
    "save, sqlite": _save,
    "worker": _worker,
    "coroutines": _coroutines,
    "history": _history,
    "stages": _stages,
}
