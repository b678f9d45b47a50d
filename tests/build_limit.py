"""Skip the tests that would begin too late in a build (a pytest plugin for `.ci/run`).

On a machine that is many times slower than usual, the build then reports how many tests it skipped,
instead of being killed without a result. ``DCRON_TEST_NOT_AFTER`` is the time, in seconds since the
epoch, after which no test begins. A test that has begun continues, and may be repeated if it fails.
"""

import os
import time

import pytest

NOT_AFTER = float(os.environ.get("DCRON_TEST_NOT_AFTER", "inf"))
REASON = "the build had no time left"
BEGUN = pytest.StashKey[bool]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.time() > NOT_AFTER and not item.stash.get(BEGUN, False):
        pytest.skip(REASON)
    item.stash[BEGUN] = True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    not_run = [report for report in skipped if REASON in str(report.longrepr)]
    if not_run:
        terminalreporter.line(f"NOT RUN {len(not_run)} tests: {REASON}")
