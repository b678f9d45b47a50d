"""Test that channels send alerts as plain text, even if they quote hostile markup."""

import re

import pytest
import requests
from apprise import Apprise, NotifyFormat
from django.core import mail
from pytest_django import Settings
from requests import Request, Response

from django_dcron.contrib.alerts import channels
from tests.contrib.alerts.mail_server import MailServer
from tests.docs.test_documents import ROOT
from tests.services import free_ports

HOSTILE = '<a href="https://evil.example">log in again</a> <img src="https://evil.example/seen"> [here](https://evil.example)'


@pytest.mark.parametrize("options", ["", "&format=html", "&format=markdown"])
def test_mail_is_sent_as_plain_text(mail_server: MailServer, options: str) -> None:
    url = f"mailto://127.0.0.1:{mail_server.port}?from=dcron@shop.example&to=ops@shop.example&mode=insecure{options}"

    channels.send({"apprise": [url]}, "report failed", f"ValueError: {HOSTILE}", "failure")

    (message,) = mail_server.received
    assert message["subject"] == "[dcron] report failed"
    parts = [part for part in message.walk() if not part.is_multipart()]
    assert [part.get_content_type() for part in parts] == ["text/plain"]
    assert parts[0].get_content().strip() == f"ValueError: {HOSTILE}"


@pytest.mark.parametrize(
    "url",
    [
        "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ",
        "tgram://123456789:abcdefg_hijklmnop/12315544/",
    ],
)
def test_services_receive_plain_text(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Cover services whose default format is markup."""
    sent = []
    (plugin,) = Apprise(url)
    monkeypatch.setattr(
        type(plugin),
        "send",
        lambda self, body, **more: (
            sent.append((body, self.notify_format, more["body_format"])) or True
        ),
    )

    channels.send({"apprise": [url]}, "report failed", HOSTILE)

    assert [(notify_format, body_format) for _body, notify_format, body_format in sent] == [
        (NotifyFormat.TEXT,) * 2
    ]
    assert HOSTILE in sent[0][0]


def test_quoted_text_mentions_no_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Discord and Mattermost would notify all members of a channel."""
    url = "discord://4174216298/JHMHI8qBe7bk2ZwO5U711o3dV_js"
    sent: list[tuple[str, str]] = []
    (plugin,) = Apprise(url)
    monkeypatch.setattr(
        type(plugin), "send", lambda self, body, title, **more: sent.append((title, body)) or True
    )

    channels.send(
        {"apprise": [url]}, "@here failed", "(@everyone) ops@all.example @Channel: @alley"
    )

    [(title, body)] = sent
    assert "@here" not in title
    assert [word for word in body.split() if "@\u200b" not in word] == ["ops@all.example", "@alley"]


@pytest.mark.parametrize(
    ("url", "subject"),
    [
        ("", "[dcron] failed"),
        ("https://prod.shop.example", "[dcron prod.shop.example] failed"),
        ("http://shop.example/office?x=@y", "[dcron shop.example] failed"),
        ("http://localhost:8000/", "[dcron localhost:8000] failed"),
        ("https://user:secret@shop.example/", "[dcron shop.example] failed"),
        ("https://[", "[dcron [] failed"),
        ("https://", "[dcron] failed"),
    ],
)
def test_subject_names_the_host_of_the_site(settings: Settings, url: str, subject: str) -> None:
    settings.DCRON_SITE_URL = url
    channels.send({"mail": ["ops@shop.example"]}, "failed", "text")
    assert [sent.subject for sent in mail.outbox] == [subject]


def test_error_covers_a_service_that_is_unreachable() -> None:
    """Apprise doesn't say which of the two it was."""
    (unused_port,) = free_ports(1)
    with pytest.raises(channels.SendFailed, match="unreachable or rejected"):
        channels.send({"apprise": [f"json://127.0.0.1:{unused_port}?cto=2"]}, "failed", "text")


def test_webhook_of_the_docs_receives_its_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "how-to" / "alerts.md").read_text()
    found = re.search(r"`(https://\S+\?\S+)` becomes\s+`(jsons://\S+)`", text)
    assert found
    address, url = found.groups()
    sent = []

    def request(method: str, url: str, params: dict[str, str], **more: object) -> Response:
        sent.append(Request(method, url, params=params).prepare())
        response = Response()
        response.status_code = 200
        return response

    monkeypatch.setattr(requests, "request", request)

    channels.send({"apprise": [url]}, "report failed", "text")

    assert [(each.method, each.url) for each in sent] == [("POST", address)]
