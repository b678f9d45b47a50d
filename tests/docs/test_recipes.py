"""The recipes in the docs declare the presets of the admin."""

import re
from typing import Any

import pytest
from pytest_django import Settings

from django_dcron import targets
from django_dcron.models import Job
from django_dcron.policies.presets import PRESETS
from tests.docs.test_documents import ROOT

TEXT = (ROOT / "docs" / "how-to" / "recipes.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
RECIPES, COMMANDS = BLOCKS[: len(PRESETS)], BLOCKS[len(PRESETS) :]


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
def test_recipe_of_commands_saves_jobs(settings: Settings) -> None:
    settings.DCRON_SHELL = {"backup": ["pg_dump", "shop"]}
    settings.DCRON_COMMANDS = ["clearsessions"]
    [block] = COMMANDS
    exec(compile(block, "recipes.md", "exec"), {})  # noqa: S102
    assert set(Job.objects.values_list("target", flat=True)) == {
        "shell:backup",
        "command:clearsessions",
    }
