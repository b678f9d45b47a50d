"""The recipes in the docs declare the presets of the admin."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.sessions.models import Session
from django.core.management import call_command
from django.utils import timezone
from pytest_django import Settings

from django_dcron import targets
from django_dcron.models import Job
from django_dcron.policies.presets import PRESETS
from tests.docs.test_documents import ROOT

TEXT = (ROOT / "docs" / "how-to" / "recipes.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
RECIPES = BLOCKS[: len(PRESETS)]
FUNCTION, SETTINGS, COMMAND = BLOCKS[len(PRESETS) :]


@pytest.mark.parametrize(("name", "block"), list(zip(PRESETS, RECIPES, strict=True)))
def test_recipe_declares_the_fields_of_its_preset(name: str, block: str) -> None:
    names: dict[str, Any] = {"__name__": "recipes"}
    with targets.isolated_registry():
        exec(compile(block, "recipes.md", "exec"), names)  # noqa: S102
        [declared] = targets.declarations()
    preset = PRESETS[name]
    fields = dict(declared.fields)
    schedule = fields.pop("schedule")
    assert schedule == preset.schedule or (name == "once" and schedule.startswith("@at "))
    for default in ("args", "kwargs", "timezone"):
        fields.pop(default)
    assert fields == preset.fields


@pytest.mark.django_db
def test_recipe_of_a_function_runs_the_management_command() -> None:
    expired = timezone.now() - timedelta(days=1)
    Session.objects.create(session_key="old", session_data="", expire_date=expired)
    names: dict[str, Any] = {"__name__": "recipes"}
    with targets.isolated_registry():
        exec(compile(FUNCTION, "recipes.md", "exec"), names)  # noqa: S102
        [declared] = targets.declarations()
    assert declared.name == "sessions"
    names["sessions"]()
    assert not Session.objects.exists()


@pytest.mark.django_db
def test_recipe_of_commands_saves_jobs_at_each_deploy(settings: Settings) -> None:
    allowed: dict[str, Any] = {}
    exec(compile(SETTINGS, "recipes.md", "exec"), allowed)  # noqa: S102
    settings.DCRON_SHELL = allowed["DCRON_SHELL"]
    settings.DCRON_COMMANDS = allowed["DCRON_COMMANDS"]
    names: dict[str, Any] = {"__name__": "recipes"}
    with targets.isolated_registry():
        exec(compile(FUNCTION, "recipes.md", "exec"), names)  # noqa: S102
        call_command("dcron", "sync")
        [declared] = Job.objects.values_list("name", "target")
    exec(compile(COMMAND, "recipes.md", "exec"), names)  # noqa: S102
    for _deploy in range(2):
        names["Command"]().handle()
    assert sorted(Job.objects.values_list("name", "target")) == [
        ("backup", "shell:backup"),
        ("check", "command:check"),
        declared,
    ]
