"""``manage.py dcron alert``: send a trial message through a channel for alerts."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_dcron.alerts.channels import places, send
from django_dcron.conf import settings
from django_dcron.management.dcron.exits import cannot, no
from django_dcron.management.dcron.output import GOOD, Output
from django_dcron.models.database import in_one_line

HELP = (
    "Send a trial message through channels of DCRON_ALERT_CHANNELS, now and whatever the rules say. Exit codes: 1 a channel did "
    "not take it; 2 there is no such channel."
)
EXAMPLES = """
alert ops
alert ops mail
"""
SUBJECT = "a trial message"
TEXT = "This channel works. Alerts come here when the rules of DCRON_ALERTS, or a job's own, say so."


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("channels", nargs="+", metavar="CHANNEL", help="its name in DCRON_ALERT_CHANNELS")


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    named = settings.ALERT_CHANNELS
    if unknown := [name for name in options["channels"] if name not in named]:
        known = ", ".join(sorted(named)) or "none"
        raise cannot(f"DCRON_ALERT_CHANNELS names no channel {unknown[0]!r} (there are: {known}).")
    output, refused = Output(command, options), []
    for place, (channel, said) in places({name: named[name] for name in options["channels"]}).items():
        try:
            send(said, SUBJECT, TEXT)
        except Exception as error:  # somebody else's code, which may raise anything: it is said
            refused.append(channel)
            output.line(f"{place}: {in_one_line(error)}")
        else:
            output.line(f"{place}: sent.", GOOD)
    if refused:
        raise no(f"Not taken by {', '.join(dict.fromkeys(refused))}.")
