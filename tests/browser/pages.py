"""List every page of django-dcron in the admin."""

from collections.abc import Callable

from django.urls import reverse

from tests.browser.sample import Sample


def url(name: str, *args: object) -> str:
    return reverse(f"admin:{name}", args=args)


def ours(name: str, *args: object) -> str:
    return url(f"django_dcron_{name}", *args)


PAGES: dict[str, Callable[[Sample], str]] = {
    "index": lambda sample: url("index"),
    "our index": lambda sample: url("app_list", "django_dcron"),
    "dashboard": lambda sample: ours("dashboard_changelist"),
    "job list": lambda sample: ours("job_changelist"),
    "job add": lambda sample: ours("job_add"),
    "job": lambda sample: ours("job_change", sample.job.pk),
    "paused job": lambda sample: ours("job_change", sample.paused.pk),
    "run with arguments": lambda sample: ours("job_verb", sample.job.pk, "run_with"),
    "why": lambda sample: (
        f"{ours('job_why', sample.job.pk)}?at={sample.failed.scheduled_at:%Y-%m-%dT%H:%M:%S}"
    ),
    "backfill": lambda sample: ours("job_backfill", sample.job.pk),
    "job history": lambda sample: ours("job_history", sample.job.pk),
    "run list": lambda sample: ours("run_changelist"),
    "failed run": lambda sample: ours("run_change", sample.failed.pk),
    "running run": lambda sample: ours("run_change", sample.running.pk),
    "attempt list": lambda sample: ours("attempt_changelist"),
    "attempt": lambda sample: ours("attempt_change", sample.attempt.pk),
    "alert list": lambda sample: ours("alert_changelist"),
    "alert": lambda sample: ours("alert_change", sample.alert.pk),
    "node list": lambda sample: ours("node_changelist"),
    "node": lambda sample: ours("node_change", "node-a-1"),
}
