"""The fixtures every test may use. Real servers and processes come from tests/services.py."""

import os
import shutil
import signal
import sys
import uuid
from collections.abc import Callable, Iterator

import django
import pytest
from django.conf import settings
from django_redis import get_redis_connection
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from tests import databases, depth, services

StartProcess = Callable[..., services.Process]

PROCESSES = pytest.StashKey[list[services.Process]]()


# How long an example takes says only what else the machine does. In `.ci/run` the same tree gets the same examples.
hypothesis_settings.register_profile(
    "dcron",
    max_examples=depth.examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("DCRON_TEST_SAME_LIVES")),
)
hypothesis_settings.load_profile("dcron")


def pytest_configure(config: pytest.Config) -> None:
    settings.DIRECTORY.mkdir(mode=0o700)
    # Asked to end, pytest tears its fixtures down, or servers would outlive it.
    signal.signal(signal.SIGTERM, lambda *_: pytest.exit("terminated"))


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(settings.DIRECTORY, ignore_errors=True)


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marker
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs another database than this session's, or what this Python, Django or machine has not."""

    def fits(item: pytest.Item) -> bool:
        if item.get_closest_marker("celery_beat") and sys.version_info >= (3, 12):
            return False  # django-celery-beat is not for Django 6.1 yet, and so not installed there
        if item.get_closest_marker("django_tasks") and django.VERSION < (6, 0):
            return False
        if item.get_closest_marker("promtool") and not shutil.which("promtool"):
            return False  # .ci/run installs it
        wanted = {name for name in settings.ENGINES if item.get_closest_marker(name)}
        return not wanted or settings.DATABASE in wanted

    for item in items:
        databases.mark(item)
    left_out = [item for item in items if not fits(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if fits(item)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Show, beside a failure, what the processes of the test had to say."""
    report = yield
    if report.failed:
        for process in item.stash.get(PROCESSES, []):
            report.sections.append((f"log of {process.name}", process.log[-10_000:]))
    # A report may have to travel from another session's process, with what a test about odd characters has logged.
    report.sections = [(title, text.encode(errors="replace").decode()) for title, text in report.sections]
    return report


@pytest.fixture(scope="session", autouse=True)
def no_time_budgets() -> Iterator[None]:
    """Let a tick finish its work, however slow the machine. A test of a budget sets one of its own."""
    from django_dcron.scheduler import releasing

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(releasing, "BUDGET", 600.0)
        yield


@pytest.fixture(scope="session")
def database_server() -> Iterator[services.Server | None]:
    """The PostgreSQL or MariaDB of this session; None on SQLite."""
    server = services.database_server()
    if server is None:
        yield None
        return
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings: None, database_server: services.Server | None
) -> None:
    """Have pytest-django make its test database only once there is a server to make it on."""


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
    """Our own Redis, empty; a test may stop, kill, freeze and restart it, and it is back for the next one."""
    assert redis_of_the_session, "this test needs a Redis of its own: unset DCRON_TEST_REDIS"
    get_redis_connection("default").flushall()
    yield redis_of_the_session
    redis_of_the_session.thaw()
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
    """A RabbitMQ; a test may stop, kill, freeze and restart it, and it is back for the next one, its queues as they were."""
    yield rabbitmq_of_the_session
    rabbitmq_of_the_session.thaw()
    if not rabbitmq_of_the_session.running:
        rabbitmq_of_the_session.start()


@pytest.fixture
def start_process(
    request: pytest.FixtureRequest, transactional_db: None, redis_server: services.Server
) -> Iterator[StartProcess]:
    """Start `python <arguments>` on the test database and an empty Redis; ended with the test, log kept."""
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
    """Start a node: `start_runcron("--name", "a")`. It is a node once its log or the database says so."""

    def start(*options: str, env: dict[str, str] | None = None) -> services.Process:
        return start_process("runcron", "-m", "django", "runcron", *options, env=env)

    return start


@pytest.fixture
def start_worker(start_process: StartProcess) -> StartProcess:
    """Start a Celery worker and wait, unless told otherwise, until it takes messages: `start_worker(pool="threads")`."""

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
