"""``manage.py dcron alert``: send a test message through an alert channel."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_dcron.conf import settings
from django_dcron.contrib.alerts.channels import destinations, send, sends_nothing, site_host
from django_dcron.db.errors import in_one_line
from django_dcron.management.dcron.exits import negative_result, usage_error
from django_dcron.management.dcron.output import GOOD, Output
from django_dcron.utils.suggestions import did_you_mean

HELP = (
    "Send a test message to alert channels at once, regardless of the alert rules. Exit codes: 1 "
    "if a channel rejects it; 2 if there is no such channel."
)
EXAMPLES = """
alert ops
alert ops mail
"""
SUBJECT = "Test message"
TEXT = "The rules in DCRON_ALERTS and in the alerts of jobs decide which alerts it gets."


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "channels", nargs="+", metavar="CHANNEL", help="name in DCRON_ALERT_CHANNELS"
    )


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    named = settings.ALERT_CHANNELS
    if unknown := [name for name in options["channels"] if name not in named]:
        known = ", ".join(sorted(named)) or "none"
        raise usage_error(
            f"Unknown channel {unknown[0]!r} (in DCRON_ALERT_CHANNELS: {known})."
            f"{did_you_mean(unknown[0], named)}"
        )
    if invalid := [name for name in options["channels"] if not named[name]]:
        raise usage_error(f"The channel {invalid[0]!r} is invalid. To see why: manage.py check")
    output, refused = Output(command, options), []
    chosen = {name: named[name] for name in options["channels"]}
    for name, channel in chosen.items():
        if sends_nothing(channel):
            output.line(f"{name}: sends nothing, because its list of addresses or URLs is empty.")
    site = f" for {site_host()}" if site_host() else ""
    text = f"This channel works{site}. {TEXT}"
    for name, destination in destinations(chosen).items():
        try:
            send(destination.settings, SUBJECT, text)
        except Exception as error:  # a third-party channel may raise anything
            refused.append(destination.channel)
            output.line(f"{name}: {in_one_line(error)}")
        else:
            output.line(f"{name}: sent.", GOOD)
    if refused:
        raise negative_result(f"Rejected by {', '.join(dict.fromkeys(refused))}.")
