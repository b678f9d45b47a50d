"""Check the services that nodes need: the lock, Celery and Django's tasks.

Tests start no nodes and need no workers, so test runners report nothing about them.
"""

from __future__ import annotations

from collections.abc import Iterator

from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Warning
from django.utils.version import get_version

from django_dcron.checks.reporting import node_start_problem, node_starts
from django_dcron.conf import settings
from django_dcron.utils.test_environment import is_test

REDIS_CACHE = "django_redis.cache.RedisCache"
SETTINGS_OF_SERVICES = ("DCRON_LOCK", "DCRON_CACHE", "DCRON_DISPATCHER")


def check_services() -> Iterator[CheckMessage]:
    if is_test() and not node_starts():
        return
    yield from _check_lock()
    yield from _check_dispatcher()
    yield from _check_django_tasks()


def _check_lock() -> Iterator[CheckMessage]:
    if settings.LOCK != "redis" or _is_left_to_embedded_nodes():
        return
    cache = django_settings.CACHES.get(settings.CACHE)
    state = "doesn't exist" if cache is None else f"uses {cache['BACKEND']}"
    if cache is None or cache["BACKEND"] != REDIS_CACHE:
        yield node_start_problem(
            "E003",
            'DCRON_LOCK is "redis", which needs a django-redis cache, but the cache '
            f"{settings.CACHE!r} {state}.",
            f"Use {REDIS_CACHE} for this cache, or name another cache in DCRON_CACHE. Without "
            'Redis, set DCRON_LOCK = "database" or start nodes with runcron --embedded.',
        )


def _is_left_to_embedded_nodes() -> bool:
    """Return whether the project has set up neither Redis nor Celery, and no node starts now.

    ``runcron --embedded`` needs no settings, so such a project may be complete. If a node without
    ``--embedded`` starts, it reports what is missing.
    """
    if node_starts() or any(hasattr(django_settings, name) for name in SETTINGS_OF_SERVICES):
        return False
    if any("redis" in cache["BACKEND"].lower() for cache in django_settings.CACHES.values()):
        return False
    from django_dcron.dispatch.celery_setup import has_app, has_broker

    return not (has_app() or has_broker())


def _check_dispatcher() -> Iterator[CheckMessage]:
    if _is_left_to_embedded_nodes():
        return
    if settings.DISPATCHER != "celery":
        yield from _celery_without_runs()
        return
    from django_dcron.dispatch.celery_setup import has_app, transport_problem

    if not has_app():
        yield node_start_problem(
            "E004",
            'DCRON_DISPATCHER is "celery", but the project has no Celery app.',
            "Create a Celery app and import it in the project's __init__.py, as "
            "Celery's documentation for Django shows. Without Celery, set DCRON_DISPATCHER to "
            '"thread" or, for Django\'s own tasks, to "tasks", or start nodes with '
            "runcron --embedded.",
        )
        return
    if problem := transport_problem():
        yield node_start_problem(
            "E006",
            f"Celery can't use its broker URL: {problem}",
            "Correct broker_url, or install the packages that its transport needs.",
        )
    yield from _celery_warnings()


def _celery_without_runs() -> Iterator[CheckMessage]:
    """Warn if only ``DCRON_AUTOSTART`` keeps runs from the Celery workers of the project."""
    if not settings.AUTOSTART or hasattr(django_settings, "DCRON_DISPATCHER"):
        return
    from django_dcron.dispatch.celery_setup import has_app, has_broker

    if has_app() and has_broker():
        yield Warning(
            "The project has a Celery app with a broker, but DCRON_AUTOSTART executes runs in "
            "threads of the web server.",
            hint='Set DCRON_DISPATCHER to "celery" or "thread", or remove DCRON_AUTOSTART and '
            "start nodes with runcron.",
            id="django_dcron.W023",
        )


def _celery_warnings() -> Iterator[CheckMessage]:
    from django_dcron.dispatch.celery_setup import (
        has_broker,
        has_memory_broker,
        is_eager,
        pool_without_kill,
    )

    if is_eager():
        yield Warning(
            "Celery's task_always_eager is on. It applies to delay(), but not to the runs of jobs, "
            "which are still sent to the broker.",
            hint="Remove CELERY_TASK_ALWAYS_EAGER. To execute runs without a worker, set "
            'DCRON_DISPATCHER = "thread". In tests, use django_dcron.testing.run_due. If test '
            "settings need it for delay(), silence this check in them.",
            id="django_dcron.W014",
        )
    if not has_broker():
        yield Warning(
            "The project sets no broker, so Celery uses its default, "
            "amqp://guest@localhost:5672//.",
            hint="Set CELERY_BROKER_URL, or broker_url of the Celery app.",
            id="django_dcron.W020",
        )
    if has_memory_broker():
        yield Warning(
            "Celery's broker is in the memory of this process, so workers in other processes "
            "never receive a run.",
            hint="Set broker_url to a broker that nodes and workers share, or set "
            'DCRON_DISPATCHER = "thread".',
            id="django_dcron.W015",
        )
    if pool := pool_without_kill():
        yield Warning(
            f"Celery's worker_pool is {pool!r}. {_pool_limits(pool)}",
            hint="Use the prefork pool to enforce timeouts and cancellations.",
            id="django_dcron.W001",
        )


def _check_django_tasks() -> Iterator[CheckMessage]:
    if settings.DISPATCHER != "tasks":
        return
    from django_dcron.dispatch import django_tasks_setup as setup
    from django_dcron.targets.django_tasks import has_tasks

    alias = settings.TASKS_BACKEND
    if not has_tasks():
        yield node_start_problem(
            "E009",
            'DCRON_DISPATCHER is "tasks", which needs Django 6.0 or later. This is Django '
            f"{get_version()}.",
            'Upgrade Django, or set DCRON_DISPATCHER = "celery" or "thread".',
        )
    elif problem := setup.backend_problem():
        yield node_start_problem(
            "E010",
            f"The task backend {alias!r} in DCRON_TASKS_BACKEND can't be loaded: {problem}",
            "Correct the backend in TASKS, or name another one in DCRON_TASKS_BACKEND.",
        )
    elif text := setup.why_no_workers():
        # A warning, because a project's tests may use such a backend. No node starts with it.
        yield Warning(
            f"The task backend {alias!r} in DCRON_TASKS_BACKEND {text}.",
            hint="Configure a backend with workers in TASKS, or name another one in "
            "DCRON_TASKS_BACKEND. To execute runs in the node itself, set "
            'DCRON_DISPATCHER = "thread".',
            id="django_dcron.W011",
        )


def _pool_limits(pool: str) -> str:
    if pool.startswith(("gevent", "eventlet")):
        return (
            "It can't interrupt a run. Only code that checks current_run().cancelled stops "
            "after its timeout or a cancellation. Runs of coroutine functions fail."
        )
    return (
        "Timeouts and cancellations raise an exception in a run's code, but a run that "
        "ignores it continues."
    )
