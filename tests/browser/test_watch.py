"""Test ``Watch``: it reports a page that misbehaves."""

import pytest
from playwright.sync_api import Browser, Page
from pytest_django.live_server_helper import LiveServer

from tests.browser.policy import POLICY
from tests.browser.watch import Watch
from tests.waiting import wait_until

pytestmark = pytest.mark.browser

VIOLATIONS = {
    "an inline script": (
        "document.head.append(Object.assign(document.createElement('script'), {text: '1'}))"
    ),
    "an inline style": "document.body.setAttribute('style', 'color: red')",
    "eval": "setTimeout(() => eval('1'))",
    "another host": "fetch('http://example.invalid/').catch(() => {})",
    "an error": "setTimeout(() => { throw new Error('oh') })",
    "a logged error": "console.error('oh')",
    "a missing file": "fetch('/static/missing.js')",
}


@pytest.mark.parametrize("violation", VIOLATIONS)
def test_watch_reports_forbidden_behavior(
    violation: str, chromium: Browser, live_server: LiveServer, transactional_db: None
) -> None:
    watch = Watch(live_server.url)
    context = chromium.new_context(base_url=live_server.url)
    watch.follow(context)
    page = context.new_page()
    page.goto("/admin/login/")
    page.wait_for_load_state("networkidle")
    assert not watch.complaints
    page.evaluate(f"() => {{ {VIOLATIONS[violation]} }}")

    def complaints() -> list[str]:
        page.title()  # Playwright delivers events only during a call
        return watch.complaints

    wait_until(complaints, 30)
    context.close()


def test_every_response_has_policy(page: Page) -> None:
    for path in ("/admin/", "/admin/login/", "/admin/nowhere/"):
        answer = page.request.get(path)
        assert answer.headers["content-security-policy"] == POLICY
