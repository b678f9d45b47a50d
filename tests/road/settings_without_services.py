"""A small site: no Redis in its settings, and a Celery broker that nobody ever started."""

from tests.settings import *  # noqa: F403

CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
CELERY_BROKER_URL = "redis+socket:///nowhere/at/all.sock"
