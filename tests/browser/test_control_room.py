"""Test what scripts add to the list and the page of jobs: countdown, tabs, palette, shortcuts."""

import re

import pytest
from playwright.sync_api import Page, expect

from django_dcron.models import Job
from tests.browser.conftest import PHONE, WIDE, Browse
from tests.browser.pages import PAGES, dcron_url
from tests.browser.sample import make_sample
from tests.factories import make_idle_job, make_job

pytestmark = pytest.mark.browser

PALETTE = "#dcron-palette > input"


def expect_scripts(page: Page) -> None:
    """Wait for the script that listens to the keyboard. It shows the button."""
    expect(page.locator("[data-dcron-open-palette]:visible")).to_have_count(1)


def test_countdown_runs_by_the_servers_clock_until_it_is_paused(page: Page) -> None:
    make_job(name="grind", schedule="@every 50m")
    page.clock.install(time=0)  # a browser whose clock is wrong by decades
    page.goto(dcron_url("job_changelist"))
    left = page.locator("[data-dcron-countdown]")
    expect(left).to_have_text(re.compile(r"^in (50|49)m( \d\ds)?$"))
    page.clock.pause_at(60)  # from here on, time passes only in ``run_for``

    def seconds() -> int:
        minutes, rest = re.findall(r"\d+", left.inner_text())
        return 60 * int(minutes) + int(rest)

    page.clock.run_for(1_000)
    before, width = seconds(), left.evaluate("element => element.offsetWidth")
    page.clock.run_for(605_000)
    assert seconds() == before - 605
    assert left.evaluate("element => element.offsetWidth") == width
    button = page.locator("[data-dcron-refresh-control]")
    button.click()
    page.clock.run_for(5_000)
    assert seconds() == before - 605
    button.click()
    page.clock.run_for(3_600_000)
    expect(left).to_have_text(re.compile(r"^overdue by \d+m$"))


def test_tabs_work_by_keyboard_and_by_address(page: Page) -> None:
    job = make_idle_job(name="grind")
    page.goto(dcron_url("job_change", job.pk))
    selected = page.get_by_role("tab", selected=True)
    expect(selected).to_have_text("Overview")
    expect(page.get_by_role("tabpanel")).to_have_count(1)
    save = page.locator("[type=submit][name=_save]")
    expect(save).to_be_hidden()
    selected.focus()
    page.keyboard.press("ArrowRight")
    expect(selected).to_contain_text("General")
    expect(selected).to_be_focused()
    expect(save).to_be_visible()
    page.keyboard.press("End")
    expect(selected).to_contain_text("Retention")
    page.reload()
    expect(selected).to_contain_text("Retention")
    page.goto(f"{dcron_url('job_change', job.pk)}#id_timeout")
    page.reload()
    expect(selected).to_contain_text("Failures")


def test_palette_opens_and_applies_by_keyboard(page: Page) -> None:
    job = make_idle_job(name="grind")
    page.goto(dcron_url("dashboard_changelist"))
    page.keyboard.press("Control+k")
    box = page.locator(PALETTE)
    expect(box).to_be_focused()
    box.press_sequentially("grind")
    option = page.locator("[role=option][aria-selected=true]")
    expect(option).to_contain_text("grind")
    expect(box).to_have_attribute("aria-activedescendant", option.get_attribute("id") or "")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)

    page.keyboard.press("Control+k")
    box.press_sequentially("grind")
    expect(option).to_contain_text("grind")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(rf"/job/{job.pk}/change/"))
    expect_scripts(page)

    page.keyboard.press("Control+k")
    box.fill("pause grind")
    page.keyboard.press("Enter")  # waits for the results of this text
    expect(page.locator(".dcron-glance [data-dcron-paused]")).to_be_visible()
    assert not Job.objects.get().enabled


def test_shortcuts_open_lists_until_they_are_switched_off(page: Page) -> None:
    make_idle_job(name="grind")
    page.goto(dcron_url("dashboard_changelist"))
    page.keyboard.press("g")
    page.keyboard.press("j")
    expect(page).to_have_url(re.compile(r"/job/$"))
    expect_scripts(page)
    page.keyboard.press("/")
    expect(page.locator("#searchbar")).to_be_focused()
    page.keyboard.type("gr?")
    expect(page.locator("#searchbar")).to_have_value("gr?")
    page.locator("#content h1").click()
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("checkbox").uncheck()
    dialog.get_by_role("button").click()
    page.keyboard.press("?")
    page.keyboard.press("g")
    page.keyboard.press("d")
    page.keyboard.press("Control+k")  # works always
    expect(page.locator(PALETTE)).to_be_focused()
    expect(page).to_have_url(re.compile(r"/job/$"))


@pytest.mark.parametrize("has_scripts", [True, False])
def test_menu_of_row_works_by_keyboard(browse: Browse, has_scripts: bool) -> None:
    job = make_idle_job(name="grind")
    page = browse(java_script_enabled=has_scripts)
    page.goto(dcron_url("job_changelist"))
    more = page.get_by_role("button", name="More: grind")
    first = page.get_by_role("link", name="Edit", exact=True)
    expect(first).to_be_hidden()
    more.focus()
    page.keyboard.press("Enter")
    expect(first).to_be_visible()
    page.keyboard.press("Tab")
    expect(first).to_be_focused()
    page.keyboard.press("Escape")
    expect(first).to_be_hidden()
    expect(more).to_be_focused()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Duplicate: grind").click()
    page.wait_for_url(f"**{dcron_url('job_changelist')}")
    assert Job.objects.count() == 2
    page.get_by_role("button", name="More: grind", exact=True).click()
    page.get_by_role("link", name="Edit", exact=True).click()
    page.wait_for_url(f"**{dcron_url('job_change', job.pk)}")


@pytest.mark.parametrize("has_scripts", [True, False])
def test_filter_is_saved_followed_and_deleted(browse: Browse, has_scripts: bool) -> None:
    make_idle_job(name="grind")
    page = browse(java_script_enabled=has_scripts)
    page.goto(f"{dcron_url('job_changelist')}?q=grind")
    page.get_by_role("button", name="Save filter").click()
    page.get_by_label("Name of the filter").fill("Mine")
    page.keyboard.press("Enter")
    expect(page.get_by_text("The filter “Mine” was saved.")).to_be_visible()
    page.goto(dcron_url("job_changelist"))
    menu = page.get_by_role("button", name="Saved filters")
    menu.click()
    page.get_by_role("link", name="Mine").click()
    page.wait_for_url("**?q=grind")
    menu.click()
    page.get_by_role("button", name="Delete the filter Mine").click()
    expect(page.get_by_text("The filter was deleted.")).to_be_visible()
    expect(page).to_have_url(re.compile(r"\?q=grind$"))
    menu.click()
    expect(page.get_by_text("No saved filters yet.")).to_be_visible()


@pytest.mark.parametrize("width", [1024, 1280, 1440])
def test_job_list_fits_the_window(browse: Browse, width: int) -> None:
    """Nothing of a row is hidden on a laptop, not even a long schedule in another time zone."""
    make_sample()
    rule = "@rrule 2026-01-02T09:00 FREQ=WEEKLY;INTERVAL=2;BYDAY=FR"
    make_job(name="Send invoices to all customers", schedule=rule, timezone="America/New_York")
    page = browse(width=width)
    page.goto(dcron_url("job_changelist"))
    row = page.get_by_role("row", name="Send invoices")
    expect(row).to_contain_text("FREQ=WEEKLY")
    sizes = "element => [element.scrollWidth, element.clientWidth]"
    content, shown = page.locator(".results").evaluate(sizes)
    assert content <= shown


@pytest.mark.parametrize("name", ["dashboard", "job list", "incident", "calendar", "attempt"])
def test_each_page_has_one_button_for_the_palette(page: Page, name: str) -> None:
    page.goto(PAGES[name](make_sample()))
    expect_scripts(page)
    page.locator("[data-dcron-open-palette]:visible").click()
    expect(page.locator(PALETTE)).to_be_focused()


@pytest.mark.parametrize(("width", "is_touch"), [(WIDE, False), (WIDE, True), (PHONE, False)])
def test_button_for_the_palette_names_the_keys_where_a_keyboard_is_likely(
    browse: Browse, width: int, is_touch: bool
) -> None:
    page = browse(width=width, has_touch=is_touch, is_mobile=is_touch)
    page.goto(dcron_url("dashboard_changelist"))
    button = page.locator("[data-dcron-open-palette]:visible")
    expect(button).to_have_count(1)
    expect(button.locator("kbd")).to_be_visible(visible=width == WIDE and not is_touch)
