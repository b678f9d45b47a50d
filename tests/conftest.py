"""Fixtures for all tests. ``tests/services.py`` starts the real servers and processes."""

import gc
import os
import shutil
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import django
import pytest
from celery import _state, current_app
from django.conf import settings
from django.db import connections
from django.test import TransactionTestCase
from django_redis import get_redis_connection
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from tests import databases, depth, flush, services
from tests.lock_holder import has_usual_lock_limit, restore_lock_limit
from tests.pgbouncer import PgBouncer

StartProcess = Callable[..., services.Process]

PROCESSES = pytest.StashKey[list[services.Process]]()
DATABASE_SERVER = pytest.StashKey[services.Server]()  # once it has started


# There is no deadline per example, because the duration depends on the machine's load. `.ci/run`
# derandomizes, so that the same tree gets the same examples.
hypothesis_settings.register_profile(
    "dcron",
    max_examples=depth.examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("DCRON_TEST_DERANDOMIZE")),
)
hypothesis_settings.load_profile("dcron")


def pytest_configure(config: pytest.Config) -> None:
    settings.DIRECTORY.mkdir(mode=0o700)
    # On SIGTERM, let pytest tear down its fixtures. Otherwise the servers would outlive it.
    signal.signal(signal.SIGTERM, lambda *_: pytest.exit("terminated"))


def pytest_unconfigure(config: pytest.Config) -> None:
    services.launcher().stop()
    shutil.rmtree(settings.DIRECTORY, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """Exempt modules and tests from garbage collection, because they live to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marker
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests that this session's database, Python, Django or machine doesn't support."""

    def fits(item: pytest.Item) -> bool:
        if item.get_closest_marker("celery_beat") and sys.version_info >= (3, 12):
            return False  # django-celery-beat doesn't support Django 6.1 yet
        if item.get_closest_marker("django_tasks") and django.VERSION < (6, 0):
            return False
        if item.get_closest_marker("promtool") and not shutil.which("promtool"):
            return False  # .ci/run installs it
        wanted = {name for name in settings.ENGINES if item.get_closest_marker(name)}
        return not wanted or settings.DATABASE in wanted

    if "every_database" in config.option.markexpr:
        for item in items:
            databases.mark(item)
    deselected = [item for item in items if not fits(item)]
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if fits(item)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Add the logs of the test's processes to the report of a failure."""
    report = yield
    if report.failed:
        for process in item.stash.get(PROCESSES, []):
            report.sections.append((f"log of {process.name}", process.log[-10_000:]))
    # pytest-xdist sends reports between processes, so they must be encodable as UTF-8. Tests of odd
    # characters log text that isn't.
    report.sections = [
        (title, text.encode(errors="replace").decode()) for title, text in report.sections
    ]
    return report


@pytest.hookimpl(tryfirst=True)  # before fixtures that use the database
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Restart a database server that exited, and drop broken connections.

    Otherwise, one test that breaks them would fail all later tests.
    """
    for connection in connections.all(initialized_only=True):
        if connection.connection is not None and not connection.is_usable():
            del connections[connection.alias]  # a broken one can't leave its transaction
    server = item.config.stash.get(DATABASE_SERVER, None)
    if server is not None and not server.running:
        code, log = server.exit_code, server.log[-20_000:]
        server.start()
        pytest.fail(f"the database server exited with {code} before this test:\n{log}")


@pytest.fixture(scope="session", autouse=True)
def no_time_budgets() -> Iterator[None]:
    """Let a tick finish on a slow machine. A test of a time budget sets its own."""
    from django_dcron.scheduler import backfill_release

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backfill_release, "BUDGET", 600.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def imported_tasks() -> None:
    """Import the tests' tasks and functions.

    A test that isolates its own ones would otherwise forget those that it happens to import first.
    """
    from django_dcron import targets

    targets.discovery_problem()


@pytest.fixture
def isolated_tasks() -> Iterator[None]:
    """Forget the Celery tasks that the test defines.

    Celery registers each ``@shared_task`` with all later apps of the process, and warns about two
    functions with the same name.
    """
    finalizers, tasks = set(_state._on_app_finalizers), set(current_app.tasks)
    yield
    _state._on_app_finalizers.intersection_update(finalizers)
    for name in set(current_app.tasks) - tasks:
        current_app.tasks.unregister(name)


@pytest.fixture(scope="session", autouse=True)
def quick_flush() -> Iterator[None]:
    """Delete rows instead of truncating tables after each test that commits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", flush.delete_rows)
        yield


@pytest.fixture(scope="session")
def database_server(pytestconfig: pytest.Config) -> Iterator[services.Server | None]:
    """The session's PostgreSQL or MariaDB server, or None on SQLite."""
    server = services.start_database_server()
    if server is None:
        yield None
        return
    pytestconfig.stash[DATABASE_SERVER] = server
    yield server
    server.stop()


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings: None, database_server: services.Server | None
) -> None:
    """Let pytest-django create its test database only after the server has started."""


@pytest.fixture(scope="session")
def django_db_createdb() -> bool:
    return True


@pytest.fixture(scope="session")
def django_db_keepdb(database_server: services.Server | None) -> bool:
    """Let the databases end with the session's server.

    They can't be dropped while a killed process still has a session there.
    """
    return database_server is not None


@pytest.fixture(scope="session", autouse=True)
def redis_of_the_session() -> Iterator[services.Server | None]:
    if settings.REDIS_ADDRESS:
        yield None
        return
    server = services.redis_server()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def redis_server(redis_of_the_session: services.Server | None) -> Iterator[services.Server]:
    """The session's Redis, emptied.

    A test may stop, kill, suspend or restart it. It runs again before the next test.
    """
    assert redis_of_the_session, "this test needs its own Redis: unset DCRON_TEST_REDIS"
    get_redis_connection("default").flushall()
    yield redis_of_the_session
    redis_of_the_session.resume()
    if not redis_of_the_session.running:
        redis_of_the_session.start()


@pytest.fixture(scope="session")
def rabbitmq_of_the_session() -> Iterator[services.RabbitmqServer]:
    server = services.RabbitmqServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def rabbitmq_server(
    rabbitmq_of_the_session: services.RabbitmqServer,
) -> Iterator[services.RabbitmqServer]:
    """The session's RabbitMQ.

    A test may stop, kill, suspend or restart it. It runs again before the next test, but keeps its
    queues.
    """
    yield rabbitmq_of_the_session
    rabbitmq_of_the_session.resume()
    if not rabbitmq_of_the_session.running:
        rabbitmq_of_the_session.start()


@pytest.fixture
def pgbouncer(database_server: services.Server | None) -> Iterator[PgBouncer]:
    """A transaction pool in front of PostgreSQL."""
    assert database_server is not None
    server = PgBouncer(database_server)
    server.start()
    yield server
    server.stop()
    shutil.rmtree(server.answers_at.parent)


@pytest.fixture
def start_process(
    request: pytest.FixtureRequest, transactional_db: None, redis_server: services.Server
) -> Iterator[StartProcess]:
    """Start `python <arguments>` on the test database and an empty Redis.

    The process ends with the test, and its log is kept.
    """
    processes = request.node.stash.setdefault(PROCESSES, [])

    def start(name: str, *arguments: str, env: dict[str, str] | None = None) -> services.Process:
        same_name = sum(process.name.startswith(name) for process in processes)
        process = services.python_process(f"{name}-{same_name + 1}", *arguments, env=env)
        processes.append(process)
        process.start()
        return process

    yield start
    services.stop_all(processes)


@pytest.fixture
def start_runcron(start_process: StartProcess) -> StartProcess:
    """Start a node: `start_runcron("--name", "a")`.

    The call doesn't wait. The node's log or the database shows when the node is ready.
    """

    def start(*options: str, env: dict[str, str] | None = None) -> services.Process:
        return start_process("runcron", "-m", "django", "runcron", *options, env=env)

    return start


@pytest.fixture
def start_worker(start_process: StartProcess) -> StartProcess:
    """Start a Celery worker: `start_worker(pool="threads")`.

    Wait until it accepts messages, unless ``wait`` is false.
    """

    def start(
        *options: str,
        pool: str = "prefork",
        concurrency: int = 2,
        env: dict[str, str] | None = None,
        wait: bool = True,
    ) -> services.Process:
        command = ["-m", "celery", "-A", "tests.celery_app", "worker", "--loglevel", "INFO"]
        quiet = ["--without-gossip", "--without-mingle", "--hostname", f"{uuid.uuid4().hex[:8]}@%h"]
        chosen = ["--pool", pool, "--concurrency", str(concurrency)]
        worker = start_process("worker", *command, *quiet, *chosen, *options, env=env)
        if wait:
            worker.wait_for_log(" ready.")
        return worker

    return start


@pytest.fixture(autouse=True)
def no_limits_are_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves its limits or wrappers on the connection, which later tests use.

    A test in a transaction leaves no limits: its rollback restores them on PostgreSQL, and this
    fixture does on MariaDB.
    """
    marker = request.node.get_closest_marker("django_db")
    commits = "transactional_db" in request.fixturenames or (
        marker is not None and marker.kwargs.get("transaction")
    )
    connection = connections["default"]
    vendor = connection.vendor  # a test may pretend to have another
    yield
    wrappers, connection.execute_wrappers = connection.execute_wrappers, []
    assert wrappers == []
    if connection.connection is None or vendor == "sqlite":
        return
    if not commits:
        if vendor == "mysql":
            restore_lock_limit()
    else:
        with request.getfixturevalue("django_db_blocker").unblock():
            is_usual = has_usual_lock_limit()
            if not is_usual:
                connection.close()
        assert is_usual, "the test has to lift its limits: Ticker.close, WaitLimits.lift"


@pytest.fixture
def routes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Route the runs of ``tests.app.tasks.echo`` to the queue ``reports``, in this process."""
    from celery import Celery

    from django_dcron.dispatch import queues
    from django_dcron.dispatch.celery import CeleryDispatcher

    app = Celery("routes", broker="memory://", set_as_current=False)
    app.conf.task_routes = {"tests.app.tasks.echo": {"queue": "reports"}}
    dispatcher = CeleryDispatcher(app)
    monkeypatch.setattr(queues, "shared_dispatcher", lambda: dispatcher)
    yield
    app.close()
