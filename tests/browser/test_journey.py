"""Test a user's work in the admin with a real node and a real worker."""

import re
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from django_dcron.models import Job, Run
from tests.browser.conftest import PHONE, Browse
from tests.browser.pages import dcron_url, tab_to
from tests.conftest import StartProcess
from tests.factories import make_idle_job, make_job

pytestmark = [pytest.mark.browser, pytest.mark.slow]

JOB = "count-the-stock"
SCHEDULE = "30 9 1 1 *"
"""Not due during a test."""
TARGET = "tests.app.tasks.report_progress"


@pytest.fixture
def node_and_worker(start_worker: StartProcess, start_runcron: StartProcess) -> None:
    node = start_runcron("--name", "node-a")
    start_worker()
    node.wait_for_log("node started: node=node-a")


def field(page: Page, name: str) -> Locator:
    return page.locator(f"[name={name}]")


def press(page: Page, button: str) -> None:
    page.get_by_role("button", name=button, exact=True).click()


@pytest.mark.usefixtures("node_and_worker")
def test_user_creates_runs_pauses_and_cancels_job(page: Page) -> None:
    correct_a_mistake_and_save(page)
    run_it_and_watch_it_finish(page)
    pause_it_with_a_reason_and_resume_it(page)
    cancel_a_long_one_while_it_runs(page)
    read_the_dashboard(page)


def correct_a_mistake_and_save(page: Page) -> None:
    page.goto("/admin/")
    page.get_by_role("main").get_by_role("link", name="Jobs", exact=True).click()
    page.get_by_role("main").get_by_role("link", name=re.compile("Add job")).click()
    field(page, "name").fill(JOB)
    field(page, "target").fill(TARGET)
    field(page, "schedule").press_sequentially("30 25 1 1 *")
    row = page.locator(".form-row", has=field(page, "schedule"))
    expect(row.locator(".errorlist")).to_contain_text("hour")
    expect(field(page, "schedule")).to_have_attribute("aria-invalid", "true")
    field(page, "schedule").fill(SCHEDULE)
    expect(row.locator(".errorlist")).to_have_count(0)
    preview = page.get_by_role("complementary", name="Preview")
    expect(preview).to_contain_text("09:30")
    field(page, "kwargs").fill('{"minutes": 1}')
    expect(
        page.locator(".form-row", has=field(page, "kwargs")).locator(".errorlist")
    ).to_contain_text("minutes")
    press(page, "Save and continue editing")
    expect(page.get_by_text("Please correct the error")).to_be_visible()
    field(page, "kwargs").fill('{"seconds": 1}')
    press(page, "Save and continue editing")
    expect(page.get_by_text("was added successfully")).to_be_visible()


def press_action(page: Page, verb: str) -> None:
    """Press the button of an action without a form."""
    page.locator(f".dcron-action > button[form='dcron-do-{verb}']").click()


def open_form(page: Page, verb: str) -> Locator:
    """Open the form of an action and return it."""
    details = page.locator(
        ".dcron-action details", has=page.locator(f"button[form='dcron-do-{verb}']")
    )
    details.locator("summary").click()
    return details.locator(".dcron-action-form")


def run_it_and_watch_it_finish(page: Page) -> None:
    press_action(page, "run_now")
    expect(page).to_have_url(re.compile(r"/run/[0-9a-f-]{36}/change/$"))
    expect_state(page, "succeeded")  # refreshed automatically
    expect(page.locator("#dcron-log-text")).to_contain_text("three rows")


def verdict(page: Page) -> Locator:
    return page.locator(".dcron-verdict")


def expect_state(page: Page, state: str) -> None:
    expect(verdict(page).locator(f".dcron-badge.dcron-{state}")).to_be_visible()


def glance_of(page: Page) -> Locator:
    return page.locator(".dcron-glance")


def pause_it_with_a_reason_and_resume_it(page: Page) -> None:
    page.goto(dcron_url("job_change", Job.objects.get().pk))
    form = open_form(page, "pause")
    form.locator("[name=reason]").fill("the stock room is being painted")
    form.get_by_role("button").click()
    glance = glance_of(page)
    expect(glance).to_contain_text("the stock room is being painted")
    expect(glance).to_contain_text("admin")
    press_action(page, "resume")
    expect(glance).not_to_contain_text("the stock room is being painted")
    assert Job.objects.get().enabled


def cancel_a_long_one_while_it_runs(page: Page) -> None:
    page.locator(".dcron-action a[href$='/do/run_with/']").click()
    page.get_by_text("Edit as JSON").click()
    field(page, "kwargs").fill('{"seconds": "soon"')
    page.locator(".submit-row [type=submit]").click()
    expect(page.get_by_text("Please correct the error")).to_be_visible()
    field(page, "kwargs").fill('{"seconds": 600}')
    page.locator(".submit-row [type=submit]").click()
    expect(page.get_by_text("3 of 10")).to_be_visible()
    expect(page.locator("#dcron-log-text")).to_contain_text("three rows")
    expect_state(page, "running")
    form = open_form(page, "cancel")
    form.locator("[name=reason]").fill("counted the wrong room")
    form.get_by_role("button").click()
    expect_state(page, "cancelled")
    expect(verdict(page)).to_contain_text("counted the wrong room (admin)")
    assert sorted(Run.objects.values_list("state", flat=True)) == ["cancelled", "succeeded"]


def read_the_dashboard(page: Page) -> None:
    page.goto("/admin/")
    page.get_by_role("main").get_by_role("row").get_by_role(
        "link", name="Dashboard", exact=True
    ).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Dashboard")
    for shown in ("node-a", JOB):
        expect(page.get_by_role("main")).to_contain_text(shown)


@pytest.mark.parametrize("options", [{"scheme": "dark"}, {"width": PHONE}], ids=["dark", "phone"])
@pytest.mark.usefixtures("node_and_worker")
def test_user_runs_and_pauses_job_in_dark_mode_or_on_phone(
    browse: Browse, options: dict[str, Any]
) -> None:
    """Test the most frequent actions: run a job, watch it and pause it."""
    page = browse(**options)
    page.goto(
        dcron_url("job_change", make_job(name=JOB, schedule=SCHEDULE, target=TARGET, args=[1]).pk)
    )
    run_it_and_watch_it_finish(page)
    pause_it_with_a_reason_and_resume_it(page)


def test_user_creates_and_pauses_job_without_javascript(browse: Browse) -> None:
    page = browse(java_script_enabled=False)
    page.goto(dcron_url("job_add"))
    for name, text in {"name": JOB, "target": TARGET, "schedule": "30 25 1 1 *"}.items():
        field(page, name).fill(text)
    press(page, "Save and continue editing")
    expect(page.locator(".errorlist").first).to_contain_text("hour")
    field(page, "schedule").fill(SCHEDULE)
    page.get_by_label("seconds").fill("1")
    press(page, "Save and continue editing")
    expect(page.get_by_text("was added successfully")).to_be_visible()
    pause_it_with_a_reason_and_resume_it(page)


@pytest.mark.usefixtures("transactional_db")
def test_user_pauses_job_with_keyboard_only(page: Page) -> None:
    """Reach the button of an action, fill in its form and confirm, without a mouse."""
    page.goto(dcron_url("job_change", make_idle_job(name=JOB).pk))
    tab_to(page, "details:has([form='dcron-do-pause']) > summary")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.type("without a mouse")
    page.keyboard.press("Enter")
    expect(glance_of(page)).to_contain_text("without a mouse")
    assert not Job.objects.get().enabled
