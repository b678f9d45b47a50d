"""Test the form of a calendar: its errors follow what the user types."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.pages import dcron_url

pytestmark = pytest.mark.browser


def test_errors_of_a_refused_save_follow_the_typed_dates(page: Page) -> None:
    page.goto(dcron_url("calendar_add"))
    page.locator("[name=name]").fill("closed")
    dates = page.locator("[name=dates]")
    dates.fill("SAT\n24.12.")
    page.get_by_role("button", name="Save", exact=True).click()
    row = page.locator(".field-dates")
    expect(row.locator(".errorlist")).to_contain_text("24.12.")

    dates.fill("SAT\n25.12.")
    expect(row.locator(".errorlist")).to_contain_text("25.12.")
    expect(page.locator(".errornote")).to_be_visible()

    dates.fill("SAT\n12-24")
    expect(page.locator("#dcron-months table").first).to_be_visible()
    expect(page.locator(".errorlist, .errornote")).to_have_count(0)
    expect(row).not_to_have_class(re.compile("errors"))
    expect(dates).not_to_have_attribute("aria-invalid", "true")
