"""Channels: Django's mail, and whatever apprise speaks (extra ``alerts``): Slack, Teams, Telegram, a webhook and many more."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from django.core import mail

PATIENCE = 10
"""Seconds for a mail server that says nothing, unless the project has a limit of its own. Apprise has one (``cto`` and ``rto``
of a URL)."""
PREFIX = "[dcron] "
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,30})://")

Places = dict[str, tuple[str, Mapping[str, Any]]]


class NotSent(Exception):
    """The channel did not take the message. The message says which kind of channel and why, and no secret."""


def places(channels: Mapping[str, Mapping[str, Any]]) -> Places:
    """Where messages go, one by one: each channel, and each URL of one that has several (``ops``, ``ops 2``). By the place's
    name: the channel's, and the place as a channel."""
    found: Places = {}
    for name, channel in channels.items():
        urls = channel.get("apprise", ())
        if len(urls) < 2:
            found[name] = name, channel
        for number, url in enumerate(urls if len(urls) > 1 else (), start=1):
            found[name if number == 1 else f"{name} {number}"] = name, {**channel, "apprise": [url]}
    return found


def send(channel: Mapping[str, Any], subject: str, text: str, tone: str = "info") -> None:
    """To one of ``places``. ``tone``: how grave it is, in apprise's words (info, success, warning, failure), by which services
    choose colours and icons. Raises whatever goes wrong."""
    subject = " ".join(f"{PREFIX}{subject}".split())  # a header is one line
    if "mail" in channel:
        _mail(channel["mail"], subject, text)
    else:
        (url,) = channel["apprise"]
        _apprise(url, subject, text, tone)


def _mail(addresses: Sequence[str], subject: str, text: str) -> None:
    mailer: Any = mail.mailers.default if hasattr(mail, "mailers") else mail.get_connection()
    if getattr(mailer, "timeout", PATIENCE) is None:  # of SMTP
        mailer.timeout = PATIENCE
    if not mailer.send_messages([mail.EmailMessage(subject, text, to=list(addresses))]):
        raise NotSent("the mail backend sent nothing")


def _apprise(url: str, subject: str, text: str, tone: str) -> None:
    try:
        from apprise import Apprise, NotifyFormat, NotifyType, OverflowMode
    except ImportError as error:
        raise NotSent("apprise is not installed: pip install django-dcron[alerts]") from error
    scheme = SCHEME.match(url)
    kind, service = scheme[1] if scheme else "nothing", Apprise()
    if not service.add(url):
        if scheme is None:
            raise NotSent("its URL does not begin with a scheme such as slack://")
        raise NotSent(f"apprise does not know the {kind!r} of its URL, or cannot read it")
    for plugin in service:
        # An alert quotes what a job raised. A service that reads markup would show links and images from that text.
        plugin.notify_format = NotifyFormat.TEXT
        if "overflow_mode" not in vars(plugin):  # the URL does not say; too long a text would be refused
            plugin.overflow_mode = OverflowMode.TRUNCATE
    if not service.notify(
        title=subject, body=text, notify_type=NotifyType(tone), body_format=NotifyFormat.TEXT
    ):
        raise NotSent(f"its service ({kind}) did not take it")
