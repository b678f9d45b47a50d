"""The Celery app. `autodiscover_tasks` finds the tasks of all apps, including django-dcron."""

import os
from typing import Any

from celery import Celery
from celery.signals import setup_logging

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop_site.settings")

app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@setup_logging.connect
def keep_djangos_logging(**_: Any) -> None:
    """Keep `settings.LOGGING`. If this signal has a receiver, Celery doesn't configure logging."""
