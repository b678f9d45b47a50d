"""Compare docs/how-to/django-tasks.md with the code.

``tests/dispatch/test_django_tasks.py`` tests the rest.
"""

import ast
import re

import pytest

from django_dcron import checks
from django_dcron.conf import Settings
from django_dcron.scheduler.backlog import LONGEST_PAUSE_WITHOUT_BROKER
from tests.docs.test_documents import ROOT

PAGE = (ROOT / "docs" / "how-to" / "django-tasks.md").read_text()


def test_documented_settings_match_the_code() -> None:
    named = set(re.findall(r"\bDCRON_\w+", PAGE))
    assert named <= {setting.name for setting in Settings.all()}
    assert "`DCRON_TASKS_BACKEND` is the alias of the backend" in PAGE
    assert Settings.TASKS_BACKEND == "default"
    assert f"growing pauses of up to {LONGEST_PAUSE_WITHOUT_BROKER:g} s" in PAGE


def test_python_blocks_parse() -> None:
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        ast.parse(block)


def test_documented_system_checks_match_the_code() -> None:
    documented = re.findall(
        r"^([EW]\d{3})\s+.*Django's (?:own )?tasks", str(checks.__doc__), re.MULTILINE
    )
    assert documented == sorted(set(re.findall(r"\b[EW]\d{3}\b", PAGE))) == ["E009", "E010", "W011"]


@pytest.mark.django_tasks
def test_documented_priorities_and_message_match_the_code() -> None:
    from django_dcron.dispatch import django_tasks

    shown = re.search(r"0 is (-\d+), 4 is (-\d+), 5 is (\d+), 9 is (\d+)", PAGE)
    assert shown
    assert [int(number) for number in shown.groups()] == [
        django_tasks.priority_of(priority) for priority in (0, 4, 5, 9)
    ]
    assert f"`{django_tasks.TASK}(run_id, attempt)`" in PAGE
