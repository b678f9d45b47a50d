"""``manage.py runcron``: run one node of the scheduler."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, InterfaceError

from django_dcron.checks import as_node_start
from django_dcron.db.error_remedies import with_remedy
from django_dcron.db.routing import alias_for
from django_dcron.db.sqlite_writes import early_write_locks
from django_dcron.exceptions import LockUnavailable
from django_dcron.management.dcron import node_arguments
from django_dcron.management.dcron.exits import usage_error
from django_dcron.models import Job
from django_dcron.monitoring.http.routes import routes
from django_dcron.monitoring.http.server import Address, HttpServer
from django_dcron.monitoring.log_context import as_node
from django_dcron.monitoring.metrics import NodeMetrics
from django_dcron.node import create_runner, sync_declared
from django_dcron.scheduler.health_file import HealthFile
from django_dcron.scheduler.runner import EXIT_AT_ONCE, EXIT_FAILED, Runner
from django_dcron.utils.log_lines import LineFormatter

LOG_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"


class Command(BaseCommand):
    help = (
        "Runs a scheduler node: claims occurrences of jobs ahead of time and dispatches each run "
        "to a worker on time. Start any number of nodes on any number of machines. SIGTERM or "
        "SIGINT drains and stops the node; a second signal exits at once. Exit codes: 0 stopped; "
        f"{EXIT_FAILED} can't start, or a thread died (see the message or the log); "
        "2 an option is unknown or invalid; "
        f"{EXIT_AT_ONCE} exited at once."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        node_arguments.define(parser)

    def check(self, *args: Any, **options: Any) -> None:
        with as_node_start():
            super().check(*args, **options)

    def execute(self, *args: Any, **options: Any) -> Any:
        if not options["embedded"]:
            return super().execute(*args, **options)
        with _embedded_settings():
            return super().execute(*args, **options)

    def handle(self, *args: Any, **options: Any) -> None:
        if options["once"] and options["seconds"] is not None:
            raise usage_error("--for can't be combined with --once.")
        _log_to_console(options["verbosity"])
        health_file = _health_file(options["health_file"], once=options["once"])
        try:
            runner = create_runner(options["name"], options["namespace"], health_file)
        except ImproperlyConfigured as error:
            raise CommandError(f"can't start: {error}") from error
        server = _http_server(options["http"], runner, once=options["once"])
        try:
            with as_node(options["name"]), early_write_locks(alias_for(Job)):
                code = _run(runner, server, options)
        except ImproperlyConfigured as error:
            raise CommandError(f"can't start: {error}") from error
        except (DatabaseError, InterfaceError, LockUnavailable) as error:
            raise CommandError(f"can't start: {with_remedy(error)}") from error
        finally:
            if server:
                server.stop()
        if code:
            sys.exit(code)


def _run(runner: Runner, server: HttpServer | None, options: dict[str, Any]) -> int:
    if options["once"]:
        sync_declared()
        return runner.run_once()

    def prepare() -> None:
        if server:
            server.start()  # first, because it also answers while the database is down
        sync_declared()

    # Code, models and settings live as long as the process. The garbage collector needn't visit
    # them. Without them, collections during a burst of claims take a third of the time.
    gc.collect()
    gc.freeze()
    return runner.run(options["seconds"], prepare=prepare)


@contextmanager
def _embedded_settings() -> Iterator[None]:
    """Override the settings of this process for ``--embedded``.

    System checks and jobs that trigger others then use neither Redis nor Celery.
    """
    embedded = {"DCRON_LOCK": "database", "DCRON_DISPATCHER": "thread"}
    before = {
        name: getattr(django_settings, name) for name in embedded if hasattr(django_settings, name)
    }
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
        raise usage_error("--health-file can't be combined with --once.")
    try:
        file = HealthFile(path)
        file.prepare()
    except (OSError, ValueError) as error:
        raise CommandError(f"can't start: the health file can't be written: {error}") from error
    return file


def _http_server(address: Address | None, runner: Runner, *, once: bool) -> HttpServer | None:
    if address is None:
        return None
    if once:
        raise usage_error("--http can't be combined with --once.")
    try:
        membership = runner.membership
        metrics = NodeMetrics(runner.health, membership.namespace, lambda: membership.shards)
        table = {**routes(runner.health), "/metrics": metrics.response}
        return HttpServer(address, table, membership.name)
    except OSError as error:
        raise CommandError(
            f"can't start: --http can't listen on {address}: {error.strerror or error}"
        ) from error


def _log_to_console(verbosity: int) -> None:
    """Log to stderr, unless the project configures logging for django-dcron."""
    logger = logging.getLogger("django_dcron")
    if verbosity == 0:
        return
    if logger.hasHandlers():
        if not logger.isEnabledFor(logging.INFO):
            sys.stderr.write(
                "The project's LOGGING hides the node's messages. To see them, set the level of "
                "the logger 'django_dcron' to INFO.\n"
            )
        return
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter(LOG_FORMAT))
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if verbosity > 1 else logging.INFO)
