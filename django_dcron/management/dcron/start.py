"""``manage.py dcron start``: a node, in the foreground as by ``runcron``, or in the background with a pid file and a log."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from django.conf import ENVIRONMENT_VARIABLE
from django.core.management.base import BaseCommand, CommandParser

from django_dcron.management.dcron import kept_options, node_arguments, pid_file, times
from django_dcron.management.dcron.detached import start_node
from django_dcron.management.dcron.exits import cannot
from django_dcron.management.dcron.kept_options import Kept
from django_dcron.management.dcron.output import Output
from django_dcron.management.dcron.pid_file import PidFile

HELP = (
    "Start a node: in the foreground as runcron does, with the same options; or, with --daemon, in the background, and come "
    "back when it is up. For a machine without a supervisor; where there is one, let it run runcron. Exit codes with "
    "--daemon: 0 it is up; 1 it did not come up (its log's last lines are shown), or another node holds the pid file; 2 it "
    "cannot be tried. In the foreground: those of runcron."
)
EXAMPLES = """
start
start --daemon --pid-file /run/shop/dcron.pid --log-file /var/log/shop/dcron.log
start --daemon --embedded --name berlin-1
"""
DEFAULT_LOG = "dcron.log"
PATIENCE = "60s"


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "--daemon", action="store_true", help="in the background; needs pip install django-dcron[daemon]"
    )
    parser.add_argument(
        "--pid-file",
        metavar="PATH",
        help=f"locked by the node while it lives; stop, restart and state ask it ({pid_file.DEFAULT} with --daemon, else none)",
    )
    parser.add_argument(
        "--log-file",
        metavar="PATH",
        help=f"with --daemon: what the node writes is appended there ({DEFAULT_LOG}); SIGHUP opens it anew",
    )
    parser.add_argument(
        "--timeout",
        default=PATIENCE,
        metavar="DURATION",
        help=f"with --daemon: how long to wait until it is up ({PATIENCE})",
    )
    node_arguments.add_arguments(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    daemon, path, log_file = (options[name] for name in ("daemon", "pid_file", "log_file"))
    if daemon and options["once"]:
        raise cannot("--once is for the foreground: it makes one pass and stops.")
    if log_file and not daemon:
        raise cannot("--log-file is for --daemon; in the foreground the log goes to the standard error.")
    if not daemon and not path:
        node_arguments.run(node_arguments.as_arguments(options))
        return
    file = PidFile(path or pid_file.DEFAULT)
    health_file = options["health_file"] or (daemon and file.beside("health"))
    options["health_file"] = str(Path(health_file).absolute()) if health_file else None
    kept = Kept(
        daemon=daemon,
        directory=str(Path.cwd()),
        log_file=str(Path(log_file or DEFAULT_LOG).absolute()) if daemon else "",
        health_file=options["health_file"] or "",
        started_at="",
        settings=os.environ.get(ENVIRONMENT_VARIABLE, ""),
        arguments=node_arguments.as_arguments(options),
    )
    if daemon:
        in_background(Output(command, options), file, kept, times.duration("--timeout", options["timeout"]))
        return
    with file:
        _be_node(file, kept)


def in_background(output: Output, file: PidFile, kept: Kept, patience: timedelta) -> None:
    node = start_node(partial(_be_node, file, kept), file, Path(kept.log_file), kept.directory, patience)
    output.line(f"{node} is up: process {node.pid}, log {kept.log_file}")


def _be_node(file: PidFile, kept: Kept) -> None:
    kept_options.keep(file, replace(kept, started_at=datetime.now(UTC).isoformat()))
    node_arguments.run(kept.arguments)
