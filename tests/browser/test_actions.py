"""Test the forms next to the buttons of jobs and runs."""

import pytest
from django.urls import reverse
from playwright.sync_api import Page, expect

from tests.factories import make_job

pytestmark = pytest.mark.browser


def test_form_of_an_action_closes_on_escape_and_on_a_click_elsewhere(page: Page) -> None:
    page.goto(reverse("admin:django_dcron_job_change", args=[make_job().pk]))
    form = page.locator(".dcron-action details")
    button = form.locator("summary")

    button.click()
    expect(form).to_have_attribute("open", "")
    form.locator("input").first.focus()
    page.keyboard.press("Escape")
    expect(form).not_to_have_attribute("open", "")
    expect(button).to_be_focused()

    button.click()
    expect(form).to_have_attribute("open", "")
    page.locator("#content h1").click()
    expect(form).not_to_have_attribute("open", "")
