"""The examples of the README and of the docs also work outside of a run."""

import re
import tomllib
from collections.abc import Iterator
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


@pytest.fixture
def job() -> Any:
    module = ModuleType("readme_job")
    invoices = Invoices()
    vars(module).update(Invoice=invoices)
    with targets.isolated():
        exec(compile(readme(), "README.md", "exec"), vars(module))  # noqa: S102
        yield vars(module)["send_invoices"], invoices
    del current_app.tasks[vars(module)["send_invoices"].name]


@pytest.fixture
def eager() -> Iterator[None]:
    current_app.conf.task_always_eager = True
    yield
    current_app.conf.task_always_eager = False


@pytest.mark.usefixtures("eager")
def test_readme_job_can_be_called_directly_and_by_delay(job: Any) -> None:
    send_invoices, invoices = job
    send_invoices()
    assert invoices.sent == 2
    assert send_invoices.delay().successful()
    assert invoices.sent == 4


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
    with targets.isolated():
        exec(compile("".join(blocks), "first-job.md", "exec"), names)  # noqa: S102
        assert names["bake_bread"]() == {"loaves": 1}
