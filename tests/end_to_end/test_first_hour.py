"""The first hour: a new Django project with django-dcron in INSTALLED_APPS and no other setting."""

import json
import re
from pathlib import Path

import pytest

from tests.conftest import StartProcess
from tests.end_to_end.new_project import NewProject
from tests.waiting import wait_until

TESTS = """
from django.core.cache import cache
from django.test import TestCase
from django_dcron.models import Job

class BakeryTests(TestCase):
    def test_tables(self):
        cache.set("a", 1)
        self.assertEqual(Job.objects.count(), 0)
"""


@pytest.fixture
def project(tmp_path: Path) -> NewProject:
    return NewProject.create(tmp_path)


def test_only_runcron_needs_redis_celery_or_time_zones(project: NewProject) -> None:
    project.add_setting("USE_TZ = False")
    (project.directory / "bakery" / "tests.py").write_text(TESTS)
    project.manage("check")
    project.manage("migrate")
    project.manage("test")
    refused = project.python("manage.py", "runcron", "--once")
    assert refused.returncode == 1
    assert {f"django_dcron.E00{number}" for number in (2, 3, 4)} <= set(
        re.findall(r"django_dcron\.E\d+", refused.stderr)
    )


def test_embedded_node_needs_no_setting(project: NewProject, start_process: StartProcess) -> None:
    project.manage("migrate")
    node = start_process(
        "node", str(project.directory / "manage.py"), "runcron", "--embedded", env=project.env
    )
    wait_until(project.succeeded, what="a succeeded run")
    project.manage("dcron", "run", "bake", "--timeout", "60s")
    found = project.python("manage.py", "dcron", "doctor", "--json", "--skip-checks")
    assert json.loads(found.stdout)["checked"]["live_nodes"] == 1
    node.terminate()
    assert node.wait() == 0
