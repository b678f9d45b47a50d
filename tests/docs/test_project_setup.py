"""The router, settings and view of the guide for existing projects work as documented."""

from pathlib import Path

from django.apps import apps
from django.core.management import call_command

from tests.docs.example_project import run_script
from tests.docs.test_tutorial import blocks_of

SETTINGS = """
AUTH_USER_MODEL = "people.Person"
INSTALLED_APPS += ["people", "django_htmx", "django_dcron"]
ALLOWED_HOSTS = ["*"]
DCRON_LOCK, DCRON_DISPATCHER = "database", "thread"
"""
ATOMIC = """
for database in DATABASES.values():
    database["ATOMIC_REQUESTS"] = True
"""
URLS = """
from django.contrib import admin
from django.http import HttpResponse
from django.urls import path

from django_dcron import control, cron
from django_dcron.models import Job
from shop.views import start_import


@cron("@never", name="import", overlap_policy="allow")
def import_orders() -> None:
    pass


def fail(request):
    control.trigger(Job.objects.get())
    raise ValueError


def succeed(request):
    control.trigger(Job.objects.get())
    return HttpResponse()


urlpatterns = [
    path("admin/", admin.site.urls),
    path("fail/", fail),
    path("succeed/", succeed),
    path("start/", start_import),
]
"""
DEV_SETTINGS = "shop/dev_settings.py"
PRODUCTION = """
INSTALLED_APPS = ["django_dcron", "django_htmx", "shop", *INSTALLED_APPS]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "shop",
        "HOST": "database.invalid",
        "USER": "shop",
    },
}
CACHES = {
    "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://redis.invalid/1"},
}
CELERY_BROKER_URL = "redis://redis.invalid/0"
DCRON_COMMANDS = ["clearsessions"]
DCRON_ALERT_CHANNELS = {"ops": {"apprise": ["slack://production.invalid"]}}
DCRON_ALERTS = [{"on": "failed", "to": ["ops"]}]
"""
CELERY = """
from celery import Celery

app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
"""
DEVELOPMENT = """
import django
django.setup()
from django.core.management import call_command
from django_dcron import control
from django_dcron.models import Job, Run

call_command("migrate", verbosity=0)
call_command("check", databases=["default"], fail_level="WARNING")
job = control.save(Job(name="clear", target="command:clearsessions", schedule="@daily"))
run = control.trigger(job)
call_command("runcron", "--once", verbosity=0)
run.refresh_from_db()
assert run.state == "succeeded", (run.state, run.reason)
"""
PEOPLE = """
from django.contrib.auth.base_user import AbstractBaseUser
from django.contrib.auth.models import PermissionsMixin
from django.db import models


class Person(AbstractBaseUser, PermissionsMixin):
    email = models.EmailField(unique=True)
    is_staff = models.BooleanField(default=True)
    is_active = models.BooleanField(default=True)
    USERNAME_FIELD = "email"
"""
SCRIPT = """
import asyncio
import django
django.setup()
from django.contrib.auth.models import Permission
from django.core.exceptions import SynchronousOnlyOperation
from django.core.management import call_command
from django.db import connections
from django.test import AsyncClient, Client
from django_dcron import control
from django_dcron.models import Job, Run
from people.models import Person
import shop.urls

call_command("makemigrations", "people", verbosity=0)
call_command("migrate", verbosity=0)
call_command("migrate", database="scheduler", verbosity=0)
tables = {alias: connections[alias].introspection.table_names() for alias in connections}
assert not [name for name in tables["default"] if name.startswith("django_dcron")]
assert {name.split("_")[1] for name in tables["scheduler"]} == {"dcron", "migrations"}, tables
assert Permission.objects.filter(content_type__app_label="django_dcron").exists()
call_command("dcron", "sync")
job = Job.objects.get()

person = Person.objects.create(email="ada@example.com", is_superuser=True)
client = Client(raise_request_exception=False)
client.force_login(person)
client.post(f"/admin/django_dcron/job/{job.pk}/do/pause/", {"reason": "moving"})
job.refresh_from_db()
assert (job.enabled, job.pause_reason) == (False, "moving (ada@example.com)")
history = client.get(f"/admin/django_dcron/job/{job.pk}/history/")
assert b"ada@example.com" in history.content
client.post(f"/admin/django_dcron/job/{job.pk}/do/resume/")

assert client.get("/fail/").status_code == 500
assert not Run.objects.exists()
assert client.get("/succeed/").status_code == 200
assert Run.objects.count() == 1


async def under_asgi():
    asynchronous = AsyncClient()
    await asynchronous.aforce_login(person)
    for address in ("", "django_dcron/job/", f"django_dcron/job/{job.pk}/change/"):
        response = await asynchronous.get(f"/admin/{address}")
        assert response.status_code == 200, address
    try:
        control.trigger(job)
    except SynchronousOnlyOperation:
        pass
    else:
        raise AssertionError


asyncio.run(under_asgi())
"""
ASGI = """
import asyncio
import django
django.setup()
from django.core.management import call_command
from django.test import AsyncClient
from django_dcron.models import Run

response = asyncio.run(AsyncClient().get("/start/"))
assert Run.objects.filter(pk=response.json()["run"]).exists()
call_command("runcron", "--embedded", "--once")
states = set(Run.objects.values_list("state", flat=True))
assert states == {"succeeded"}, states
"""


def test_guide_works_with_own_database_custom_user_atomic_requests_and_asgi(tmp_path: Path) -> None:
    call_command("startproject", "shop", tmp_path)
    settings = tmp_path / "shop" / "settings.py"
    settings.write_text(settings.read_text() + SETTINGS)
    blocks = blocks_of("../how-to/project-setup.md")
    blocks = [(name, text) for name, text in blocks if name != DEV_SETTINGS]
    assert {name for name, _ in blocks} == {"shop/routers.py", "shop/settings.py", "shop/views.py"}
    for name, text in blocks:
        path = tmp_path / name
        path.write_text((path.read_text() if path == settings else "") + text)
    settings.write_text(settings.read_text() + ATOMIC)
    (tmp_path / "shop" / "urls.py").write_text(URLS)
    people = tmp_path / "people"
    (people / "migrations").mkdir(parents=True)
    for package in (people, people / "migrations"):
        (package / "__init__.py").touch()
    (people / "models.py").write_text(PEOPLE)
    run_script(tmp_path, "shop.settings", SCRIPT)
    # An asynchronous view has no transaction of the request.
    settings.write_text(settings.read_text().replace(ATOMIC, ""))
    run_script(tmp_path, "shop.settings", ASGI)


def test_development_settings_need_no_redis_and_no_celery(tmp_path: Path) -> None:
    call_command("startproject", "shop", tmp_path)
    settings = tmp_path / "shop" / "settings.py"
    settings.write_text(settings.read_text() + PRODUCTION)
    (tmp_path / "shop" / "celery.py").write_text(CELERY)
    (tmp_path / "shop" / "__init__.py").write_text("from shop.celery import app\n")
    development = dict(blocks_of("../how-to/project-setup.md"))[DEV_SETTINGS]
    (tmp_path / DEV_SETTINGS).write_text(development)
    run_script(tmp_path, "shop.dev_settings", DEVELOPMENT)


def test_no_model_references_another_app() -> None:
    related = {
        field.related_model._meta.app_label
        for model in apps.get_app_config("django_dcron").get_models()
        for field in model._meta.get_fields()
        if field.is_relation and field.concrete
    }
    assert related == {"django_dcron"}
