"""The pytest fixtures, in a small separate project with its own pytest process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_documents import ROOT

SETTINGS = """
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django_dcron", "bakery"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
USE_TZ = True
DCRON_LOCK = "database"
"""

CRON = """
from django_dcron import cron, current_run

baked = []

@cron("0 4 * * *", timezone="Europe/Berlin")
def bake():
    baked.append(current_run().scheduled_at)
    return len(baked)
"""

CONFTEST = 'pytest_plugins = ["django_dcron.testing.pytest_plugin"]\n'

TESTS = """
from datetime import UTC, datetime, timedelta

from bakery.cron import bake, baked
from django_dcron.models import Job
from django_dcron.db.now import database_now
from django_dcron.testing import assert_runs_at

MONDAY = datetime(2026, 3, 2, tzinfo=UTC)

def test_bake_runs_at_four_in_berlin():
    assert_runs_at(bake, [MONDAY + timedelta(hours=3)], after=MONDAY)

def test_dcron_run_due_runs_the_declared_job(dcron_clock, dcron_run_due):
    dcron_clock.set_to(MONDAY)
    runs = dcron_run_due(at=MONDAY + timedelta(days=2), jobs=[bake])
    assert [run.state for run in runs] == ["succeeded", "succeeded"]
    assert baked == [MONDAY + timedelta(hours=3), MONDAY + timedelta(hours=27)]
    assert dcron_clock.now() == MONDAY + timedelta(days=2)

def test_rows_and_time_do_not_leak_into_other_tests(db):
    assert not Job.objects.exists()
    assert database_now("default") > MONDAY + timedelta(days=30)

def test_dcron_clock_starts_at_the_current_time(dcron_clock):
    assert dcron_clock.now() == database_now("default")
    assert dcron_clock.now() > MONDAY + timedelta(days=30)
    assert dcron_clock.now().microsecond == 0
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "bakery").mkdir()
    files = {
        "pytest.ini": "[pytest]\nfilterwarnings = error\n",
        "project_settings.py": SETTINGS,
        "conftest.py": CONFTEST,
        "bakery/__init__.py": "",
        "bakery/cron.py": CRON,
        "test_bakery.py": TESTS,
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def pytest_in(
    project: Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", *arguments]
    inherited = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}:{project}"}
    return subprocess.run(
        command,
        cwd=project,
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_fixtures_work_in_a_separate_project(project: Path) -> None:
    done = pytest_in(project, DJANGO_SETTINGS_MODULE="project_settings")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


def test_project_database_is_not_touched(project: Path) -> None:
    """The database stays untouched even if no other test requests it."""
    settings = SETTINGS.replace(":memory:", str(project / "own.sqlite3"))
    (project / "project_settings.py").write_text(settings)
    (project / "test_bakery.py").write_text(
        "from django.db import connection\n\n"
        "def test_it(dcron_run_due):\n"
        "    assert dcron_run_due(jobs=[]) == []\n"
        "    assert 'own.sqlite3' not in connection.settings_dict['NAME']\n"
    )
    done = pytest_in(project, DJANGO_SETTINGS_MODULE="project_settings")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (project / "own.sqlite3").exists()


@pytest.mark.nightly
def test_plugin_can_be_loaded_before_settings_are_configured(project: Path) -> None:
    """A conftest may configure the settings itself."""
    late = (
        "def pytest_configure():\n    import os\n    os.environ['DJANGO_SETTINGS_MODULE'] = "
        "'project_settings'\n"
    )
    (project / "conftest.py").write_text(
        f"{CONFTEST}import sys\nassert 'django_dcron.models' not in sys.modules\n{late}"
        "    import django\n    django.setup()\n"
    )
    done = pytest_in(project)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.nightly
def test_fixture_requires_pytest_django(project: Path) -> None:
    (project / "test_bakery.py").write_text("def test_it(dcron_run_due): ...\n")
    done = pytest_in(project, "-p", "no:django")
    assert done.returncode == 1
    assert "fixture 'db' not found" in done.stdout


def test_plugin_imports_no_django_unless_a_fixture_is_used(project: Path) -> None:
    (project / "test_bakery.py").write_text(
        "import sys\n\ndef test_it():\n    assert not {'django', 'celery', 'django_dcron.db'} "
        "& set(sys.modules)\n"
    )
    done = pytest_in(project, "-p", "no:django", "-p", "no:celery")
    assert done.returncode == 0, done.stdout + done.stderr
