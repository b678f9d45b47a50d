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
INSTALLED_APPS = [*INSTALLED_APPS, "django_apscheduler", "django_q"]
if sys.version_info < (3, 12):
    INSTALLED_APPS += ["django_celery_beat"]
Q_CLUSTER = {"timeout": 60, "retry": 90, "orm": "default"}
