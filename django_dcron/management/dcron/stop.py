"""``manage.py dcron stop``: drain the node of a pid file, and wait until the node ends."""

from __future__ import annotations

import signal
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_dcron.management.dcron import option_values, pid_file
from django_dcron.management.dcron.exits import negative_result
from django_dcron.management.dcron.output import Output, duration_text
from django_dcron.management.dcron.pid_file import PidFile

HELP = (
    "Stop the node that has locked the pid file. The node dispatches its due runs and returns the "
    "others to the cluster. With --embedded, it also waits for the runs that it executes. Exit "
    "codes: 0 if the node has stopped or wasn't running; 1 if it is still draining after --timeout."
)
EXAMPLES = """
stop --pid-file /var/lib/shop/dcron.pid
stop --timeout 10s --force
"""
DRAIN_TIMEOUT = "60s"
KILL_TIMEOUT = 10.0
"""Seconds to wait for the process to end after SIGKILL."""


def add_arguments(parser: CommandParser) -> None:
    add_pid_file_option(parser)
    add_drain_options(parser)


def add_pid_file_option(parser: CommandParser) -> None:
    parser.add_argument(
        "--pid-file",
        metavar="PATH",
        default=pid_file.DEFAULT,
        help=f"pid file of the node (default: {pid_file.DEFAULT})",
    )


def add_drain_options(parser: CommandParser) -> None:
    parser.add_argument(
        "--timeout",
        default=DRAIN_TIMEOUT,
        metavar="DURATION",
        help=f"maximum time to drain (default: {DRAIN_TIMEOUT})",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="kill the node if it is still draining after --timeout; other nodes take over its "
        "runs",
    )


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    timeout = option_values.parse_duration_option("--timeout", options["timeout"])
    Output(command, options).line(
        drain(PidFile(options["pid_file"]), timeout, force=options["force"])
    )


def drain(file: PidFile, timeout: timedelta, *, force: bool) -> str:
    """Drain the node and return a message about it. Raises ``CommandError`` if it still runs."""
    with file.open_holder() as holder:
        if holder is None:
            return _without_holder(file)
        holder.request_stop()
        if holder.wait_for_end(timeout.total_seconds()):
            return f"The node has stopped: process {holder.pid}."
        if not force:
            raise negative_result(
                f"Process {holder.pid} is still draining after {duration_text(timeout)}. Its log "
                "lists the runs it waits for. Run stop again to keep waiting, or use --force to "
                "kill it; other nodes then take over its runs."
            )
        holder.signal(signal.SIGKILL)
        if not holder.wait_for_end(KILL_TIMEOUT):
            raise negative_result(
                f"Process {holder.pid} was killed but hasn't ended. It may be waiting for disk I/O."
            )
        file.clear()
        return f"The node was killed: process {holder.pid}."


def no_node_text(file: PidFile) -> str:
    return (
        f"No node is running with this pid file: {file.path} doesn't exist. For nodes without a "
        "pid file, or on other machines, see manage.py dcron nodes."
    )


def _without_holder(file: PidFile) -> str:
    if not file.path.exists():
        return (
            f"{no_node_text(file)} To stop a runcron process: kill -TERM PID. Its runs continue "
            "in the workers; a node with --embedded waits for the runs that it executes."
        )
    file.clear()
    return f"The node has ended already. Removed its pid file {file.path}."
