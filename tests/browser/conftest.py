"""Open the live admin in Chromium, under a strict Content-Security-Policy.

Each test has its own logged-in windows.

Invariants:

- A test fails if a page that it opened does something that ``Watch`` forbids.
"""

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client, override_settings
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from pytest_django.live_server_helper import LiveServer

from django_dcron.admin.dashboard import health
from tests import waiting
from tests.browser.watch import Watch

TIMEOUT = waiting.TIMEOUT * 1000
"""Timeout in milliseconds for pages and expected contents, on a busy machine."""
WIDE, PHONE = 1280, 390

PAGES = pytest.StashKey[list[Page]]()

Browse = Callable[..., Page]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[pytest.TestReport]:
    """Add the text of the open windows to the report of a failed test."""
    report = yield
    if report.failed and report.when == "call":
        for page in item.stash.get(PAGES, []):
            if page.is_closed():  # belongs to an earlier try
                continue
            report.sections.append((f"on the page {page.url}", page.inner_text("body")[:3000]))
    return report


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    executable = shutil.which("chromium")
    assert executable, "Chromium is missing (on Debian and Ubuntu: apt install chromium)"
    expect.set_options(timeout=TIMEOUT)
    with pytest.MonkeyPatch.context() as environment, sync_playwright() as playwright:
        # Playwright's event loop runs in this thread, so Django would take all code for
        # asynchronous.
        environment.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        browser = playwright.chromium.launch(executable_path=executable)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def policy() -> Iterator[None]:
    """Set the policy, except under a theme: the themes have inline scripts."""
    if settings.THEME:
        yield
        return
    with override_settings(MIDDLEWARE=["tests.browser.policy.strict", *settings.MIDDLEWARE]):
        yield


@pytest.fixture(scope="package")
def live_server(policy: None, live_server: LiveServer) -> LiveServer:
    """Return pytest-django's live server, which reads the middleware when it starts."""
    return live_server


@pytest.fixture
def watch(live_server: LiveServer) -> Watch:
    return Watch(live_server.url)


@pytest.fixture
def browse(
    request: pytest.FixtureRequest,
    chromium: Browser,
    live_server: LiveServer,
    admin_user: User,
    watch: Watch,
) -> Iterator[Browse]:
    """Return a function that opens a window, logged in as a superuser.

    For example, ``browse(scheme="dark", width=PHONE)``.
    """
    client = Client()
    client.force_login(admin_user)
    cookie = {
        "name": settings.SESSION_COOKIE_NAME,
        "value": client.cookies[settings.SESSION_COOKIE_NAME].value,
    }
    health.clear_cache()  # of an earlier test
    contexts: list[BrowserContext] = []
    pages = request.node.stash.setdefault(PAGES, [])

    def open_window(scheme: str = "light", width: int = WIDE, **options: Any) -> Page:
        context = chromium.new_context(
            base_url=live_server.url,
            color_scheme=scheme,
            viewport={"width": width, "height": 900},
            reduced_motion="reduce",
            locale="en-US",
            **options,
        )
        contexts.append(context)
        context.set_default_timeout(TIMEOUT)
        context.add_cookies([{**cookie, "url": live_server.url}])
        watch.follow(context)
        pages.append(context.new_page())
        return pages[-1]

    yield open_window
    for context in contexts:
        context.close()
    if watch.complaints:
        pytest.fail("\n".join(watch.complaints), pytrace=False)


@pytest.fixture
def page(browse: Browse) -> Page:
    """Open one light window of desktop width."""
    return browse()
