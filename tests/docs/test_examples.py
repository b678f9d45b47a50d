"""The examples of the README and of the docs also work outside of a run."""

import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from celery import current_app

from django_dcron import targets
from tests.docs.test_documents import ROOT

TYPED = Path(__file__).with_name("typed_examples.py")


class Invoices:
    """Replaces the model of the README example."""

    def __init__(self) -> None:
        self.objects = self
        self.sent = 0

    def filter(self, **lookups: Any) -> list["Invoices"]:
        assert lookups["due_at__lte"].utcoffset() is not None
        return [self, self]

    def send(self) -> None:
        self.sent += 1


def job_of(text: str) -> str:
    (block,) = re.findall(r"^@cron\(.*?\n(?=```|\Z)", text, re.MULTILINE | re.DOTALL)
    return block.strip()


def readme() -> str:
    text = (ROOT / "README.md").read_text()
    (block,) = re.findall(r"```python\n(from datetime.*?)```", text, re.DOTALL)
    return str(block)


def invoices_sent(source: str, call: Callable[[Any], object]) -> int:
    """Return how many invoices the README's job sends if ``call`` calls it."""
    invoices = Invoices()
    names: dict[str, Any] = {"__name__": "readme_job"}
    models: Any = ModuleType("shop.models")
    models.Invoice = invoices
    with targets.isolated_registry(), pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, models.__name__, models)
        exec(compile(source, "README.md", "exec"), names)  # noqa: S102
        call(names["send_invoices"])
    return invoices.sent


@pytest.fixture
def eager_celery() -> Iterator[None]:
    current_app.conf.task_always_eager = True
    yield
    current_app.conf.task_always_eager = False
    current_app.tasks.pop("readme_job.send_invoices", None)


def test_readme_job_can_be_called_directly() -> None:
    assert invoices_sent(readme(), lambda job: job()) == 2


@pytest.mark.usefixtures("eager_celery")
def test_readme_job_can_be_called_by_delay_as_a_celery_task() -> None:
    source = readme().replace("def send_invoices", "@shared_task\ndef send_invoices")
    source = f"from celery import shared_task\n{source}"
    assert invoices_sent(source, lambda job: job.delay().get()) == 2


def test_readme_job_is_checked_by_mypy() -> None:
    typed = job_of(TYPED.read_text())
    assert job_of(readme()) == typed.replace("def send_invoices() -> None:", "def send_invoices():")
    checked = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert checked["strict"] is True
    assert str(TYPED.relative_to(ROOT)) in checked["files"]


def test_tutorial_job_can_be_called_directly() -> None:
    text = (ROOT / "docs" / "tutorial" / "first-job.md").read_text()
    blocks = re.findall(r"```python\n# bakery/cron.py\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {"__name__": "bakery.cron"}
    with targets.isolated_registry():
        exec(compile("".join(blocks), "first-job.md", "exec"), names)  # noqa: S102
        assert names["bake_bread"]() == {"loaves": 1}
