"""The cluster of a scenario, the summary of all scenarios, and their common time limit."""

import math
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.cluster.cluster import Cluster, Line
from tests.conftest import StartProcess

BEGAN = time.monotonic()
DEADLINE = float(os.environ.get("DCRON_TEST_DEADLINE", "inf"))
"""Time limit for all scenarios of this session, in seconds.

The scenario that is running then fails, and no further one starts.
"""

HISTORIES = os.environ.get("DCRON_TEST_HISTORIES", "")
"""Directory in which each scenario writes its history, for ``python -m tests.verdict``."""

PROPERTY = "account"
"""Name of the property in a test's report. Reports may come from the process of another session."""
RECOVERY = "recovery"
"""Name of the properties of recoveries."""
COLUMNS = ("expected", "runs", "attempts", "starts", "lost", "duplicated", "seconds")


def _seconds_left() -> float:
    return BEGAN + DEADLINE - time.monotonic()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """Lower the scenario's own time limit to the time that is left for all scenarios."""
    if not math.isinf(DEADLINE):
        marker = item.get_closest_marker("timeout")
        own = float(marker.args[0] if marker else item.config.getini("timeout"))
        item.add_marker(pytest.mark.timeout(min(own, max(_seconds_left(), 1))), append=False)
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if _seconds_left() <= 0:
        pytest.fail(
            f"not started: the {DEADLINE:.0f} seconds of this session were used up", pytrace=False
        )


@pytest.fixture
def cluster(
    request: pytest.FixtureRequest,
    start_runcron: StartProcess,
    start_worker: StartProcess,
    start_process: StartProcess,
    tmp_path: Path,
) -> Iterator[Cluster]:
    cluster = Cluster(start_runcron, start_worker, start_process, tmp_path / "witnesses.jsonl")
    began = time.monotonic()
    yield cluster
    cluster.close()
    for recovery in cluster.recoveries:
        request.node.user_properties.append((RECOVERY, asdict(recovery)))
    scenario: str = request.node.name
    if cluster.totals is not None:
        line = Line.of(scenario, cluster.totals, time.monotonic() - began)
        request.node.user_properties.append((PROPERTY, asdict(line)))
    if cluster.history is not None and HISTORIES:
        about = cluster.history.about | {"scenario": scenario}
        Path(HISTORIES).mkdir(parents=True, exist_ok=True)
        replace(cluster.history, about=about).write(Path(HISTORIES, f"{scenario}.json"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    properties = [each for report in reports for each in getattr(report, "user_properties", ())]
    lines = {line["scenario"]: Line(**line) for name, line in properties if name == PROPERTY}
    unsuccessful = [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")]
    in_cluster = [
        report.nodeid for report in unsuccessful if report.nodeid.startswith("tests/cluster/")
    ]
    failed = {nodeid.partition("::")[2] for nodeid in in_cluster}
    if lines or failed:
        terminalreporter.section("account of the occurrences")
        for text in _summary(lines, failed):
            terminalreporter.write_line(text)
    # Each property is in the reports of the setup, the call and the teardown.
    calls = [report for report in reports if getattr(report, "when", "") == "teardown"]
    by_kind: defaultdict[str, list[float]] = defaultdict(list)
    for report in calls:
        for name, value in report.user_properties:
            if name == RECOVERY:
                by_kind[value["kind"]].append(value["seconds"])
    if by_kind:
        terminalreporter.section("seconds until all jobs ran on time again")
        for text in _recoveries(by_kind):
            terminalreporter.write_line(text)


def _recoveries(by_kind: Mapping[str, list[float]]) -> Iterator[str]:
    """Yield a line for each kind of fault: how often it was injected, and the recovery times."""
    width = max(map(len, by_kind))
    yield f"{'fault'.ljust(width)} {'times':>6} {'p50':>6} {'max':>6}"
    for kind, seconds in sorted(by_kind.items()):
        p50, longest = median(seconds), max(seconds)
        yield f"{kind.ljust(width)} {len(seconds):>6} {p50:>6.1f} {longest:>6.1f}"


def _summary(lines: dict[str, Line], failed: set[str]) -> Iterator[str]:
    """Yield a line for each scenario, even if it failed before its account, and the total."""
    total = f"all {len(lines.keys() | failed)} scenarios"
    width = max(map(len, [total, *lines, *failed]))
    yield " ".join([" " * width, *(f"{column:>8}" for column in COLUMNS)])
    for scenario, line in lines.items():
        yield _row(scenario.ljust(width), asdict(line), "FAILED" if scenario in failed else "")
    for scenario in sorted(failed - lines.keys()):
        yield f"{scenario.ljust(width)}  FAILED, with no account"
    sums = {column: sum(getattr(line, column) for line in lines.values()) for column in COLUMNS}
    yield _row(total.ljust(width), sums, f"{len(failed)} FAILED" if failed else "")


def _row(title: str, figures: Mapping[str, float], verdict: str) -> str:
    return " ".join(
        [title, *(f"{figures[column]:>8.0f}" for column in COLUMNS), f" {verdict}"]
    ).rstrip()
