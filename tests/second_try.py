"""Retry failed tests once and report those that then pass (a pytest plugin for `.ci/run`).

`.ci/run` loads it with `-p tests.second_try`. pytest-rerunfailures does the same, but beside
pytest-xdist it sends several requests per test over a socket, and the suite took 50 % longer.
"""

import pytest
from _pytest.runner import runtestprotocol

FLAKY = "flaky"
TRIED = pytest.StashKey[bool]()


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    following = nextitem or _any_other(item)
    if TRIED in item.stash or following is None:
        return None
    item.stash[TRIED] = True
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, log=False, nextitem=following)
    failed = [report for report in reports if report.failed]
    for report in failed:
        report.outcome = FLAKY  # type: ignore[assignment]
    for report in failed or reports:
        item.ihook.pytest_runtest_logreport(report=report)
    if failed:  # retry it through the hook, which applies the test's own time limit again
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _any_other(item: pytest.Item) -> pytest.Item | None:
    """Return another test of the session, so that the last test doesn't tear down shared fixtures.

    pytest tears down what the next test doesn't share, and the rest at the end of the session.
    """
    return next((other for other in item.session.items if other is not item), None)


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    return (FLAKY, "f", "FLAKY") if report.outcome == FLAKY else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    first_tries = terminalreporter.stats.get(FLAKY, [])
    for report in first_tries:
        terminalreporter.section(f"failed at its first try: {report.nodeid}")
        terminalreporter.line(report.longreprtext)
    broken = {
        report.nodeid
        for kind in ("failed", "error")
        for report in terminalreporter.stats.get(kind, [])
    }
    for nodeid in dict.fromkeys(report.nodeid for report in first_tries):
        if nodeid not in broken:
            terminalreporter.line(f"FLAKY {nodeid}")
