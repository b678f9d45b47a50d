"""Run the examples of docs/how-to/testing.md and compare its names and numbers with the code."""

import inspect
import re
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from django_dcron import testing
from django_dcron.jobs import manual_runs
from django_dcron.testing import pytest_plugin, stepping
from tests.docs.test_documents import ROOT
from tests.testing.test_pytest_plugin import SETTINGS, pytest_in

PAGE = (ROOT / "docs" / "how-to" / "testing.md").read_text()


def test_example_project_tests_pass(tmp_path: Path) -> None:
    files = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, re.DOTALL))
    tests = ("shop/tests.py", "test_shop.py", "test_reminders.py")
    assert set(files) == {"shop/cron.py", "shop/tasks.py", "conftest.py", *tests}
    files |= {"shop/__init__.py": "", "project_settings.py": SETTINGS.replace("bakery", "shop")}
    (tmp_path / "shop").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    done = pytest_in(tmp_path, *tests, DJANGO_SETTINGS_MODULE="project_settings")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "7 passed" in done.stdout


def test_documented_signatures_match_the_code() -> None:
    rows = dict(re.findall(r"^\| `(\w+)\((.*?)\)` \|", PAGE, re.MULTILINE))
    assert set(rows) == set(testing.__all__) - {"ManualClock"}
    for name, shown in rows.items():
        signature = inspect.signature(getattr(testing, name))
        parameters = [
            each.replace(annotation=inspect.Parameter.empty)
            for each in signature.parameters.values()
        ]
        bare = str(
            signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
        )
        quoted = shown.replace('""', "''")
        assert bare == f"({quoted})"
    for fixture in ("dcron_clock", "dcron_run_due"):
        assert hasattr(pytest_plugin, fixture)
        assert f"`{fixture}`" in PAGE


def test_documented_limits_match_the_code() -> None:
    assert f"more than {stepping.MAX_ATTEMPTS:,} attempts" in PAGE
    assert f"together create at most {manual_runs.MAX_TRIES} runs" in PAGE


def test_documented_failure_message_matches_the_code() -> None:
    (shown,) = re.findall(r"```\n(30 2 .*?)\n```", PAGE, re.DOTALL)
    zone = ZoneInfo("Europe/Berlin")
    expected = [datetime(2026, 3, 28, 2, 30, tzinfo=zone), datetime(2026, 3, 29, 2, 30, tzinfo=UTC)]
    with pytest.raises(AssertionError) as raised:
        testing.assert_runs_at(
            "30 2 * * *", expected, after=datetime(2026, 3, 28, tzinfo=zone), timezone=zone.key
        )
    assert str(raised.value) == shown
