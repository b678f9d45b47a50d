"""``manage.py dcron state``: whether a node holds a pid file, and how it is. The exit codes are those that the Linux Standard
Base has for ``status``."""

from __future__ import annotations

import platform
from datetime import datetime
from typing import Any, NoReturn

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, InterfaceError

from django_dcron.management.dcron import kept_options, stop
from django_dcron.management.dcron.output import BAD, GOOD, Output, Styled, add_json, moment, span
from django_dcron.management.dcron.pid_file import PidFile
from django_dcron.models import Node
from django_dcron.models.database import alias_for
from django_dcron.observability import cluster
from django_dcron.scheduler.health_file import Answer, probe

HELP = (
    "Say whether a node holds the pid file, since when, and whether it is fit. Exit codes: 0 it runs, fit or not (dcron health "
    "is for that); 1 it was killed, and left its pid file; 3 it does not run; 4 it cannot be told."
)
EXAMPLES = """
state --pid-file /run/shop/dcron.pid
state --json
"""
RUNNING, KILLED, STOPPED = "running", "killed", "stopped"
EXIT_KILLED, EXIT_STOPPED, EXIT_UNKNOWN = 1, 3, 4


def add_arguments(parser: CommandParser) -> None:
    stop.add_pid_file(parser)
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    output, file = Output(command, options), PidFile(options["pid_file"])
    try:
        pid = file.holder()
    except CommandError as error:
        error.returncode = EXIT_UNKNOWN
        raise
    if pid is None:
        _absent(output, file)
    kept = kept_options.read(file)
    since = datetime.fromisoformat(kept.started_at) if kept else None
    health = probe(kept.health_file) if kept and kept.health_file else _by_its_heartbeat(pid)
    log_file = kept.log_file if kept else ""
    if output.is_json:
        told = {"fit": health.fit, "health": health.reason} if health else {"fit": None, "health": None}
        output.json(
            {"version": 1, "state": RUNNING, "pid": pid, "since": since, **told, "log_file": log_file or None}
        )
        return
    output.fields(
        [
            ("state", Styled(RUNNING, GOOD)),
            ("process", pid),
            ("since", moment(since) if since else None),
            ("health", Styled(health.reason, "" if health.fit else BAD) if health else "not known"),
            ("log", log_file),
        ]
    )


def _absent(output: Output, file: PidFile) -> NoReturn:
    killed = file.path.exists()
    if output.is_json:
        none = dict.fromkeys(("pid", "since", "fit", "health", "log_file"))
        output.json({"version": 1, "state": KILLED if killed else STOPPED, **none})
    if killed:
        raise CommandError(
            f"The node was killed: {file.path} is there, and nobody holds it.", returncode=EXIT_KILLED
        )
    raise CommandError(f"No node runs: there is no {file.path}.", returncode=EXIT_STOPPED)


def _by_its_heartbeat(pid: int) -> Answer | None:
    """As the database knows it, for want of a health file. None: it does not answer, or not know."""
    nodes = Node.objects.using(alias_for(Node)).filter(host=platform.node(), pid=pid)
    try:
        node = cluster.with_time(nodes).order_by("-started_at").first()
    except (DatabaseError, InterfaceError):
        return None
    if node is None:
        return None
    live = cluster.is_live(node)
    said = f"{node}'s heartbeat is {span(cluster.age(node, node.heartbeat_at))} old"
    return Answer(live and not cluster.is_stalled(node), said)
