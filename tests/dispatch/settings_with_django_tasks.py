"""Settings of a site without Redis and Celery. Workers of Django's own tasks execute its runs."""

from tests.settings import *  # noqa: F403

CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
del CELERY_BROKER_URL  # noqa: F821
DCRON_LOCK = "database"
DCRON_DISPATCHER = "tasks"
