"""Test every page in light and dark mode and on a phone.

Each page is accessible and never wider than the window.
"""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from playwright.sync_api import Page

from django_dcron.models import Job
from tests.browser.axe import DJANGOS_OWN, findings
from tests.browser.conftest import PHONE
from tests.browser.pages import PAGES, ours, url
from tests.browser.sample import make_sample
from tests.browser.wide import wider_than_its_window

pytestmark = pytest.mark.browser

COLOURS_SETTLED = (
    "() => Promise.all(document.getAnimations().map((animation) => animation.finished.catch(() => "
    "{})))"
)
"""Waits until all animations have finished, because Django's links fade between colors."""


NOTHING: Any = None


def show(page: Page, path: str) -> None:
    answer = page.goto(path)
    assert answer is not None
    assert answer.status == 200


def refuse(page: Page) -> None:
    """Submit a form with errors and a folded group opened."""
    show(page, ours("job_add"))
    page.locator("[name=schedule]").fill("61 * * * *")
    page.locator("details:has([name=args]) > summary").click()
    page.locator("[name=args]").fill("[")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_text("Please correct the errors").wait_for()


def ask_about_several(page: Page) -> None:
    show(page, ours("job_changelist"))
    page.get_by_label("Select all objects on this page for an action").check()
    page.locator("[name=action]").select_option("pause")
    page.get_by_role("button", name="Run", exact=True).or_(
        page.get_by_role("button", name="Go")
    ).click()
    page.locator(".dcron-confirmation .submit-row [type=submit]").wait_for()


def preview_a_backfill(page: Page) -> None:
    show(page, ours("job_backfill", Job.objects.get(name="import-orders").pk))
    page.locator("[name=start]").fill("2026-01-01 00:00")
    page.locator("[name=end]").fill("2026-01-02 00:00")
    page.locator(".submit-row [type=submit]").first.click()
    page.locator("[name=make]").wait_for(state="attached")


def delete(page: Page) -> None:
    show(page, ours("job_delete", Job.objects.get(name="import-orders").pk))


STEPS = [refuse, ask_about_several, preview_a_backfill, delete]


@pytest.mark.parametrize("name", PAGES)
def test_everybody_can_use_it_anywhere(page: Page, name: str) -> None:
    show(page, PAGES[name](make_sample()))
    assert_fit(page)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_everybody_can_use_what_comes_of_it(page: Page, step: Callable[[Page], None]) -> None:
    make_sample()
    step(page)
    assert_fit(page)


@pytest.mark.parametrize("name", ["dashboard", "job list", "run list", "node list"])
def test_everybody_can_use_it_while_it_is_empty(page: Page, name: str) -> None:
    show(page, PAGES[name](NOTHING))
    assert_fit(page)


def assert_fit(page: Page) -> None:
    problems = [f"wider than the window: {element}" for element in wider_than_its_window(page)]
    problems += [f"light: {finding}" for finding in findings(page)]
    page.emulate_media(color_scheme="dark")
    page.evaluate(COLOURS_SETTLED)
    problems += [f"dark: {finding}" for finding in findings(page)]
    page.set_viewport_size({"width": PHONE, "height": 844})
    problems += [f"phone: {finding}" for finding in findings(page)]
    problems += [
        f"phone: wider than the window: {element}" for element in wider_than_its_window(page)
    ]
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)


def test_what_is_left_out_is_djangos_own(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """Django's own pages of users break these rules, too."""
    user = User.objects.create_user("somebody-whose-name-is-longer-than-any-link-beside-it")
    monkeypatch.setattr(
        admin.site.get_model_admin(User), "search_help_text", "Part of a name.", raising=False
    )
    found = set()
    for path in (url("auth_user_changelist"), url("auth_user_change", user.pk)):
        show(page, path)
        found |= {finding.exception for finding in findings(page, with_djangos=True)}
    assert found >= DJANGOS_OWN
