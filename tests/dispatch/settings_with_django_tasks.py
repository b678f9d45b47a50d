"""A site without Redis and without Celery: its runs go to workers of Django's own tasks."""

from tests.settings import *  # noqa: F403

CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
del CELERY_BROKER_URL  # noqa: F821
DCRON_LOCK = "database"
DCRON_DISPATCHER = "tasks"
