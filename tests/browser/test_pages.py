"""Test every page in light and dark mode and on a phone.

Each page is accessible and never wider than the window.
"""

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect

from django_dcron.models import Job, Limit
from tests.browser.accessibility import assert_accessible_and_fits
from tests.browser.axe import DJANGO_FINDINGS, findings
from tests.browser.conftest import PHONE, Browse
from tests.browser.overflow import elements_wider_than_window
from tests.browser.pages import PAGES, dcron_url, url
from tests.browser.sample import make_sample

pytestmark = pytest.mark.browser

NOTHING: Any = None


def show(page: Page, path: str) -> None:
    answer = page.goto(path)
    assert answer is not None
    assert answer.status == 200


def submit_invalid_form(page: Page) -> None:
    """Submit a form with errors."""
    show(page, dcron_url("job_add"))
    page.locator("[name=schedule]").fill("61 * * * *")
    page.locator("[name=args]").fill("[")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_text("Please correct the errors").wait_for()


def confirm_list_action(page: Page) -> None:
    show(page, dcron_url("job_changelist"))
    page.get_by_label("Select all objects on this page for an action").check()
    page.locator("[name=action]").select_option("pause")
    page.get_by_role("button", name="Run", exact=True).or_(
        page.get_by_role("button", name="Go", exact=True)
    ).click()
    page.locator(".dcron-confirmation .submit-row [type=submit]").wait_for()


def preview_backfill(page: Page) -> None:
    show(page, dcron_url("job_backfill", Job.objects.get(name="import-orders").pk))
    page.locator("[name=start]").fill("2026-01-01 00:00")
    page.locator("[name=end]").fill("2026-01-02 00:00")
    page.locator(".submit-row [type=submit]").first.click()
    page.locator("[name=create]").wait_for(state="attached")


def confirm_deletion(page: Page) -> None:
    show(page, dcron_url("job_delete", Job.objects.get(name="import-orders").pk))


def open_settings(page: Page) -> None:
    show(page, dcron_url("job_change", Job.objects.get(name="import-orders").pk))
    page.get_by_role("tab", name="Failures").click()
    page.locator("[name=timeout]").wait_for()


def open_palette(page: Page) -> None:
    show(page, dcron_url("dashboard_changelist"))
    page.keyboard.press("Control+k")
    page.locator("#dcron-palette > input").fill("pause import")
    page.get_by_role("option", name="Pause").wait_for()


def open_shortcuts(page: Page) -> None:
    show(page, dcron_url("job_changelist"))
    page.keyboard.press("?")
    page.get_by_role("dialog").wait_for()


def open_row_menu(page: Page) -> None:
    show(page, dcron_url("job_changelist"))
    page.get_by_role("button", name="More: shop/import-orders").click()
    page.get_by_role("link", name="View runs").wait_for()


def open_saved_filters(page: Page) -> None:
    show(page, f"{dcron_url('job_changelist')}?state=enabled")
    page.get_by_role("button", name="Save filter").click()
    page.get_by_label("Name of the filter").fill("Mine")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_role("button", name="Saved filters").click()
    page.get_by_role("link", name="Mine").wait_for()


def open_form_to_save_filter(page: Page) -> None:
    show(page, f"{dcron_url('run_changelist')}?state__exact=failed")
    page.get_by_role("button", name="Save filter").click()
    page.get_by_label("Name of the filter").wait_for()


STEPS = [
    open_row_menu,
    open_saved_filters,
    open_form_to_save_filter,
    submit_invalid_form,
    confirm_list_action,
    preview_backfill,
    confirm_deletion,
    open_settings,
    open_palette,
    open_shortcuts,
]


@pytest.mark.parametrize("name", PAGES)
def test_page_is_accessible_and_fits_window(page: Page, name: str) -> None:
    show(page, PAGES[name](make_sample()))
    assert_accessible_and_fits(page)


@pytest.mark.parametrize("name", [name for name in PAGES if name.endswith(" list")])
def test_list_on_phone_shows_rows_as_cards_with_named_values(browse: Browse, name: str) -> None:
    page = browse(width=PHONE)
    sample = make_sample()
    Limit.objects.create(name="warehouse", max_running=1)
    show(page, PAGES[name](sample))
    table = page.locator("#result_list")
    expect(table).to_have_class(re.compile("dcron-cards"))
    assert page.evaluate(SCROLLS_SIDEWAYS) == []
    values = table.locator("tbody td:not(.action-checkbox)")
    titles = values.evaluate_all("cells => cells.map((cell) => cell.dataset.dcronColumn)")
    assert titles
    assert all(titles)


SCROLLS_SIDEWAYS = """[...document.querySelectorAll("#result_list, #changelist .results")]
    .filter((it) => it.scrollWidth > it.clientWidth + 1).map((it) => it.id || it.className)"""


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_page_after_step_is_accessible_and_fits_window(
    page: Page, step: Callable[[Page], None]
) -> None:
    make_sample()
    step(page)
    assert_accessible_and_fits(page)


@pytest.mark.parametrize("name", ["dashboard", "job list", "run list", "node list"])
def test_empty_page_is_accessible_and_fits_window(page: Page, name: str) -> None:
    show(page, PAGES[name](NOTHING))
    assert_accessible_and_fits(page)


def test_excluded_findings_occur_on_pages_of_django(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Django's own pages of users break these rules, too."""
    user = User.objects.create_user("somebody-whose-name-is-longer-than-any-link-beside-it")
    monkeypatch.setattr(
        admin.site.get_model_admin(User), "search_help_text", "Part of a name.", raising=False
    )
    found = set()
    for path in (url("auth_user_changelist"), url("auth_user_change", user.pk)):
        show(page, path)
        found |= {finding.exception for finding in findings(page, include_django=True)}
    assert found >= DJANGO_FINDINGS


RIGHT_TO_LEFT = """
() => [...document.querySelectorAll(
    "code, pre, .dcron-code, [name=schedule], [name=target], [class*=dcron-] svg"
)]
    .filter((element) => getComputedStyle(element).direction !== "ltr")
    .map((element) => element.outerHTML.slice(0, 200))
"""


SCROLLED = """
() => {
    const { scrollWidth, clientWidth } = document.getElementById("result_list").parentElement;
    return scrollWidth > clientWidth;
}
"""


@pytest.mark.parametrize("language", ["en", "de"])
def test_columns_of_lists_fit_on_a_laptop(page: Page, settings: Any, language: str) -> None:
    settings.LANGUAGE_CODE = language
    sample = make_sample()
    for name in ("job list", "audit log"):
        show(page, PAGES[name](sample))
        assert not page.evaluate(SCROLLED), name


def test_code_and_charts_read_from_left_to_right_in_right_to_left_language(
    page: Page, settings: Any
) -> None:
    settings.LANGUAGE_CODE = "ar"
    sample = make_sample()
    names = ("dashboard", "job list", "job add", "job", "run with arguments", "why", "failed run")
    for name in names:
        show(page, PAGES[name](sample))
        assert page.evaluate("document.dir") == "rtl"
        assert page.evaluate(RIGHT_TO_LEFT) == [], name
        assert elements_wider_than_window(page) == [], name
