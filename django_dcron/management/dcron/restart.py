"""``manage.py dcron restart``: stop the node of a pid file and start it with the same options."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

from django.conf import ENVIRONMENT_VARIABLE
from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_dcron.management.dcron import (
    detached,
    node_arguments,
    option_values,
    start,
    start_options,
    stop,
)
from django_dcron.management.dcron.exits import usage_error
from django_dcron.management.dcron.output import Output
from django_dcron.management.dcron.pid_file import PidFile
from django_dcron.management.dcron.start_options import StartOptions

HELP = (
    "Stop the node of the pid file, if it is running, and start it with the options of the "
    "last start --daemon, which are stored in PID_FILE.options. To change the options, use stop "
    "and start. Exit codes: 0 if the node is running; 1 if it was still draining after --timeout "
    "or didn't start; 2 if its start options are unknown."
)
EXAMPLES = """
restart --pid-file /var/lib/shop/dcron.pid
restart --timeout 10s --force
"""


def add_arguments(parser: CommandParser) -> None:
    stop.add_pid_file_option(parser)
    stop.add_drain_options(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    output, file = Output(command, options), PidFile(options["pid_file"])
    stored = _stored_options(file)
    # Nothing is stopped if the node can't be started again.
    detached.check_can_detach(Path(stored.log_file), Path(stored.directory))
    drain_timeout = option_values.parse_duration_option("--timeout", options["timeout"])
    output.line(stop.drain(file, drain_timeout, force=options["force"]))
    start_timeout = option_values.parse_duration_option("--timeout", start.START_TIMEOUT)
    start.start_in_background(output, file, stored, start_timeout)


def _stored_options(file: PidFile) -> StartOptions:
    path = start_options.options_path(file)
    options = start_options.load_options(file)
    if options is None:
        start_command = shlex.join(
            ["manage.py", "dcron", "start", "--daemon", "--pid-file", str(file.path)]
        )
        raise usage_error(
            f"Unknown start options: {path} is missing or unreadable. Stop the node if it is "
            f"running, and start it: {start_command}"
        )
    if not options.daemon:
        raise usage_error("The node was started in the foreground, so dcron can't restart it.")
    if options.settings != os.environ.get(ENVIRONMENT_VARIABLE, ""):
        raise usage_error(f"The node uses other settings. Add --settings {options.settings}.")
    try:
        node_arguments.check_runcron_arguments(options.arguments)
    except CommandError as error:
        raise usage_error(
            f"The stored options no longer work: {error} ({path}). Stop the node and start it "
            "again."
        ) from error
    return options
