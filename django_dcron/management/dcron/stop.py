"""``manage.py dcron stop``: drain the node that holds a pid file, and wait for its end."""

from __future__ import annotations

import signal
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_dcron.management.dcron import pid_file, times
from django_dcron.management.dcron.exits import no
from django_dcron.management.dcron.output import Output, span
from django_dcron.management.dcron.pid_file import PidFile

HELP = (
    "Stop the node that holds the pid file: it hands over what is due, gives back the rest, and waits for the runs that it "
    "executes itself (--embedded). Exit codes: 0 it has stopped, or was not running; 1 it still drains after --timeout."
)
EXAMPLES = """
stop --pid-file /run/shop/dcron.pid
stop --timeout 10s --force
"""
PATIENCE = "60s"
KILLED_WITHIN = 10.0
"""Seconds."""


def add_arguments(parser: CommandParser) -> None:
    add_pid_file(parser)
    add_draining(parser)


def add_pid_file(parser: CommandParser) -> None:
    parser.add_argument(
        "--pid-file",
        metavar="PATH",
        default=pid_file.DEFAULT,
        help=f"what start was given ({pid_file.DEFAULT})",
    )


def add_draining(parser: CommandParser) -> None:
    parser.add_argument(
        "--timeout", default=PATIENCE, metavar="DURATION", help=f"how long it may drain ({PATIENCE})"
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="kill it if it still drains then: its runs are taken up by other nodes, or by the next one",
    )


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    patience = times.duration("--timeout", options["timeout"])
    Output(command, options).line(drain(PidFile(options["pid_file"]), patience, force=options["force"]))


def drain(file: PidFile, patience: timedelta, *, force: bool) -> str:
    """What has become of it. Raises ``CommandError`` if it still runs."""
    pid = file.ask_to_end()
    if pid is None:
        if not file.path.exists():
            return f"No node runs: there is no {file.path}."
        file.clear()
        return f"No node runs: the one that left {file.path} was killed."
    if file.wait_for_end(pid, patience.total_seconds()):
        return f"The node has stopped: process {pid}."
    if not force:
        raise no(
            f"Process {pid} still drains after {span(patience)}: its log says for which runs it waits. Ask again to wait on; "
            "--force kills it, and then other nodes take up its runs."
        )
    file.signal(signal.SIGKILL)
    if not file.wait_for_end(pid, KILLED_WITHIN):
        raise no(
            f"Process {pid} was killed, and has not ended: the system holds it, in a broken disk perhaps."
        )
    file.clear()
    return f"The node was killed: process {pid}."
