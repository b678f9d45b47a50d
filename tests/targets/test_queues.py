"""Names of queues that jobs may use."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from celery.app import app_or_default
from django.core.exceptions import ValidationError
from django.core.management import call_command
from kombu import Queue
from pytest_django import Settings

from django_dcron import targets
from django_dcron.dispatch.base import Undeliverable
from django_dcron.dispatch.routes import Routes
from django_dcron.exceptions import InvalidValue
from django_dcron.models import Job
from tests.factories import make_idle_job

RESERVED = [
    "unacked",
    "unacked_index",
    "unacked_mutex",
    "UNACKED",
    "_kombu.binding.celery",
    "celery@host.celery.pidbox",
    "reply.celery.Pidbox",
    "celeryev",
    "celeryev.1",
    "amq.direct",
    "{dcron}:lock:shard-0",
    "shop:{dcron}:lock:shard-0",
]


@pytest.fixture
def app(settings: Settings) -> Iterator[Celery]:
    """The app of a project that declares no queues."""
    settings.DCRON_QUEUES = None
    previous = app_or_default()
    app = Celery("shop")
    yield app
    previous.set_current()


def refused(name: str) -> InvalidValue:
    with pytest.raises(InvalidValue) as caught:
        targets.check_queue(name)
    assert caught.value.params["name"] == name
    return caught.value


@pytest.mark.parametrize("name", RESERVED)
@pytest.mark.parametrize("allowed", [None, ["*"], RESERVED])
def test_reserved_broker_queue_names_are_always_refused(
    settings: Settings, name: str, allowed: Any
) -> None:
    settings.DCRON_QUEUES = allowed
    error = refused(name)
    assert error.code == "reserved"
    assert str(error.params["reserved"]).startswith("unacked*, _kombu.*, ")


def test_renamed_keys_of_the_redis_transport_are_reserved(app: Celery, settings: Settings) -> None:
    app.conf.broker_transport_options = {"unacked_key": "shop-unacked"}
    settings.DCRON_QUEUES = ["*"]
    assert refused("shop-unacked").code == "reserved"


def test_only_the_default_queue_is_allowed_if_no_queues_are_declared(app: Celery) -> None:
    app.conf.task_default_queue = "shop"
    targets.check_queue("shop")
    targets.check_queue("")
    error = refused("reports")
    assert (error.code, error.params["allowed"]) == ("unknown_queue", "shop")
    assert error.params["setting"] == "DCRON_QUEUES"
    assert "all other queues" in str(error), "the setting replaces the declared queues"


def test_queues_declared_in_celery_are_allowed(app: Celery) -> None:
    @app.task(name="shop.of_a_task")
    def of_a_task() -> None: ...

    of_a_task.queue = "of-a-task"
    app.conf.task_queues = [Queue("declared")]
    app.conf.task_routes = (
        {"shop.a": {"queue": "by-name"}, "shop.b": "plain", "shop.c": {"exchange": "x"}},
        [("shop.*", {"queue": Queue("of-a-pair")})],
        "shop.routers.Router",
        lambda *args, **options: {"queue": "unknown"},
    )
    expected = ["by-name", "celery", "declared", "of-a-pair", "of-a-task", "plain"]
    assert targets.allowed_queues() == expected
    for name in expected:
        targets.check_queue(name)
    refused("unknown")


def test_queues_setting_overrides_queues_declared_in_celery(
    app: Celery, settings: Settings
) -> None:
    settings.DCRON_QUEUES = ["mail", "reports-*"]
    targets.check_queue("mail")
    targets.check_queue("reports-eu")
    refused("celery")
    settings.DCRON_QUEUES = ["*"]
    targets.check_queue("anything")


def test_thread_dispatcher_allows_any_unreserved_queue(settings: Settings) -> None:
    settings.DCRON_QUEUES = None
    settings.DCRON_DISPATCHER = "thread"
    assert targets.allowed_queues() is None
    targets.check_queue("anything")
    refused("unacked")


@pytest.mark.django_tasks
def test_django_tasks_dispatcher_allows_the_queues_of_the_backend(settings: Settings) -> None:
    settings.DCRON_QUEUES = None
    settings.DCRON_DISPATCHER = "tasks"
    assert targets.allowed_queues() == ["default", "poison", "reports"]
    assert refused("slow").params["setting"] == "TASKS"


def test_error_shows_at_most_ten_allowed_queues(settings: Settings) -> None:
    settings.DCRON_QUEUES = random.sample([f"q{number}" for number in range(10, 60)], 50)
    assert "(allowed: q10, q11, q12, q13, q14, q15, q16, q17, q18, q19 and others)" in str(
        refused("mail")
    )


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["unacked", "unknown"])
def test_job_with_reserved_or_unknown_queue_is_not_saved(name: str) -> None:
    with pytest.raises(ValidationError) as invalid:
        make_idle_job(queue=name)
    assert set(invalid.value.message_dict) == {"queue"}


@pytest.mark.django_db
def test_stored_reserved_queue_is_reported_and_never_published_to(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Job.objects.filter(pk=make_idle_job().pk).update(queue="unacked")
    call_command("check", databases=["default"])
    assert "django_dcron.W012" in capsys.readouterr().err
    app = Celery("shop", set_as_current=False)
    with pytest.raises(Undeliverable, match="'unacked'"):
        Routes("django_dcron.execute_run").find(app, "tests.app.tasks.ok", "unacked")
