"""``manage.py runcron``: one node of the scheduler."""

from __future__ import annotations

import logging
import platform
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, InterfaceError

from django_dcron import sync
from django_dcron.conf import settings
from django_dcron.dispatch import make_dispatcher
from django_dcron.exceptions import LockUnavailable
from django_dcron.execution.bounded_text import storable
from django_dcron.execution.executor import execute
from django_dcron.locks import get_lock
from django_dcron.log_lines import LineFormatter
from django_dcron.observability.http.routes import routes
from django_dcron.observability.http.server import LOCALHOST, Address, HttpServer
from django_dcron.observability.log_context import as_node
from django_dcron.observability.metrics import NodeMetrics
from django_dcron.observability.system_health import read_verdict
from django_dcron.scheduler.health_file import HealthFile
from django_dcron.scheduler.runner import EXIT_AT_ONCE, EXIT_FAILED, Runner

logger = logging.getLogger("django_dcron.scheduler")

LOG_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"


class Command(BaseCommand):
    help = (
        "Runs one node of the scheduler: claims the jobs' occurrences ahead of time and hands each over to a worker at "
        "its time. Start as many nodes as you like, on as many machines. SIGTERM or SIGINT drains and stops it; a second "
        f"one leaves at once. Exit codes: 0 stopped; 1 cannot start (the message says why), or a thread died "
        f"(the log says of what: {EXIT_FAILED}); {EXIT_AT_ONCE} left at once."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--name",
            type=_at_most(120),
            default=platform.node()[:120],
            help="the node's name in logs and the admin (host name)",
        )
        parser.add_argument(
            "--namespace", type=_at_most(64), default="", help="serve the jobs of this namespace only (all)"
        )
        parser.add_argument("--once", action="store_true", help="make one pass over what is due, then stop")
        parser.add_argument(
            "--for",
            dest="seconds",
            type=_seconds,
            metavar="SECONDS",
            help="stop by itself after so many seconds",
        )
        parser.add_argument(
            "--embedded",
            action="store_true",
            help="execute runs in threads of this process and lock in the database: no Redis, no Celery",
        )
        parser.add_argument(
            "--health-file",
            metavar="PATH",
            help="keep a JSON file fresh that says how the node is; ask it with: manage.py dcron health --file PATH",
        )
        parser.add_argument(
            "--http",
            type=_address,
            metavar="[HOST:]PORT",
            help=f"answer /livez, /readyz, /health (JSON) and /metrics (Prometheus) by HTTP: to this machine ({LOCALHOST}) alone unless HOST says more",
        )

    def execute(self, *args: Any, **options: Any) -> Any:
        if not options["embedded"]:
            return super().execute(*args, **options)
        with _embedded():
            return super().execute(*args, **options)

    def handle(self, *args: Any, **options: Any) -> None:
        _log_to_console(options["verbosity"])
        try:
            dispatcher = make_dispatcher(settings.DISPATCHER, execute)
        except ImproperlyConfigured as error:
            raise CommandError(f"cannot start: {error}") from error
        runner = Runner(
            name=options["name"],
            namespace=options["namespace"],
            lock=get_lock(),
            dispatcher=dispatcher,
            health_file=_health_file(options["health_file"], once=options["once"]),
            read_verdict=read_verdict,
        )
        server = _http_server(options["http"], runner, once=options["once"])
        try:
            with as_node(options["name"]):
                code = _run(runner, server, options)
        except (DatabaseError, InterfaceError, LockUnavailable) as error:
            raise CommandError(f"cannot start: {error} (is the database up and migrated?)") from error
        finally:
            if server:
                server.stop()
        if code:
            sys.exit(code)


def _run(runner: Runner, server: HttpServer | None, options: dict[str, Any]) -> int:
    if options["once"]:
        _sync_declared()
        return runner.run_once()

    def prepare() -> None:
        if server:
            server.start()  # first: it also answers while the database does not
        _sync_declared()

    return runner.run(options["seconds"], prepare=prepare)


@contextmanager
def _embedded() -> Iterator[None]:
    """Settings of this process: so the system checks, and jobs that trigger others, know that there is no Redis or Celery."""
    embedded = {"DCRON_LOCK": "database", "DCRON_DISPATCHER": "thread"}
    before = {name: getattr(django_settings, name) for name in embedded if hasattr(django_settings, name)}
    for name, value in embedded.items():
        setattr(django_settings, name, value)
    try:
        yield
    finally:
        for name in embedded:
            if name in before:
                setattr(django_settings, name, before[name])
            else:
                delattr(django_settings, name)


def _health_file(path: str | None, *, once: bool) -> HealthFile | None:
    if path is None:
        return None
    if once:
        raise CommandError("--health-file is for a node that stays; --once does not.")
    try:
        file = HealthFile(path)
        file.prepare()
    except (OSError, ValueError) as error:
        raise CommandError(f"cannot start: the health file cannot be written: {error}") from error
    return file


def _http_server(address: Address | None, runner: Runner, *, once: bool) -> HttpServer | None:
    if address is None:
        return None
    if once:
        raise CommandError("--http is for a node that stays; --once does not.")
    try:
        membership = runner.membership
        metrics = NodeMetrics(runner.health, membership.namespace, lambda: membership.shards)
        table = {**routes(runner.health), "/metrics": metrics.answer}
        return HttpServer(address, table, membership.name)
    except OSError as error:
        raise CommandError(
            f"cannot start: --http {address} cannot be had: {error.strerror or error}"
        ) from error


def _sync_declared() -> None:
    """Jobs declared in code come into the database before the first tick."""
    for change in sync.apply(sync.plan()):
        if change.is_difference or change.is_problem:
            level = logging.ERROR if change.is_problem else logging.INFO
            logger.log(level, "%s", change, extra={"event": "synced", "job": change.job})


def _at_most(characters: int) -> Callable[[str], str]:
    def checked(text: str) -> str:
        if len(text) > characters:
            raise ArgumentTypeError(f"{text!r} has more than {characters} characters")
        if storable(text) != text:  # bytes of another encoding
            raise ArgumentTypeError(f"{text!r} is not UTF-8")
        return text

    return checked


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 < seconds < float("inf"):
        raise ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def _address(text: str) -> Address:
    try:
        return Address.parse(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def _log_to_console(verbosity: int) -> None:
    """Unless the project has configured logging for us, people see the log on stderr."""
    logger = logging.getLogger("django_dcron")
    if verbosity == 0 or logger.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter(LOG_FORMAT))
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if verbosity > 1 else logging.INFO)
