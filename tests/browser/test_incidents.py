"""Incidents in a browser: one click reruns all failed runs, and a form mutes an incident."""

import pytest
from playwright.sync_api import Page, expect

from django_dcron.admin.incidents import rerun_page
from django_dcron.jobs import queued_reruns
from django_dcron.models import Run
from tests.browser.pages import dcron_url, tab_to
from tests.browser.sample import make_sample

pytestmark = pytest.mark.browser


def test_failure_leads_to_its_traceback_and_to_the_rerun_of_all_runs(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queued_reruns, "RERUN_AT_ONCE", 1)
    monkeypatch.setattr(rerun_page, "BUDGET", 0)
    sample = make_sample()
    page.goto(dcron_url("incident_changelist"))
    page.locator(f'a[href^="{dcron_url("incident_change", sample.incident.pk)}"]').click()
    expect(page.locator("#dcron-traceback-text")).to_contain_text("import_orders")
    page.locator(f'a[href="{dcron_url("incident_rerun", sample.incident.pk)}"]').click()
    page.locator("input[type=submit].default").click()
    page.wait_for_url(f"**{dcron_url('incident_change', sample.incident.pk)}")
    failed = Run.objects.filter(job=sample.job, state="failed").values_list("pk", flat=True)
    reruns = Run.objects.filter(state="waiting", rerun_of__in=failed)
    assert reruns.count() == len(failed) > 1


def test_keyboard_leads_from_the_dashboard_to_the_cause_and_the_rerun(page: Page) -> None:
    sample = make_sample()
    page.goto(dcron_url("dashboard_changelist"))
    tab_to(page, f'a[href^="{dcron_url("incident_change", sample.incident.pk)}"]')
    page.keyboard.press("Enter")
    expect(page.locator("#dcron-traceback-text")).to_contain_text("import_orders")
    tab_to(page, f'a[href="{dcron_url("incident_rerun", sample.incident.pk)}"]')
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{dcron_url('incident_rerun', sample.incident.pk)}")
    tab_to(page, "input[type=submit].default")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{dcron_url('incident_change', sample.incident.pk)}")
    failed = Run.objects.filter(job=sample.job, state="failed").values_list("pk", flat=True)
    assert Run.objects.filter(rerun_of__in=failed).count() == len(failed) > 1


def test_incident_is_muted_with_a_reason_in_place(page: Page) -> None:
    sample = make_sample()
    page.goto(dcron_url("incident_change", sample.incident.pk))
    page.locator("details:has([form=dcron-do-mute]) > summary").click()
    page.locator("input[form=dcron-do-mute]").fill("known since Monday")
    page.locator("button[form=dcron-do-mute]").click()
    expect(page.locator("[data-dcron-incident=muted]")).to_contain_text("known since Monday")
