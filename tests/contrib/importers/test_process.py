"""Test the import in a separate process, with a project that fills other schedulers' tables."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import services
from tests.waiting import TIMEOUT

pytestmark = pytest.mark.sqlite

EXPECTED = {
    # A plain function isn't a target until @cron registers it.
    "django-apscheduler": {"of apscheduler": "refused"},
    "django-q2": {"of q2": "create"},
    "huey": {"tests.app.tasks.echo": "create"},
    "django-tasks-scheduler": {"of scheduler": "create"},
    "django-crontab": {"tests.app.tasks.ok": "create"},
}
OF_BEAT = {"django-celery-beat": {"celery.backend_cleanup": "omitted", "of beat": "create"}}


def test_entries_of_real_schedulers_are_imported(tmp_path: Path) -> None:
    env = os.environ | {
        "DJANGO_SETTINGS_MODULE": "tests.contrib.importers.settings",
        "DCRON_TEST_DATABASE_NAME": str(tmp_path / "project.sqlite3"),
    }

    def python(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, env=env, cwd=services.ROOT, capture_output=True, text=True, timeout=TIMEOUT
        )

    expected = EXPECTED | (OF_BEAT if sys.version_info < (3, 12) else {})
    filled = python("-m", "tests.contrib.importers.project", *expected)
    assert filled.returncode == 0, filled.stderr
    assert json.loads(filled.stdout) == expected
    again = python("-m", "django", "dcron", "import", "django-q2", "--disabled")
    assert (again.returncode, again.stdout) == (
        0,
        "1 same.\n! 1 job waits for the handover, paused or as a shadow. When django-q2 has "
        "stopped: manage.py dcron handover django-q2 --apply\n",
    ), again.stderr
