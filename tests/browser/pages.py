"""All pages of django-dcron in the admin, and helpers that move on a page."""

from collections.abc import Callable

import pytest
from django.urls import reverse
from playwright.sync_api import Page

from django_dcron import control
from django_dcron.models import AuditEntry, Job
from tests.browser.sample import Sample


def url(name: str, *args: object) -> str:
    return reverse(f"admin:{name}", args=args)


def dcron_url(name: str, *args: object) -> str:
    return url(f"django_dcron_{name}", *args)


def _revert_url(sample: Sample) -> str:
    job = Job.objects.get(pk=sample.job.pk)
    job.schedule, job.max_attempts = "*/10 * * * *", 5
    return dcron_url("job_revert", job.pk, control.save(job).version)


def _restore_url(sample: Sample) -> str:
    control.delete(Job.objects.get(pk=sample.long_named.pk))
    return dcron_url("job_restore", AuditEntry.objects.get(action="delete").pk)


PAGES: dict[str, Callable[[Sample], str]] = {
    "index": lambda sample: url("index"),
    "app index": lambda sample: url("app_list", "django_dcron"),
    "dashboard": lambda sample: dcron_url("dashboard_changelist"),
    "job list": lambda sample: dcron_url("job_changelist"),
    "job add": lambda sample: dcron_url("job_add"),
    "job": lambda sample: dcron_url("job_change", sample.job.pk),
    "paused job": lambda sample: dcron_url("job_change", sample.paused.pk),
    "job with long name": lambda sample: dcron_url("job_change", sample.long_named.pk),
    "history of job with long name": lambda sample: dcron_url("job_history", sample.long_named.pk),
    "run with arguments": lambda sample: dcron_url("job_action", sample.job.pk, "run_with"),
    "why": lambda sample: (
        f"{dcron_url('job_why', sample.job.pk)}?at={sample.failed.scheduled_at:%Y-%m-%dT%H:%M:%S}"
    ),
    "backfill": lambda sample: dcron_url("job_backfill", sample.job.pk),
    "job history": lambda sample: dcron_url("job_history", sample.job.pk),
    "revert": _revert_url,
    "restore": _restore_url,
    "run list": lambda sample: dcron_url("run_changelist"),
    "runs by log": lambda sample: f"{dcron_url('run_changelist')}?log=orders",
    "failed run": lambda sample: dcron_url("run_change", sample.failed.pk),
    "running run": lambda sample: dcron_url("run_change", sample.running.pk),
    "attempt list": lambda sample: dcron_url("attempt_changelist"),
    "attempt": lambda sample: dcron_url("attempt_change", sample.attempt.pk),
    "incident list": lambda sample: dcron_url("incident_changelist"),
    "incident": lambda sample: dcron_url("incident_change", sample.incident.pk),
    "incident rerun": lambda sample: dcron_url("incident_rerun", sample.incident.pk),
    "alert list": lambda sample: dcron_url("alert_changelist"),
    "single alerts": lambda sample: f"{dcron_url('alert_changelist')}?ungrouped=1",
    "alert": lambda sample: dcron_url("alert_change", sample.alert.pk),
    "calendar list": lambda sample: dcron_url("calendar_changelist"),
    "calendar add": lambda sample: dcron_url("calendar_add"),
    "limit list": lambda sample: dcron_url("limit_changelist"),
    "limit add": lambda sample: dcron_url("limit_add"),
    "calendar": lambda sample: dcron_url("calendar_change", sample.calendar.pk),
    "freeze list": lambda sample: dcron_url("freeze_changelist"),
    "freeze add": lambda sample: dcron_url("freeze_add"),
    "freeze": lambda sample: dcron_url("freeze_change", sample.freeze.pk),
    "audit log": lambda sample: dcron_url("auditentry_changelist"),
    "audit entry": lambda sample: dcron_url(
        "auditentry_change", AuditEntry.objects.filter(action="pause").latest("pk").pk
    ),
    "node list": lambda sample: dcron_url("node_changelist"),
    "node": lambda sample: dcron_url("node_change", "node-a-1"),
}


def tab_to(page: Page, selector: str) -> None:
    """Press Tab until a matching element has the focus."""
    for _ in range(200):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
    pytest.fail(f"{selector} can't be reached by keyboard")
