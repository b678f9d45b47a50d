"""Test that the documentation's pictures exist, are small and are all used."""

import re

from tests.docs.test_documents import ROOT

IMAGES = ROOT / "docs" / "images"
LARGEST = 150_000
DOCUMENTS = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]


def test_each_is_there_and_named() -> None:
    named = {
        name
        for path in DOCUMENTS
        for name in re.findall(r"\bimages/([\w-]+\.png)", path.read_text())
    }
    assert named == {path.name for path in IMAGES.iterdir()}


def test_none_is_large() -> None:
    assert not [path.name for path in IMAGES.iterdir() if path.stat().st_size > LARGEST]


def test_each_says_what_it_shows() -> None:
    for path in DOCUMENTS:
        assert "![](" not in path.read_text()
        assert not re.search(r"<img(?![^>]*\balt=\"[^\"]{20})", path.read_text())
