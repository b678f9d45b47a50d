"""Follow the tutorial: its files form a project that passes the checks and runs the job."""

import re
from pathlib import Path

import pytest
from django.core.management import call_command

from tests.docs.example_project import run_script
from tests.docs.test_documents import ROOT

TUTORIAL = ROOT / "docs" / "tutorial"


def blocks_of(page: str) -> list[tuple[str, str]]:
    """Return the path and the text of each block that belongs to a file."""
    return re.findall(
        r"^```python\n# (\S+)\n(.*?)^```", (TUTORIAL / page).read_text(), re.MULTILINE | re.DOTALL
    )


def manage(project: Path, *commands: str) -> str:
    """Run management commands in one process of the project."""
    script = (
        "import sys, django; django.setup(); from django.core.management import call_command\n"
        + "\n".join(f"call_command(*{command.split()!r})" for command in commands)
    )
    return run_script(project, "bakery.settings", script)


def write(project: Path, page: str) -> None:
    """Write the files of a page.

    A later block of a file is appended. Blocks of settings override earlier settings.
    """
    begun = {"bakery/settings.py"}
    for name, text in blocks_of(page):
        path = project / name
        path.write_text((path.read_text() if name in begun else "") + text)
        begun.add(name)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    call_command("startproject", "bakery", tmp_path)
    write(tmp_path, "first-job.md")
    return tmp_path


def test_first_page_creates_a_project_whose_job_runs(project: Path) -> None:
    assert "bakery/cron.py" in dict(blocks_of("first-job.md"))
    out = manage(
        project,
        "check --fail-level WARNING",
        "migrate --verbosity 0",
        "dcron sync",
        "dcron run bake_bread --no-wait",
        "runcron --once",
        "dcron history bake_bread --state succeeded",
    )
    assert "succeeded" in out


def test_second_page_adds_a_celery_job_to_the_project(project: Path) -> None:
    settings = project / "bakery" / "settings.py"
    settings.write_text(re.sub(r"^DCRON_\w+ = .*\n", "", settings.read_text(), flags=re.MULTILINE))
    write(project, "redis-and-celery.md")
    out = manage(
        project,
        "check --fail-level WARNING",
        "migrate --verbosity 0",
        "dcron sync",
        "dcron show order_flour",
    )
    assert "bakery.tasks.order_flour" in out
