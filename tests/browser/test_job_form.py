"""The job's form as one types: what the preview says, and where."""

import re

import pytest
from django.contrib.sessions.models import Session
from playwright.sync_api import Locator, Page, expect

from tests.browser.pages import ours

pytestmark = pytest.mark.browser


@pytest.fixture
def preview(page: Page) -> Locator:
    page.goto(ours("job_add"))
    page.locator("[name=target]").fill("tests.app.tasks.slow")
    return page.get_by_role("complementary", name="Preview")


def test_the_schedule_in_words_and_its_next_occurrences(page: Page, preview: Locator) -> None:
    page.locator("[name=timezone]").fill("Asia/Tokyo")
    page.locator("[name=schedule]").press_sequentially("30 3 * * MON")
    expect(preview.locator(".dcron-words")).to_contain_text("03:30")
    expect(preview.locator("thead th")).to_have_text(["Asia/Tokyo", "UTC", "Gap"])
    rows = preview.locator("tbody tr")
    expect(rows).to_have_count(10)
    expect(rows.nth(1)).to_contain_text("03:30")
    expect(rows.nth(1)).to_contain_text("18:30")
    expect(rows.nth(1)).to_contain_text("7d 0h")


def test_a_caution_comes_and_goes(page: Page, preview: Locator) -> None:
    schedule, caution = page.locator("[name=schedule]"), preview.locator("[data-dcron-caution]")
    schedule.fill("* * * * * *")
    expect(caution.first).to_be_visible()
    schedule.fill("0 9 1 * *")
    expect(preview.locator(".dcron-words")).to_contain_text("09:00")
    expect(caution).to_have_count(0)


def test_what_a_target_takes_is_said_and_checked(page: Page, preview: Locator) -> None:
    page.locator("[name=schedule]").fill("0 9 1 * *")
    expect(page.locator("#dcron-preview-target")).to_contain_text("slow(seconds")
    page.locator("summary", has_text="Arguments").click()
    page.locator("[name=kwargs]").fill('{"minutes": 2}')
    expect(page.locator("#id_kwargs_error")).to_contain_text("minutes")
    expect(page.locator("[name=kwargs]")).to_have_attribute("aria-invalid", "true")
    page.locator("[name=kwargs]").fill('{"seconds": 2}')
    expect(page.locator("#id_kwargs_error")).to_have_count(0)


def test_an_error_is_seen_once_at_its_field_and_told_in_the_preview_too(page: Page, preview: Locator) -> None:
    """For who hears the page; and to be seen where the field is not: its group is closed."""
    page.locator("[name=schedule]").fill("* *")
    expect(page.locator("#id_schedule_error")).to_have_text(re.compile(r"^'\* \*' has 2 fields"))
    told = preview.locator("[data-dcron-field=schedule]")
    expect(told).to_contain_text("has 2 fields")
    expect(told).to_have_class("visually-hidden")
    page.locator("summary", has_text="Arguments").click()
    page.locator("[name=kwargs]").fill("[]")
    page.locator("summary", has_text="Arguments").click()
    page.locator("[name=schedule]").fill("@daily")
    expect(preview.locator("[data-dcron-field=schedule]")).to_have_count(0)
    expect(preview.locator("[data-dcron-field=kwargs]")).to_be_visible()
    expect(preview.locator("[data-dcron-field=kwargs]")).not_to_have_class("visually-hidden")


def test_the_attempts_are_drawn(page: Page, preview: Locator) -> None:
    page.locator("summary", has_text="Timeout and retry").click()
    page.locator("[name=max_attempts]").fill("4")
    expect(page.get_by_role("img", name="The attempts in time").locator("circle")).to_have_count(4)


def test_whoever_was_logged_out_keeps_what_was_typed(page: Page, preview: Locator) -> None:
    page.locator("[name=name]").fill("typed with care")
    Session.objects.all().delete()
    page.locator("[name=schedule]").fill("0 9 1 * *")
    expect(preview.get_by_text("You have been logged out")).to_be_visible()
    expect(page.locator("[name=name]")).to_have_value("typed with care")
