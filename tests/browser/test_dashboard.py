"""Test that the dashboard refreshes itself: new contents appear and the rest stays untouched."""

import pytest
from django.utils import timezone
from playwright.sync_api import Page, Response, expect

from django_dcron.policies.lifecycle import State
from tests.browser.conftest import PHONE, Browse
from tests.browser.pages import ours
from tests.factories import make_idle_job, make_run

pytestmark = pytest.mark.browser


def is_about_failures(response: Response) -> bool:
    return "/part/failures/" in response.url


def fail(name: str) -> None:
    run = make_run(make_idle_job(name=name), "running")
    run.attempts.update(outcome=State.FAILED, message="no more beans")
    run.state, run.finished_at = State.FAILED, run.started_at
    run.save()


def test_what_is_new_comes_and_nothing_flickers(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = (
        timezone.now()
    )  # constant, because the part links to the last 24 hours, which change each minute
    monkeypatch.setattr("django_dcron.admin.dashboard.failures.database_now", lambda _alias: now)
    fail("grind")
    page.goto(ours("dashboard_changelist"))
    failures = page.locator("#dcron-failures")
    expect(failures).to_contain_text("grind")
    failures.evaluate("element => { window.seen = element; }")

    with page.expect_response(is_about_failures) as unchanged:
        pass
    assert unchanged.value.status == 204
    assert failures.evaluate("element => element === window.seen"), "it was drawn anew, for nothing"

    fail("roast")
    expect(failures).to_contain_text("roast")
    expect(failures).to_contain_text("no more beans")
    assert page.evaluate("window.seen !== undefined"), "the page was loaded anew"


def test_on_a_phone_the_timeline_shows_now_and_stays_where_it_is_scrolled_to(
    browse: Browse,
) -> None:
    page = browse(width=PHONE)
    make_idle_job(name="grind")
    page.goto(ours("dashboard_changelist"))
    chart = page.locator(".dcron-chart:has(.dcron-now)")
    now = "element.querySelector('.dcron-now').getBoundingClientRect().left"
    names = "element.querySelector('ul').getBoundingClientRect().right"
    assert chart.evaluate(
        f"element => {names} < {now} && {now} < element.getBoundingClientRect().right"
    )

    place = chart.evaluate("element => element.scrollLeft")
    make_idle_job(name="roast")
    expect(chart).to_contain_text("roast")
    assert chart.evaluate("element => element.scrollLeft") == place, "now again"

    chart.evaluate("element => { element.scrollLeft = 10; }")
    make_idle_job(name="brew")
    expect(chart).to_contain_text("brew")
    assert chart.evaluate("element => element.scrollLeft") == 10, "where somebody left it"


def test_until_there_is_a_job_it_says_how_to_make_one(page: Page) -> None:
    page.goto(ours("dashboard_changelist"))
    page.get_by_role("main").get_by_role("link", name="Add").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Add job")
