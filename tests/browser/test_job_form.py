"""Test the live preview of the job form: its texts and their places."""

import json
import re
from datetime import timedelta
from typing import Annotated

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.utils.timezone import now
from playwright.sync_api import Locator, Page, expect

from django_dcron import control
from django_dcron.models import Calendar
from django_dcron.targets import functions
from tests.browser.accessibility import assert_accessible_and_fits
from tests.browser.conftest import Browse
from tests.browser.pages import dcron_url
from tests.browser.sample import make_sample

pytestmark = pytest.mark.browser


@pytest.fixture
def preview(page: Page) -> Locator:
    page.goto(dcron_url("job_add"))
    page.locator("[name=target]").fill("tests.app.tasks.slow")
    return page.get_by_role("complementary", name="Preview")


def test_preview_shows_description_and_next_occurrences(page: Page, preview: Locator) -> None:
    page.locator("[name=timezone]").fill("Asia/Tokyo")
    page.locator("[name=schedule]").press_sequentially("30 3 * * MON")
    expect(preview.locator(".dcron-words")).to_contain_text("03:30")
    expect(preview.locator(".dcron-next thead th")).to_have_text(["Asia/Tokyo", "UTC", "Interval"])
    rows = preview.locator(".dcron-next tbody tr")
    expect(rows).to_have_count(10)
    expect(rows.nth(1)).to_contain_text("03:30")
    expect(rows.nth(1)).to_contain_text("18:30")
    expect(rows.nth(1)).to_contain_text("7d")
    sizes = "element => [element.scrollWidth, element.clientWidth]"
    content, shown = page.locator("#dcron-preview-occurrences").evaluate(sizes)
    assert content <= shown, "no column is cut off"
    stale = preview.locator(".dcron-stale-note")
    expect(stale).to_have_count(0)
    page.locator("[name=schedule]").fill("30 3 * * MOO")
    expect(stale).to_be_visible()
    expect(rows).to_have_count(10)
    page.locator("[name=schedule]").fill("30 3 * * TUE")
    expect(stale).to_have_count(0)


def test_preview_shows_examples_once(page: Page, preview: Locator) -> None:
    examples = preview.locator(".dcron-examples")
    expect(examples).to_have_count(1)
    page.locator("[name=schedule]").fill("next friday at 18:00")
    expect(preview.locator(".dcron-stale-note")).to_have_count(1)
    expect(examples).to_have_count(1)
    page.locator("[name=schedule]").fill("30 3 * * *")
    expect(examples).to_have_count(0)


def test_preview_shows_and_removes_caution(page: Page, preview: Locator) -> None:
    schedule, caution = page.locator("[name=schedule]"), preview.locator("[data-dcron-caution]")
    schedule.fill("* * * * * *")
    expect(caution.first).to_be_visible()
    schedule.fill("0 9 1 * *")
    expect(preview.locator(".dcron-words")).to_contain_text("09:00")
    expect(caution).to_have_count(0)


def test_preview_shows_months_in_light_and_dark_and_on_phone(page: Page, preview: Locator) -> None:
    control.freeze("deploy", until=now() + timedelta(days=2))
    control.save_calendar(Calendar(name="closed", dates="SAT-SUN # Weekend\n22:00-06:00"))
    page.goto(dcron_url("job_add"))
    page.locator("[name=target]").fill("tests.app.tasks.ok")
    page.locator("[name=schedule]").fill("*/30 * * * *")
    months = preview.locator(".dcron-upcoming table")
    expect(months).to_have_count(2)
    page.get_by_role("tab", name="Timing").click()
    page.locator("[name=calendar]").select_option("closed")
    excluded = months.last.locator("td:has(s)")
    expect(excluded.first).to_contain_text("excluded (Weekend)")
    expect(excluded.first).to_have_attribute("title", "excluded (Weekend)")
    expect(months.last.locator(".dcron-partly").first).to_be_visible()
    expect(months.last.get_by_text("32×").first).to_be_visible()  # noqa: RUF001
    expect(preview.locator("td .dcron-frozen").first).to_be_visible()
    assert_accessible_and_fits(page)


def test_months_need_no_script(browse: Browse) -> None:
    sample = make_sample()
    page = browse(java_script_enabled=False)
    page.goto(dcron_url("job_change", sample.job.pk))
    expect(page.locator("#dcron-preview .dcron-upcoming table")).to_have_count(2)
    expect(page.locator("#dcron-preview td.dcron-today .dcron-frozen")).to_be_visible()


def test_preview_shows_signature_and_argument_errors(page: Page, preview: Locator) -> None:
    page.locator("[name=schedule]").fill("0 9 1 * *")
    expect(page.locator("#dcron-preview-target")).to_contain_text("slow(seconds")
    page.locator("[name=kwargs]").fill('{"minutes": 2}')
    expect(page.locator("#id_kwargs_error")).to_contain_text("minutes")
    expect(page.locator("[name=kwargs]")).to_have_attribute("aria-invalid", "true")
    page.locator("[name=kwargs]").fill('{"seconds": 2}')
    expect(page.locator("#id_kwargs_error")).to_have_count(0)


def test_error_is_visible_at_field_and_hidden_in_preview(page: Page, preview: Locator) -> None:
    """The preview repeats the error for screen readers.

    It shows the error visibly while the field is in a closed tab.
    """
    page.locator("[name=schedule]").fill("* *")
    expect(page.locator("#id_schedule_error")).to_have_text(re.compile(r"'\* \*'"))
    shown = preview.locator("[data-dcron-field=schedule]")
    expect(shown).to_contain_text("'* *'")
    expect(shown).to_have_class("dcron-hidden")
    page.locator("[name=schedule]").fill("@daily")
    expect(preview.locator("[data-dcron-field=schedule]")).to_have_count(0)
    page.get_by_role("tab", name="Failures").click()
    page.locator("[name=timeout]").fill("soon")
    tab, wrong = page.get_by_role("tab", name="General"), page.locator("#dcron-failures-tab")
    expect(page.locator("#id_timeout_error")).to_be_visible()
    shown = preview.locator("[data-dcron-field=timeout]")
    expect(shown).to_have_class("dcron-hidden")
    tab.click()
    expect(shown).not_to_have_class("dcron-hidden")
    expect(wrong).to_have_class("dcron-wrong")


def test_error_in_closed_tab_opens_it(page: Page, preview: Locator) -> None:
    page.locator("[name=name]").fill("new")
    page.locator("[name=schedule]").fill("@daily")
    page.get_by_role("tab", name="Retention").click()
    page.locator("[name=keep_for]").fill("long")
    page.get_by_role("tab", name="Timing").click()
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("Please correct the error")).to_be_visible()
    expect(page.get_by_role("tab", selected=True)).to_contain_text("Retention")
    expect(page.locator("[name=keep_for]")).to_be_visible()
    expect(page.locator("[name=name]")).to_be_hidden()


def test_empty_required_input_is_marked_after_a_refused_save(page: Page, preview: Locator) -> None:
    page.locator("[name=target]").fill("tests.app.tasks.nap")
    seconds = page.locator("[name=argument-seconds]")
    expect(seconds).to_be_visible()
    expect(seconds).not_to_have_attribute("aria-invalid", "true")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator("#id_argument-seconds_error")).to_be_visible()
    expect(page.locator(".dcron-raw")).not_to_have_attribute("open", "")
    page.locator("[name=argument-seconds]").fill("2")
    expect(page.locator("#id_argument-seconds_error")).to_have_count(0)
    page.locator("[name=argument-seconds]").fill("")
    expect(page.locator("#id_argument-seconds_error")).to_be_visible()
    expect(page.locator("#dcron-preview-target .dcron-wrong-text")).to_have_count(0)


def test_inputs_of_arguments_follow_target_and_json(page: Page, preview: Locator) -> None:
    seconds, raw = page.locator("[name=argument-seconds]"), page.locator("[name=kwargs]")
    expect(seconds).to_be_visible()
    seconds.fill("2.5")
    expect(raw).to_have_value('{"seconds": 2.5}')
    raw.fill('{"seconds": 4}')
    expect(seconds).to_have_value("4")


def test_preview_draws_attempts(page: Page, preview: Locator) -> None:
    page.get_by_role("tab", name="Failures").click()
    page.locator("[name=max_attempts]").fill("4")
    expect(page.locator("#dcron-preview-retry").get_by_role("img").locator("circle")).to_have_count(
        4
    )


def test_logged_out_user_keeps_form_values(page: Page, preview: Locator) -> None:
    page.locator("[name=name]").fill("typed with care")
    Session.objects.all().delete()
    page.locator("[name=schedule]").fill("0 9 1 * *")
    expect(preview.locator("[data-dcron-logged-out]")).to_be_visible()
    expect(page.locator("[name=name]")).to_have_value("typed with care")


def remind(user: Annotated[int, User]) -> None:
    """Take the key of a row."""


def test_lookup_of_rows_fills_in_the_key(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(functions.registered, "tests.remind", remind)
    ann = User.objects.create_user("ann")
    page.goto(dcron_url("job_add"))
    page.locator("[name=target]").fill("tests.remind")
    field = page.locator("[name=argument-user]")
    with page.expect_popup() as opened:
        page.locator("#lookup_id_argument-user").click()
    opened.value.get_by_role("link", name="ann").click()
    expect(field).to_have_value(str(ann.pk))
    expect(page.locator("[name=kwargs]")).to_have_value(json.dumps({"user": ann.pk}))
    field.scroll_into_view_if_needed()
    assert_accessible_and_fits(page)
