"""Run the smallest project with django-dcron on the installed wheel.

The project loads, passes its checks, migrates, tests its times and removes the tables.
"""

from datetime import UTC, datetime
from importlib.resources import files

import django
from celery import Celery
from django.conf import settings
from django.core.management import call_command
from django.db import connection

from django_dcron import testing

settings.configure(
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django_dcron"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    CACHES={
        "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://localhost/0"}
    },
)
Celery("smallest", set_as_current=True)
django.setup()
call_command("check")
call_command("migrate", verbosity=0)
testing.assert_runs_at(
    "@daily",
    [datetime(2026, 3, 2, tzinfo=UTC)],
    after=datetime(2026, 3, 1, tzinfo=UTC),
    timezone="UTC",
)
assert files("django_dcron").joinpath("py.typed").is_file(), "the wheel must say that it is typed"
call_command("migrate", "django_dcron", "zero", verbosity=0)
tables = [name for name in connection.introspection.table_names() if "dcron" in name]
assert not tables, f"these tables are left: {tables}"
print("django-dcron", "loads from", files("django_dcron"))
