"""Find axe-core's violations on a page, of any impact, except those of Django's own admin."""

from dataclasses import dataclass

import django
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

DJANGO_FINDINGS = {("label-title-only", "#searchbar")}  # an icon labels it
"""Rules and the elements that may break them.

Django's own pages break them, too, as ``test_pages.py`` proves.
"""
if django.VERSION < (6, 1):
    # Users recognize these links by their place, not by an underline.
    DJANGO_FINDINGS.add(("link-in-text-block", ".breadcrumbs > a"))

PRELOAD = {"preload": False}
"""Preloading would add a style to the page, which the policy forbids."""


@dataclass(frozen=True, slots=True)
class Finding:
    rule: str
    element: str
    """The element's CSS selector."""
    html: str
    failure: str

    @property
    def exception(self) -> tuple[str, str] | None:
        """Return the matching entry of ``DJANGO_FINDINGS``, if any."""
        own = (
            known
            for known in DJANGO_FINDINGS
            if self.rule == known[0] and self.element.startswith(known[1])
        )
        return next(own, None)

    def __str__(self) -> str:
        return f"{self.rule} at {self.element}: {self.failure}\n    {self.html}"


def findings(page: Page, *, include_django: bool = False) -> list[Finding]:
    response = Axe().run(page, options={"resultTypes": ["violations"], **PRELOAD}).response
    found = [
        Finding(
            violation["id"],
            " ".join(map(str, node["target"])),
            node["html"][:300],
            node["failureSummary"],
        )
        for violation in response["violations"]
        for node in violation["nodes"]
    ]
    return [finding for finding in found if include_django or not finding.exception]
