"""Take the screenshots of the docs: python example_project/screenshots.py docs/images

Chromium shows the shop with a week of history (`manage.py seed_week`). libfaketime stops the time
of the server, so that a screenshot changes only if the page does.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

PROJECT = Path(__file__).resolve().parent
MOMENT = "2026-11-18 14:36:40"
WIDE, PHONE = 1280, 390
STARTUP_LIMIT = 60.0


def main() -> int:
    target = Path(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="shop-") as directory:
        os.environ |= {"DJANGO_SETTINGS_MODULE": "shop_site.settings", "SHOP_DIR": directory}
        environment = {**os.environ, **stopped_clock()}
        for command in (["migrate", "--verbosity", "0"], ["seed_week"]):
            subprocess.run(
                [sys.executable, PROJECT / "manage.py", *command], env=environment, check=True
            )
        with serving(environment) as address, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
            for picture in pictures():
                file = target / f"{picture.name}.png"
                picture.take(browser, address, file)
                shrink(file)
                print(f"{file}  {file.stat().st_size // 1024} KB")
            browser.close()
    return 0


def stopped_clock() -> dict[str, str]:
    """Return the environment of a process whose time is always MOMENT."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    if not found:
        raise SystemExit("Missing: libfaketime (on Debian and Ubuntu: apt install libfaketime)")
    return {
        "LD_PRELOAD": str(found[0]),
        "FAKETIME": MOMENT,
        "TZ": "UTC",
        "DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",  # the same in later releases
        "NO_FAKE_STAT": "1",
    }


@contextmanager
def serving(environment: dict[str, str]) -> Iterator[str]:
    with socket.socket() as reservation:
        reservation.bind(("127.0.0.1", 0))
        port = reservation.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, PROJECT / "manage.py", "runserver", "--noreload", str(port)]
    log = Path(environment["SHOP_DIR"], "web.log")
    with log.open("w") as output:
        server = subprocess.Popen(
            command, env=environment | {"SHOP_DEBUG": "1"}, stdout=output, stderr=output
        )
    try:
        deadline = time.monotonic() + STARTUP_LIMIT
        while not answers(f"{address}/admin/login/"):
            if server.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"The web server does not answer:\n{log.read_text()}")
            time.sleep(0.1)
        yield address
    finally:
        server.terminate()
        server.wait()


def answers(url: str) -> bool:
    with suppress(OSError), urlopen(url, timeout=5) as response:  # noqa: S310 (our own URL)  # nosec B310
        return bool(response.status == 200)
    return False


@dataclass(frozen=True)
class Picture:
    name: str
    path: str
    scheme: str = "light"
    width: int = WIDE
    height: int | None = None
    """None for the whole page."""
    prepare: Callable[[Page], None] | None = None
    part: str = ""
    """The selector of the part of the page to show. Empty: the page."""

    def take(self, browser: Browser, address: str, file: Path) -> None:
        context = browser.new_context(
            base_url=address,
            color_scheme=self.scheme,
            viewport={"width": self.width, "height": self.height or 800},
            locale="en-US",
            reduced_motion="reduce",
        )
        context.add_cookies([{"name": "sessionid", "value": session(), "url": address}])
        page = context.new_page()
        # Hide the sidebar with the list of all pages.
        page.add_init_script("localStorage.setItem('django.admin.navSidebarIsOpen', 'false')")
        answer = page.goto(self.path, wait_until="networkidle")
        if answer is None or answer.status != 200:
            raise SystemExit(f"{self.path} returned the status {answer and answer.status}, not 200")
        if self.prepare:
            self.prepare(page)
        options: Any = {"path": file, "animations": "disabled", "caret": "hide"}
        if self.part:
            page.locator(self.part).screenshot(**options)
        else:
            page.screenshot(full_page=self.height is None, **options)
        context.close()


def shrink(file: Path) -> None:
    """Reduce the picture to 256 colors, which are enough and save two thirds of the file."""
    with Image.open(file) as picture:
        small = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(file, optimize=True)


def session() -> str:
    from django.contrib.auth.models import User
    from django.test import Client

    client = Client()
    client.force_login(User.objects.get(username="ada"))
    return client.cookies["sessionid"].value


def pictures() -> list[Picture]:
    import django

    django.setup()
    from django.urls import reverse

    from django_dcron.models import Incident, Job, Run

    def url(name: str, *args: Any) -> str:
        return reverse(f"admin:django_dcron_{name}", args=args)

    importing = Job.objects.get(name="import-orders")
    waiting = Run.objects.filter(state="waiting").latest("scheduled_at")
    incident = Incident.objects.exclude(state="resolved").latest("last_seen_at")
    retried = Run.objects.filter(job=importing, attempt=2, state="succeeded").latest("scheduled_at")
    return [
        Picture("dashboard", url("dashboard_changelist")),
        Picture("dashboard-dark", url("dashboard_changelist"), scheme="dark"),
        Picture("dashboard-phone", url("dashboard_changelist"), width=PHONE, height=844),
        Picture("jobs", url("job_changelist"), height=800),
        Picture("job", url("job_change", importing.pk), height=900),
        Picture("job-form", url("job_add"), prepare=fill_in_a_job),
        Picture("run", url("run_change", retried.pk)),
        Picture("what-ran", url("run_change", retried.pk), width=800, part=".dcron-ran"),
        Picture("calendar", url("calendar_change", "bank days"), part=".dcron-month-grid"),
        Picture("incident", url("incident_change", incident.pk), height=900),
        Picture("audit-log", url("auditentry_changelist"), height=700),
        Picture("limits", url("limit_changelist"), height=480),
        Picture("waiting", url("run_change", waiting.pk), width=1000, part=".dcron-verdict"),
        Picture("window", url("job_add"), prepare=fill_in_a_window, part="#dcron-preview"),
        Picture("payroll", url("job_add"), prepare=fill_in_payroll, part="#dcron-preview"),
    ]


def fill_in_a_job(page: Page) -> None:
    # Wait for the UTC time of an occurrence: the initial examples already contain 03:30.
    fill_in(page, "send-invoices", "30 3 * * MON-FRI", occurs_at="02:30")


def fill_in_a_window(page: Page) -> None:
    page.get_by_role("tab", name="Timing").click()
    page.locator("[name=calendar]").select_option("maintenance")
    page.locator("[name=calendar_policy]").select_option("window_end")
    page.get_by_role("tab").first.click()
    fill_in(page, "sync-suppliers", "0 2-3 * * SAT,SUN", occurs_at="Sun 2026-11-22")


def fill_in_payroll(page: Page) -> None:
    lines = ["@rrule 2026-01-02T09:00 FREQ=WEEKLY;INTERVAL=2;BYDAY=FR", "0 11 WD#L * *"]
    fill_in(page, "run-payroll", "\n".join(lines), occurs_at="10:00")


def fill_in(page: Page, job: str, schedule: str, occurs_at: str) -> None:
    typed = {
        "name": job,
        "target": "shop.tasks.sales_report",
        "timezone": "Europe/Berlin",
        "schedule": schedule,
    }
    for name, text in typed.items():
        page.locator(f"[name={name}]").fill(text)
    expect(page.locator("#dcron-preview-occurrences")).to_contain_text(occurs_at)
    # The preview is at most as high as the window.
    page.set_viewport_size({"width": WIDE, "height": 1200})
    page.mouse.move(0, 0)


if __name__ == "__main__":
    # Playwright's event loop runs in this thread, so Django would refuse synchronous queries.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    sys.exit(main())
