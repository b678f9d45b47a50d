"""A project that doesn't use an optional part doesn't load its code."""

import json
import os
import subprocess
import sys

import pytest

LOADED = """
import json, sys
import django
from django.conf import settings
{settings}
django.setup()
{use}
print(json.dumps([name for name in sys.modules if name.startswith("django_dcron.contrib.")]))
"""
NODE = """
from django_dcron import node
from django_dcron.management.commands import runcron
node.create_runner("a")
"""
CHANNELS = 'settings.DCRON_ALERT_CHANNELS = {"ops": {"mail": ["ops@shop.example"]}}'
CHECK_INS = "from django_dcron.contrib import checkins"


def loaded(use: str, settings: str = "") -> set[str]:
    code = LOADED.format(use=use, settings=settings)
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return {name.split(".")[2] for name in json.loads(done.stdout.splitlines()[-1])}


@pytest.mark.parametrize("use", ["import django_dcron.tasks", NODE], ids=["worker", "node"])
def test_unused_contrib_modules_are_not_imported(use: str) -> None:
    assert loaded(use, "settings.DCRON_ALERT_CHANNELS = {}") == set()


def test_used_contrib_modules_are_imported() -> None:
    """Check that ``loaded`` detects modules. Otherwise, the test above would always pass."""
    assert loaded(NODE, CHANNELS) == {"alerts"}
    assert loaded(f"import django_dcron.tasks\n{CHECK_INS}") == {"checkins"}
