"""``manage.py dcron start``: start a node in the foreground or in the background.

In the foreground, it does what ``runcron`` does. In the background, it has a pid file and a log
file.
"""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from django.conf import ENVIRONMENT_VARIABLE
from django.core.management.base import BaseCommand, CommandParser

from django_dcron.management.dcron import (
    node_arguments,
    option_values,
    pid_file,
    start_options,
)
from django_dcron.management.dcron.detached import start_node
from django_dcron.management.dcron.exits import usage_error
from django_dcron.management.dcron.output import Output
from django_dcron.management.dcron.pid_file import PidFile
from django_dcron.management.dcron.start_options import StartOptions

HELP = (
    "Start a node in the foreground with the options of runcron or, with --daemon, in the "
    "background, and return when it is running. Use it on machines without a supervisor; "
    "otherwise, let the supervisor run runcron. Exit codes with --daemon: 0 if the node is "
    "running; 1 if it didn't start (shows the last lines of its log) or another node has locked "
    "the pid file; 2 if an option is invalid or a requirement is missing. In the foreground: the "
    "exit codes of runcron."
)
EXAMPLES = """
start
start --daemon --pid-file /var/lib/shop/dcron.pid --log-file /var/log/shop/dcron.log
start --daemon --embedded --name berlin-1
"""
DEFAULT_LOG = "dcron.log"
START_TIMEOUT = "60s"


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "--daemon",
        action="store_true",
        help="run in the background; needs pip install django-dcron[daemon]",
    )
    parser.add_argument(
        "--pid-file",
        metavar="PATH",
        help=(
            "pid file, locked by the running node, for stop, restart and state (default with "
            f"--daemon: {pid_file.DEFAULT})"
        ),
    )
    parser.add_argument(
        "--log-file",
        metavar="PATH",
        help=f"with --daemon: log file (default: {DEFAULT_LOG}); SIGHUP reopens it",
    )
    parser.add_argument(
        "--timeout",
        metavar="DURATION",
        help=f"with --daemon: maximum time to wait for the start (default: {START_TIMEOUT})",
    )
    node_arguments.add_as_text(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    daemon, path, log_file = options["daemon"], options["pid_file"], options["log_file"]
    if daemon and options["once"]:
        raise usage_error("--once can't be combined with --daemon.")
    if log_file and not daemon:
        raise usage_error(
            "--log-file needs --daemon. In the foreground, the log goes to standard error."
        )
    if options["timeout"] is not None and not daemon:
        raise usage_error(
            "--timeout needs --daemon: it limits the wait for the start of a background node. To "
            "stop a node after a time, use --for."
        )
    if not daemon and not path:
        node_arguments.run_in_foreground(node_arguments.as_arguments(options))
        return
    file = PidFile(path or pid_file.DEFAULT)
    health_file = options["health_file"] or (daemon and file.beside("health"))
    options["health_file"] = str(Path(health_file).absolute()) if health_file else None
    stored = StartOptions(
        daemon=daemon,
        directory=str(Path.cwd()),
        log_file=str(Path(log_file or DEFAULT_LOG).absolute()) if daemon else "",
        health_file=options["health_file"] or "",
        started_at="",
        settings=os.environ.get(ENVIRONMENT_VARIABLE, ""),
        arguments=node_arguments.as_arguments(options),
    )
    if daemon:
        start_in_background(
            Output(command, options),
            file,
            stored,
            _start_timeout(options),
        )
        return
    with file:
        _run_node(file, stored)


def _start_timeout(options: dict[str, Any]) -> timedelta:
    text = START_TIMEOUT if options["timeout"] is None else options["timeout"]
    return option_values.parse_duration_option("--timeout", text)


def start_in_background(
    output: Output, file: PidFile, options: StartOptions, timeout: timedelta
) -> None:
    node = start_node(
        partial(_run_node, file, options), file, Path(options.log_file), options.directory, timeout
    )
    output.line(f"{node} is running: process {node.pid}, log {options.log_file}")


def _run_node(file: PidFile, options: StartOptions) -> None:
    start_options.store_options(file, replace(options, started_at=datetime.now(UTC).isoformat()))
    node_arguments.run_in_foreground(options.arguments)
