"""Django settings for the contestants that need Django, with their installed apps."""

from __future__ import annotations

from importlib.util import find_spec

from benchmarks.contestants.variables import DATABASE, POSTGRESQL_SOCKETS

INSTALLED_APPS = [
    "django.contrib.contenttypes",
    *(app for app in ("django_celery_beat", "django_celery_results") if find_spec(app)),
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": POSTGRESQL_SOCKETS,
        "NAME": DATABASE,
        "USER": "postgres",
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
SECRET_KEY = "only for benchmarks"
USE_TZ = True
TIME_ZONE = "UTC"
