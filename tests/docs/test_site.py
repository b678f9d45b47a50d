"""Test the structure, links and code blocks of the docs site and the README."""

import ast
import re
from pathlib import Path

import pytest
from django.apps import apps

from tests.docs.test_documents import ROOT

REPOSITORY = "https://github.com/example/django-dcron"
RAW = "https://raw.githubusercontent.com/example/django-dcron/main/"
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)
DOCUMENTS = [*PAGES, *(ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"))]
README = (ROOT / "README.md").read_text()
LINK = re.compile(r"\]\(([^)\s]+)\)")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_readme_is_short_and_has_absolute_links_to_existing_files() -> None:
    assert len(README.splitlines()) <= 150
    for link in LINK.findall(README):
        assert link.startswith((f"{REPOSITORY}/blob/main/", RAW)), link
        path = link.removeprefix(f"{REPOSITORY}/blob/main/").removeprefix(RAW)
        assert (ROOT / path).is_file(), link


def test_repository_placeholder_url_is_the_same_everywhere() -> None:
    for path in (ROOT / "pyproject.toml", DOCS / "conf.py", DOCS / "contributing" / "releasing.md"):
        assert REPOSITORY in path.read_text(), path


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_local_links_point_to_existing_files(path: Path) -> None:
    for link in LINK.findall(path.read_text()):
        if not link.startswith(("#", "http:", "https:", "mailto:")):
            assert (path.parent / link.partition("#")[0]).exists(), link


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_page_has_one_title_and_valid_python_blocks(path: Path) -> None:
    text = path.read_text()
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    if not text.startswith("```{include}"):
        assert text.startswith("# ")
        assert len(re.findall(r"^# ", prose, re.MULTILINE)) == 1
    for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        ast.parse(block)


def test_every_model_is_documented_or_internal() -> None:
    documented = re.findall(
        r"^<!-- generated: fields of (\w+) -->",
        (DOCS / "reference" / "models.md").read_text(),
        re.MULTILINE,
    )
    internal = {"Dashboard", "DeletedImport", "LimitPlace", "LimitStart", "Link", "LockLease"}
    internal |= {"AlertCheck", "Deletion"}
    models = {model.__name__ for model in apps.get_app_config("django_dcron").get_models()}
    assert models == {*documented, *internal}
    assert len(documented) == len(set(documented))
