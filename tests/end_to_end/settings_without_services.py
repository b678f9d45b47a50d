"""Settings of a small site: no Redis, and a Celery broker that isn't running."""

from tests.settings import *  # noqa: F403

CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
CELERY_BROKER_URL = "redis+socket:///nowhere/at/all.sock"
