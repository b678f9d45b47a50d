"""Test the page of a running run: its log grows without moving what the reader is reading."""

import pytest
from django.urls import reverse
from playwright.sync_api import Locator, Page, expect

from django_dcron.db.now import database_now
from django_dcron.models import Attempt, Run
from tests.factories import make_job, make_run

pytestmark = pytest.mark.browser

LINES = "".join(f"line {number}\n" for number in range(300))
FROM_END = "box => Math.round(box.scrollHeight - box.clientHeight - box.scrollTop)"


def make_running_run() -> Run:
    run = make_run(make_job(), state="running")
    run.attempts.update(log=LINES, progress_done=3)
    return run


def log_more(text: str) -> None:
    attempt = Attempt.objects.get()
    attempt.log += f"{text}\n"
    attempt.save()


def open_log(page: Page) -> Locator:
    page.goto(reverse("admin:django_dcron_run_change", args=[make_running_run().pk]))
    return page.locator("#dcron-log-text")


def test_log_scrolled_to_end_follows_new_lines(page: Page) -> None:
    log = open_log(page)
    assert log.evaluate(FROM_END) <= 1
    log.focus()

    log_more("what is new")

    expect(log).to_contain_text("what is new")
    assert log.evaluate(FROM_END) <= 1
    expect(log).to_be_focused()


def test_log_scrolled_up_keeps_position(page: Page) -> None:
    log = open_log(page)
    log.evaluate("box => { box.scrollTop = 120 }")

    log_more("what is new")

    expect(log).to_contain_text("what is new")
    assert log.evaluate("box => box.scrollTop") == 120


def test_page_reloads_when_run_ends(page: Page) -> None:
    open_log(page)
    rerun = page.locator("button[form='dcron-do-rerun']")
    expect(rerun).to_have_count(0)

    Attempt.objects.update(outcome="succeeded", finished_at=database_now("default"))
    Run.objects.update(state="succeeded", finished_at=database_now("default"))

    expect(rerun).to_be_visible()
    expect(page.locator(".dcron-verdict .dcron-badge.dcron-succeeded")).to_be_visible()
