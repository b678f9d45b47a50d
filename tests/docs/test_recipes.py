"""The recipes in the docs declare the presets of the admin."""

import re
from datetime import timedelta
from typing import Any

import pytest

from django_dcron import cron, targets
from django_dcron.policies.presets import PRESETS
from tests.docs.test_documents import ROOT

TEXT = (ROOT / "docs" / "how-to" / "recipes.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize(("name", "block"), list(zip(PRESETS, BLOCKS, strict=True)))
def test_recipe_declares_the_fields_of_its_preset(name: str, block: str) -> None:
    names: dict[str, Any] = {"cron": cron, "timedelta": timedelta, "__name__": "recipes"}
    with targets.isolated():
        exec(compile(block, "recipes.md", "exec"), names)  # noqa: S102
        [declared] = targets.declarations()
    preset = PRESETS[name]
    fields = dict(declared.fields)
    schedule = fields.pop("schedule")
    assert schedule == preset.schedule or (name == "once" and schedule.startswith("@at "))
    for default in ("args", "kwargs", "timezone"):
        fields.pop(default)
    assert fields == preset.fields
