"""Create a node. ``runcron`` runs it in its own process, ``autostart`` in that of a web server."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from socket import gethostname

from django_dcron.conf import settings
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.system_health import read_verdict
from django_dcron.dispatch import make_dispatcher
from django_dcron.execution.executor import execute
from django_dcron.jobs import sync
from django_dcron.jobs.audit.actor import Actor, acting
from django_dcron.locks import get_lock
from django_dcron.models import Job, Via
from django_dcron.scheduler.health_file import HealthFile
from django_dcron.scheduler.membership import Membership
from django_dcron.scheduler.runner import AlertThread, Runner
from django_dcron.targets import declarations

logger = logging.getLogger("django_dcron.scheduler")


def create_runner(name: str, namespace: str = "", health_file: HealthFile | None = None) -> Runner:
    """Return a node with the configured lock and dispatcher. Raises ``ImproperlyConfigured``."""
    dispatcher = make_dispatcher(settings.DISPATCHER, execute)
    return Runner(
        name=name,
        namespace=namespace,
        lock=get_lock(),
        dispatcher=dispatcher,
        health_file=health_file,
        make_alerter=_make_alerter() if settings.ALERT_CHANNELS else None,
    )


def _make_alerter() -> Callable[[Membership], AlertThread]:
    from django_dcron.contrib import alerts  # only a project with channels loads this package

    return partial(alerts.Alerter, read_verdict=read_verdict)


def sync_declared() -> None:
    """Write the jobs declared in code to the database before the first tick."""
    with acting(lambda: Actor(address=gethostname(), via=Via.SCHEDULER)):
        changes = sync.apply(sync.plan())  # imports the modules that declare jobs
    if not declarations() and not Job.objects.using(alias_for(Job)).exists():
        logger.info(
            "no jobs: declared=0 stored=0; create one in the admin, or declare one in the "
            "cron.py of an app in INSTALLED_APPS",
            extra={"event": "no_jobs"},
        )
    for change in changes:
        if change.is_difference:
            extra = {"event": "synced", "job": change.job}
            logger.info("job synced: %s", change, extra=extra)
        elif change.is_problem:
            extra = {"event": "sync_failed", "job": change.job}
            logger.error("job not synced: %s", change, extra=extra)
