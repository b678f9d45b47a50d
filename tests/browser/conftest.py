"""Chromium on the live admin: each test has windows of its own, logged in, under a strict Content-Security-Policy.

Invariant: a test fails if any page it opened did what ``Watch`` forbids.
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

from tests.browser.watch import Watch

PATIENCE = 30_000
"""Milliseconds for whatever must come to be seen in the end, on a machine that has much to do."""
WIDE, PHONE = 1280, 390

PAGES = pytest.StashKey[list[Page]]()

Browse = Callable[..., Page]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[pytest.TestReport]:
    """Show, beside a failure, what the windows showed."""
    report = yield
    if report.failed and report.when == "call":
        for page in item.stash.get(PAGES, []):
            if page.is_closed():  # that of a first try
                continue
            report.sections.append((f"on the page {page.url}", page.inner_text("body")[:3000]))
    return report


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    executable = shutil.which("chromium")
    assert executable, "Chromium is missing (on Debian and Ubuntu: apt install chromium)"
    expect.set_options(timeout=PATIENCE)
    with pytest.MonkeyPatch.context() as environment, sync_playwright() as playwright:
        # Playwright's event loop runs in this thread: Django would take all of it for asynchronous code.
        environment.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        browser = playwright.chromium.launch(executable_path=executable)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def policy() -> Iterator[None]:
    with override_settings(MIDDLEWARE=["tests.browser.policy.strict", *settings.MIDDLEWARE]):
        yield


@pytest.fixture(scope="package")
def live_server(policy: None, live_server: LiveServer) -> LiveServer:
    """pytest-django's, whose middleware is what it finds when it starts."""
    return live_server


@pytest.fixture
def browse(
    request: pytest.FixtureRequest, chromium: Browser, live_server: LiveServer, admin_user: User
) -> Iterator[Browse]:
    """Open a window, logged in as a superuser: ``browse(scheme="dark", width=PHONE)``."""
    client = Client()
    client.force_login(admin_user)
    cookie = {
        "name": settings.SESSION_COOKIE_NAME,
        "value": client.cookies[settings.SESSION_COOKIE_NAME].value,
    }
    watch = Watch(live_server.url)
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
        context.set_default_timeout(PATIENCE)
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
    """One window, light and as wide as a desk's."""
    return browse()
