"""A new Django project with django-dcron in INSTALLED_APPS and, at first, no other setting."""

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from django.core.management import call_command

from tests.docs.test_documents import ROOT

CRON = """
from django_dcron import cron, current_run

@cron("* * * * * *", overlap_policy="allow")  # so that a manual run isn't skipped
def bake():
    current_run().progress(1, note="baked")
"""


@dataclass(frozen=True)
class NewProject:
    directory: Path

    @classmethod
    def create(cls, directory: Path) -> "NewProject":
        call_command("startproject", "bakery", directory)
        settings = directory / "bakery" / "settings.py"
        text = settings.read_text()
        added = re.sub(r"INSTALLED_APPS = \[", r'\g<0>"django_dcron", "bakery", ', text)
        assert added != text
        settings.write_text(added)
        (directory / "bakery" / "cron.py").write_text(CRON)
        return cls(directory)

    @property
    def env(self) -> dict[str, str]:
        return {
            "DJANGO_SETTINGS_MODULE": "bakery.settings",
            "PYTHONPATH": f"{self.directory}{os.pathsep}{ROOT}",
        }

    def add_setting(self, setting: str) -> None:
        with (self.directory / "bakery" / "settings.py").open("a") as settings:
            settings.write(f"\n{setting}\n")

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.directory,
            env=os.environ | self.env,
            capture_output=True,
            text=True,
            check=False,
        )

    def manage(self, *command: str) -> str:
        done = self.python("manage.py", *command)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def rows(self, query: str) -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(self.directory / "db.sqlite3", timeout=20)) as database:
            return database.execute(query).fetchall()

    def succeeded(self) -> int:
        rows = self.rows("SELECT count(*) FROM django_dcron_run WHERE state = 'succeeded'")
        return int(str(rows[0][0]))

    def nodes(self) -> set[str]:
        return {str(name) for (name,) in self.rows("SELECT name FROM django_dcron_node")}
