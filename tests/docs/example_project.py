"""Run scripts in the projects that pages of the docs describe."""

import os
import subprocess
import sys
from pathlib import Path

from tests.services import ROOT


def run_script(project: Path, settings: str, script: str) -> str:
    """Run Python code in a process of the project and return its output."""
    environment = os.environ | {
        "DJANGO_SETTINGS_MODULE": settings,
        "PYTHONPATH": f"{project}{os.pathsep}{ROOT}",
    }
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
