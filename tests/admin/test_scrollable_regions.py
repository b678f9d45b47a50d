"""Test that keyboard users can reach every region that may scroll horizontally."""

import re
from pathlib import Path

import django_dcron

TEMPLATES = Path(django_dcron.__file__).parent / "templates"
SCROLLS = re.compile(
    r'<div [^>]*(?:class="(?:[^"]* '
    r')?dcron-(?:wide|changes|scrolls|chart|chain-graph)(?![\w-])[^"]*"|id="dcron-preview-occurrences")[^>]*>'
)


def test_scrollable_regions_are_focusable() -> None:
    regions = [
        (path.name, tag)
        for path in TEMPLATES.rglob("*.html")
        for tag in SCROLLS.findall(path.read_text())
        if "hx-swap-oob" not in tag  # only its content replaces that of the region on the page
    ]
    assert len(regions) > 5
    assert [region for region in regions if 'tabindex="0"' not in region[1]] == []
