"""Channels: Django's mail, and all services of apprise (extra ``alerts``)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django.core import mail

from django_dcron.conf import settings
from django_dcron.utils.alert_channels import ADDRESSES

SEND_TIMEOUT = 10
"""Timeout in seconds for a mail server, unless the project sets its own.

Apprise has its own timeouts (``cto`` and ``rto`` in a URL).
"""
SITE_AUTHORITY = re.compile(r"https?://([^/?#]*)")
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,30})://")
MENTION = re.compile(r"(?<!\w)@(?=(?:all|channel|everyone|here)\b)", re.IGNORECASE)
"""A mention that notifies everyone on Discord or Mattermost, also within plain text."""


class AlertDestination(NamedTuple):
    channel: str
    """The name of the channel."""
    settings: Mapping[str, Any]
    """The settings of the channel, with this destination only."""


class SendFailed(Exception):
    """The channel didn't accept the message.

    The error names the kind of channel and the reason, but no secret.
    """


def destinations(channels: Mapping[str, Mapping[str, Any]]) -> dict[str, AlertDestination]:
    """Return the destinations of messages by name, such as ``ops`` and ``ops 2``.

    A channel is one destination. If it has several URLs, each URL is a destination. A channel that
    is invalid or sends nothing has none.
    """
    found: dict[str, AlertDestination] = {}
    for name, channel in channels.items():
        if not channel or sends_nothing(channel):
            continue
        urls = channel.get("apprise", ())
        if len(urls) < 2:
            found[name] = AlertDestination(name, channel)
            continue
        for number, url in enumerate(urls, start=1):
            numbered = name if number == 1 else f"{name} {number}"
            found[numbered] = AlertDestination(name, {**channel, "apprise": [url]})
    return found


def sends_nothing(channel: Mapping[str, Any]) -> bool:
    """Return whether the list of addresses or URLs of a valid channel is empty."""
    return any(channel.get(key) == [] for key in ADDRESSES)


def site_host() -> str:
    """Return the host of ``DCRON_SITE_URL``, with its port if it names one; empty without a URL.

    Sites that share a channel, such as production and staging, differ in it.
    """
    found = SITE_AUTHORITY.match(settings.SITE_URL)
    return found[1].rpartition("@")[2] if found else ""


def send(channel: Mapping[str, Any], subject: str, text: str, level: str = "info") -> None:
    """Send a message to one of ``destinations``.

    Raises any exception of the mail backend or apprise.

    ``level``: the severity in apprise's terms (info, success, warning, failure). Services choose
    colors and icons by it.
    """
    sender = f"dcron {site_host()}".strip()
    subject = " ".join(f"[{sender}] {subject}".split())  # a header is one line
    if "mail" in channel:
        _mail(channel["mail"], subject, text)
    else:
        (url,) = channel["apprise"]
        _apprise(url, subject, text, level)


def _mail(addresses: Sequence[str], subject: str, text: str) -> None:
    mailer: Any = mail.mailers.default if hasattr(mail, "mailers") else mail.get_connection()
    # By default, the SMTP backend waits forever.
    if getattr(mailer, "timeout", SEND_TIMEOUT) is None:
        mailer.timeout = SEND_TIMEOUT
    if not mailer.send_messages([mail.EmailMessage(subject, text, to=list(addresses))]):
        raise SendFailed("the mail backend sent no message")


def _apprise(url: str, subject: str, text: str, level: str) -> None:
    try:
        from apprise import Apprise, NotifyFormat, NotifyType, OverflowMode
    except ImportError as error:
        raise SendFailed("apprise is not installed: pip install django-dcron[alerts]") from error
    scheme = SCHEME.match(url)
    kind, service = scheme[1] if scheme else "nothing", Apprise()
    if not service.add(url):
        if scheme is None:
            raise SendFailed("the URL doesn't begin with a scheme such as slack://")
        raise SendFailed(
            f"apprise doesn't support the scheme {kind!r} of the URL, or the URL is malformed"
        )
    for plugin in service:
        # An alert quotes exceptions of jobs. A service that interprets markup would show links and
        # images from them.
        plugin.notify_format = NotifyFormat.TEXT
        # Unless the URL sets a mode, a service would reject a text that is too long.
        if "overflow_mode" not in vars(plugin):
            plugin.overflow_mode = OverflowMode.TRUNCATE
    title, body = (MENTION.sub("@\u200b", quoted) for quoted in (subject, text))
    if not service.notify(
        title=title, body=body, notify_type=NotifyType(level), body_format=NotifyFormat.TEXT
    ):
        raise SendFailed(f"the service ({kind}) is unreachable or rejected the message")
