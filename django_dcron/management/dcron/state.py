"""``manage.py dcron state``: show whether the node of a pid file is running, and its health.

The exit codes are those of the Linux Standard Base for ``status``.
"""

from __future__ import annotations

import platform
from datetime import datetime
from typing import Any, NoReturn

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, InterfaceError
from django.utils import timezone

from django_dcron.db.routing import alias_for
from django_dcron.diagnosis import cluster
from django_dcron.management.dcron import start_options, stop
from django_dcron.management.dcron.output import (
    BAD,
    GOOD,
    Cell,
    Output,
    StyledText,
    add_json,
    time_text,
)
from django_dcron.management.dcron.pid_file import PidFile
from django_dcron.management.dcron.start_options import StartOptions
from django_dcron.models import Node
from django_dcron.scheduler.health_file import ProbeResult, probe
from django_dcron.utils import time_format

HELP = (
    "Show whether the node of the pid file is running, since when, and its health. Exit codes: "
    "0 if it runs, fit or unfit (see dcron health); 1 if it was killed and left its pid file; "
    "3 if it isn't running; 4 if its state is unknown."
)
EXAMPLES = """
state --pid-file /var/lib/shop/dcron.pid
state --json
"""
RUNNING, KILLED, STOPPED = "running", "killed", "stopped"
EXIT_KILLED, EXIT_STOPPED, EXIT_UNKNOWN = 1, 3, 4


def add_arguments(parser: CommandParser) -> None:
    stop.add_pid_file_option(parser)
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    output, file = Output(command, options), PidFile(options["pid_file"])
    try:
        pid = file.holder()
    except CommandError as error:
        error.returncode = EXIT_UNKNOWN
        raise
    if pid is None:
        _report_absence(output, file)
    stored = start_options.load_options(file)
    since = _start_of(stored) if stored else None
    health = (
        probe(stored.health_file) if stored and stored.health_file else _health_from_heartbeat(pid)
    )
    log_file = stored.log_file if stored else ""
    if output.is_json:
        health_fields = (
            {"fit": health.fit, "health": health.reason}
            if health
            else {"fit": None, "health": None}
        )
        output.json(
            {
                "version": 1,
                "state": RUNNING,
                "pid": pid,
                "since": since,
                **health_fields,
                "log_file": log_file or None,
            }
        )
        return
    output.fields(
        [
            ("state", StyledText(RUNNING, GOOD)),
            ("process", pid),
            ("since", time_text(since) if since else None),
            ("health", _health_cell(health)),
            ("log", log_file),
        ]
    )


def _start_of(stored: StartOptions) -> datetime | None:
    """Return when the node started. None if the stored text is no time, or has no time zone."""
    try:
        since = datetime.fromisoformat(stored.started_at)
    except (ValueError, TypeError):
        return None
    return since if timezone.is_aware(since) else None


def _health_cell(health: ProbeResult | None) -> Cell:
    if health is None:
        return "unknown"
    return StyledText(health.reason, "" if health.fit else BAD)


def _report_absence(output: Output, file: PidFile) -> NoReturn:
    killed = file.path.exists()
    if output.is_json:
        nulls = dict.fromkeys(("pid", "since", "fit", "health", "log_file"))
        output.json({"version": 1, "state": KILLED if killed else STOPPED, **nulls})
    if killed:
        raise CommandError(
            f"The node was killed: {file.path} exists, but its process has ended.",
            returncode=EXIT_KILLED,
        )
    raise CommandError(stop.no_node_text(file), returncode=EXIT_STOPPED)


def _health_from_heartbeat(pid: int) -> ProbeResult | None:
    """Return the health of a node without a health file, from its heartbeat in the database.

    Returns None if the database doesn't respond or has no such node.
    """
    nodes = Node.objects.using(alias_for(Node)).filter(host=platform.node(), pid=pid)
    try:
        node = cluster.with_read_time(nodes).order_by("-started_at").first()
    except (DatabaseError, InterfaceError):
        return None
    if node is None:
        return None
    live = cluster.is_live(node)
    age = cluster.time_since(node, node.heartbeat_at)
    text = f"last heartbeat of {node}: {time_format.format_time_ago(age)}"
    return ProbeResult(live and not cluster.is_stalled(node), text)
