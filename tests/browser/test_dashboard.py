"""Test that the dashboard refreshes itself: new contents appear and the rest stays untouched."""

import re
from datetime import timedelta
from itertools import count

import pytest
from django.utils import timezone
from playwright.sync_api import Page, Response, Route, expect
from pytest_django import Settings

from django_dcron import control
from django_dcron.models import Attempt
from django_dcron.policies.lifecycle import State
from tests.browser.conftest import PHONE, Browse
from tests.browser.pages import dcron_url
from tests.browser.watch import Watch
from tests.factories import make_idle_job, make_node, make_run

pytestmark = pytest.mark.browser


@pytest.fixture(autouse=True)
def sections_are_read_for_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    times = count(start=1_000_000, step=1_000_000)
    monkeypatch.setattr("django_dcron.admin.dashboard.live.clock", lambda: float(next(times)))


def is_live_response(response: Response) -> bool:
    return "/live/" in response.url


def fail(name: str) -> None:
    run = make_run(make_idle_job(name=name), "running")
    run.attempts.update(outcome=State.FAILED, message="no more beans")
    run.state, run.finished_at = State.FAILED, run.started_at
    run.save()


def test_freeze_is_shown_once(page: Page, settings: Settings) -> None:
    settings.DCRON_LEASE = timedelta(minutes=10)  # the node stays alive
    make_idle_job()
    make_node()
    page.goto(dcron_url("dashboard_changelist"))
    health = page.locator(".dcron-health")
    expect(health).to_contain_text("No problem found")
    control.freeze("deploy")
    expect(health).to_contain_text("frozen")  # the page was loaded without the banner
    page.reload()
    expect(page.locator(".dcron-freeze")).to_contain_text("deploy")
    expect(page.locator(".dcron-health .dcron-freeze-line")).to_be_hidden()


def test_failures_section_is_replaced_only_if_it_changed(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Constant, because sections show times and link to the last 24 hours.
    now = timezone.now()
    monkeypatch.setattr("django_dcron.admin.dashboard.viewer.database_now", lambda _alias: now)
    fail("grind")
    page.goto(dcron_url("dashboard_changelist"))
    failures = page.locator("#dcron-failures")
    expect(failures).to_contain_text("grind")
    tile = page.locator("a.dcron-tile").first
    assert tile.evaluate("element => getComputedStyle(element).textDecorationLine") == "none"
    failures.evaluate("element => { window.seen = element; }")

    with page.expect_response(is_live_response) as unchanged:
        pass
    assert unchanged.value.status == 204
    assert failures.evaluate("element => element === window.seen"), "the section was replaced"

    fail("roast")
    expect(failures).to_contain_text("roast")
    expect(failures).to_contain_text("no more beans")
    assert page.evaluate("window.seen !== undefined"), "the page was reloaded"


def test_button_pauses_refreshes_of_all_pages_in_the_tab(page: Page) -> None:
    make_idle_job(name="grind")
    page.goto(dcron_url("dashboard_changelist"))
    button = page.locator("[data-dcron-refresh-control]")
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    page.goto(dcron_url("dashboard_changelist"))
    expect(button).to_have_attribute("aria-pressed", "true")
    page.evaluate(
        "() => document.addEventListener('htmx:beforeRequest', (event) => "
        "{ document.body.dataset.prevented = event.defaultPrevented; })"
    )
    expect(page.locator("body")).to_have_attribute("data-prevented", "true")

    button.click()
    with page.expect_response(is_live_response):
        pass


def test_page_says_that_its_refreshes_fail(page: Page, watch: Watch) -> None:
    """Otherwise, the page would look calm while the database is down."""
    make_idle_job(name="grind")
    page.goto(dcron_url("dashboard_changelist"))
    note = page.locator("[data-dcron-refresh-failed]")
    live = "**/live/**"
    page.route(live, lambda route: route.fulfill(status=500, body="<h1>Server Error (500)</h1>"))
    expect(note).to_be_hidden()
    poll = "() => htmx.trigger(document.querySelector('[data-dcron-live]'), 'dcron-poll')"
    for _ in range(2):
        with page.expect_response(is_live_response):
            page.evaluate(poll)
    expect(note).to_contain_text(re.compile(r"\d+ (second|minute)s? ago"))
    part = page.locator("[data-dcron-part]").first
    assert "grayscale" in part.evaluate("element => getComputedStyle(element).filter")
    expect(page.get_by_role("heading", name="Timeline")).to_be_visible()
    assert all("500" in complaint for complaint in watch.complaints)
    watch.complaints.clear()
    page.unroute(live)
    with page.expect_response(is_live_response):
        page.evaluate(poll)
    expect(note).to_be_hidden()


def test_bar_disappears_from_a_page_whose_parts_are_replaced(page: Page, watch: Watch) -> None:
    run = make_run(make_idle_job(name="grind"), "running")

    def fail_refreshes(route: Route) -> None:
        if "hx-request" in route.request.headers:
            route.fulfill(status=500)
        else:
            route.continue_()

    page.route("**/*", fail_refreshes)
    page.goto(dcron_url("run_change", run.pk))
    note = page.locator("[data-dcron-refresh-failed]")
    expect(note).to_be_visible()
    watch.complaints.clear()
    page.unroute("**/*")
    expect(note).to_be_hidden()
    watch.complaints.clear()  # a refresh may have failed meanwhile


def test_timeline_on_phone_shows_now_and_keeps_scroll_position(
    browse: Browse,
) -> None:
    page = browse(width=PHONE)
    make_idle_job(name="grind")
    page.goto(dcron_url("dashboard_changelist"))
    chart = page.locator(".dcron-chart:has(.dcron-now)")
    now = "element.querySelector('.dcron-now').getBoundingClientRect().left"
    names = "element.querySelector('ul').getBoundingClientRect().right"
    assert chart.evaluate(
        f"element => {names} < {now} && {now} < element.getBoundingClientRect().right"
    )

    place = chart.evaluate("element => element.scrollLeft")
    make_idle_job(name="roast")
    expect(chart).to_contain_text("roast")
    assert chart.evaluate("element => element.scrollLeft") == place, (
        "the current time is still visible"
    )

    chart.evaluate("element => { element.scrollLeft = 10; }")
    make_idle_job(name="brew")
    expect(chart).to_contain_text("brew")
    assert chart.evaluate("element => element.scrollLeft") == 10, "the user's position is kept"


def test_latest_failures_fit_a_phone(browse: Browse) -> None:
    page = browse(width=PHONE)
    fail("grind")
    Attempt.objects.update(exception_class="beans.PermanentFailure")
    page.goto(dcron_url("dashboard_changelist"))
    rows = page.locator(".dcron-failure-rows")
    sizes = "element => [element.scrollWidth, element.clientWidth]"
    content, shown = rows.evaluate(f"element => ({sizes})(element.parentElement)")
    assert content <= shown
    name = rows.get_by_text("PermanentFailure")
    assert name.evaluate("element => element.getClientRects().length") == 1, "in one line"
    titles = rows.locator("[data-dcron-column]").evaluate_all(
        """cells => cells.map((cell) => {
            const title = getComputedStyle(cell, "::before");
            const start = parseFloat(getComputedStyle(cell).paddingInlineStart);
            return [title.content, start + parseFloat(title.marginInlineStart) > 0];
        })"""
    )
    assert titles == [['"Last failure"', True], ['"Failures"', True]]


def test_empty_dashboard_links_to_add_form(page: Page) -> None:
    page.goto(dcron_url("dashboard_changelist"))
    page.get_by_role("main").get_by_role("link", name="Add").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Add job")
