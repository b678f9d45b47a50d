"""Check that a page is accessible and fits its window: in light and dark mode and on a phone."""

import pytest
from playwright.sync_api import Page

from tests.browser.axe import findings
from tests.browser.conftest import PHONE
from tests.browser.overflow import elements_wider_than_window

ANIMATIONS_FINISHED = (
    "() => Promise.all(document.getAnimations().map((animation) => animation.finished.catch(() => "
    "{})))"
)
"""Waits until all animations have finished, because Django's links fade between colors."""


def assert_accessible_and_fits(page: Page) -> None:
    problems = [f"wider than the window: {element}" for element in elements_wider_than_window(page)]
    problems += [f"light: {finding}" for finding in findings(page)]
    page.emulate_media(color_scheme="dark")
    page.evaluate(ANIMATIONS_FINISHED)
    problems += [f"dark: {finding}" for finding in findings(page)]
    page.set_viewport_size({"width": PHONE, "height": 844})
    problems += [f"phone: {finding}" for finding in findings(page)]
    problems += [
        f"phone: wider than the window: {element}" for element in elements_wider_than_window(page)
    ]
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)
