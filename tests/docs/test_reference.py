"""The generated parts of the reference match the code."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "reference_tables.py"
_spec = importlib.util.spec_from_file_location("reference_tables", SCRIPT)
assert _spec is not None
assert _spec.loader is not None
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)


@pytest.mark.parametrize("page", reference.PAGES, ids=lambda page: page.name)
def test_generated_parts_are_up_to_date(page: Path) -> None:
    text = page.read_text()
    assert reference.PART.search(text)
    assert text == reference.updated(text), f"{page.name} is out of date. Run: make reference"


def test_page_describes_every_function_of_control() -> None:
    from django_dcron import control

    assert sorted(reference.CONTROL) == sorted(control.__all__)


def test_page_describes_every_exception() -> None:
    from django_dcron import exceptions

    found = {
        name
        for name, value in vars(exceptions).items()
        if isinstance(value, type) and value.__module__ == exceptions.__name__
    }
    assert {*reference.EXCEPTIONS} == found - {"TranslatableError"}
