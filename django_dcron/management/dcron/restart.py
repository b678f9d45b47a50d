"""``manage.py dcron restart``: stop the node that holds a pid file, and start it as it was started."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from django.conf import ENVIRONMENT_VARIABLE
from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_dcron.management.dcron import detached, kept_options, node_arguments, start, stop, times
from django_dcron.management.dcron.exits import cannot
from django_dcron.management.dcron.kept_options import Kept
from django_dcron.management.dcron.output import Output
from django_dcron.management.dcron.pid_file import PidFile

HELP = (
    "Stop the node that holds the pid file, if it runs, and start it with the options that start --daemon was given; they are "
    "kept beside the pid file, in PID_FILE.options, also while it is stopped. To change them: stop, then start. Exit codes: 0 "
    "it is up; 1 it still drains after --timeout, or did not come up; 2 nothing is known of how to start it."
)
EXAMPLES = """
restart --pid-file /run/shop/dcron.pid
restart --timeout 10s --force
"""


def add_arguments(parser: CommandParser) -> None:
    stop.add_pid_file(parser)
    stop.add_draining(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    output, file = Output(command, options), PidFile(options["pid_file"])
    kept = _kept(file)
    detached.check(Path(kept.log_file), Path(kept.directory))  # before anything is stopped
    output.line(stop.drain(file, times.duration("--timeout", options["timeout"]), force=options["force"]))
    start.in_background(output, file, kept, times.duration("--timeout", start.PATIENCE))


def _kept(file: PidFile) -> Kept:
    path = kept_options.path_of(file)
    kept = kept_options.read(file)
    if kept is None:
        raise cannot(f"Nothing is known of how it was started: {path} is not there, or cannot be read.")
    if not kept.daemon:
        raise cannot("It was started in the foreground: let whoever did start it again.")
    if kept.settings != os.environ.get(ENVIRONMENT_VARIABLE, ""):
        raise cannot(f"It was started with other settings: say --settings {kept.settings}.")
    try:
        node_arguments.check(kept.arguments)
    except CommandError as error:
        raise cannot(
            f"It cannot be started as it was: {error} ({path}). Stop it, and start it anew."
        ) from error
    return kept
