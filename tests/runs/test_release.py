"""Which release attempts record."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from pytest_django import Settings

from django_dcron.runs import release

COMMIT = "5f1c2ab9d1e04c7f9a3b6d28e5c0a71f4b9d2e63"


@pytest.fixture
def head(tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of the checked out commit, in a checkout that contains the settings module."""
    module = ModuleType("site_settings")
    module.__file__ = str(tmp_path / "site_settings.py")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    settings.SETTINGS_MODULE = module.__name__
    (tmp_path / ".git").mkdir()
    head = tmp_path / ".git/HEAD"
    head.write_text(COMMIT)
    release.commit_of_project.cache_clear()
    yield head
    release.commit_of_project.cache_clear()


def test_default_is_the_commit_at_the_start(head: Path) -> None:
    assert release.current_release() == COMMIT[:12]
    head.write_text("0" * 40)
    assert release.current_release() == COMMIT[:12]


@pytest.mark.parametrize("name", ["2026.46.1", ""])
def test_setting_replaces_the_commit(head: Path, name: str, settings: Settings) -> None:
    settings.DCRON_RELEASE = name
    assert release.current_release() == name


def test_settings_without_module_have_no_commit(head: Path, settings: Settings) -> None:
    settings.SETTINGS_MODULE = "missing"
    assert release.current_release() == ""
