"""Settings of a project that has all supported schedulers, with its own database."""

import os
import sys

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ["DCRON_TEST_DATABASE_NAME"],
    }
}
INSTALLED_APPS = [
    *INSTALLED_APPS,
    "django_apscheduler",
    "django_q",
    "huey.contrib.djhuey",
    "scheduler",
]
if sys.version_info < (3, 12):
    INSTALLED_APPS += ["django_celery_beat"]
CRONJOBS = [("*/5 * * * *", "tests.app.tasks.ok")]
HUEY = {"huey_class": "huey.MemoryHuey", "immediate": False}
SCHEDULER_QUEUES = {"default": {"URL": "redis://localhost:1/0"}}  # never connected to
Q_CLUSTER = {"timeout": 60, "retry": 90, "orm": "default"}
