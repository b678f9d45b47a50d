"""Test that the documentation's pictures exist, are small and are all used."""

import re

from tests.docs.test_documents import ROOT

IMAGES = ROOT / "docs" / "images"
LARGEST = 150_000
DOCUMENTS = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]


def test_every_picture_is_used_and_every_used_picture_exists() -> None:
    named = {
        name
        for path in DOCUMENTS
        for name in re.findall(r"\bimages/([\w-]+\.png)", path.read_text())
    }
    assert named == {path.name for path in IMAGES.iterdir()}


def test_no_picture_exceeds_the_size_limit() -> None:
    assert not [path.name for path in IMAGES.iterdir() if path.stat().st_size > LARGEST]


def test_every_picture_has_an_alternative_text() -> None:
    for path in DOCUMENTS:
        assert "![](" not in path.read_text()
        assert not re.search(r"<img(?![^>]*\balt=\"[^\"]{20})", path.read_text())
