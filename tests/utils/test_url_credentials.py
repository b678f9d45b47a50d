"""No part of a password is shown, even if the text that contains it is malformed."""

from collections.abc import Callable, Iterator

import pytest
from celery import current_app
from django.core.checks import run_checks
from kombu import Connection
from pytest_django import Settings

from django_dcron.contrib.alerts.channels import SendFailed, send
from django_dcron.db.errors import in_one_line
from django_dcron.dispatch.celery_setup import transport_problem
from django_dcron.utils.url_credentials import without_credentials, without_urls

SECRETS = ("hunter2", "hunt", "er2")
URLS = [
    "redis://:hunter2@host:6379/0",
    "redis://:hunt/er2@host:6379/0",
    "redis://:hunt#er2@host",
    "redis://:hunt er2@host",
    "redis://:hunt'er2@host",
    "redis://:hunt\"er2'@host",
    "redis:/:hunter2@host.example",
    "redis://user:hunt@er2@host.example",
]
SETTINGS = (
    "DCRON_LOCK",
    "DCRON_CACHE",
    "DCRON_DISPATCHER",
    "DCRON_SITE_URL",
    "DCRON_KEEP_FOR",
    "DCRON_MIDDLEWARE",
    "DCRON_TASKS_BACKEND",
)


@pytest.mark.parametrize("url", URLS)
def test_system_checks_show_no_part_of_a_password(settings: Settings, url: str) -> None:
    for name in SETTINGS:
        setattr(settings, name, [url, 1] if name == "DCRON_MIDDLEWARE" else url)
        found = str(run_checks())
        assert not any(secret in found for secret in SECRETS), (name, found)
        delattr(settings, name)
    settings.DCRON_MIDDLEWARE = [url]
    settings.DCRON_ALERT_CHANNELS = {"ops": {"mail": ["a@b.c"]}}
    settings.DCRON_ALERTS = [{"on": "failed", "to": [url]}]
    settings.DCRON_SHELL = {"backup": ["pg_dump", "--password=hunter2"], "x": []}
    found = str(run_checks())
    assert not any(secret in found for secret in SECRETS), found


@pytest.fixture
def use_broker() -> Iterator[Callable[[str], None]]:
    before = current_app.conf.broker_url

    def use(url: str) -> None:
        current_app.conf.broker_url = url

    yield use
    current_app.conf.broker_url = before


@pytest.mark.parametrize(
    "url", [*URLS, "hunter2.x://h", "x+hunter2://", "redis//:hunter2@host", ":hunter2@host:6379/0"]
)
def test_problem_with_malformed_broker_url_shows_no_password(
    use_broker: Callable[[str], None], url: str
) -> None:
    use_broker(url)
    message = transport_problem() or ""
    assert not any(secret in message for secret in SECRETS), message


def test_transport_error_is_shown_without_the_broker_url(monkeypatch: pytest.MonkeyPatch) -> None:
    def get_transport_cls(connection: Connection) -> None:
        raise KeyError("No such transport in redis://:hunter2@host")

    monkeypatch.setattr(Connection, "get_transport_cls", get_transport_cls)
    assert transport_problem() == "No such transport in redis://…"


@pytest.mark.parametrize("url", ["hunter2", "hunter2:x@host", "slack//hunter2"])
def test_not_sent_error_shows_no_part_of_the_channel_url(url: str) -> None:
    with pytest.raises(SendFailed) as caught:
        send({"apprise": [url]}, "subject", "text")
    assert "hunter2" not in str(caught.value)


def test_only_credentials_are_removed_from_error_messages() -> None:
    error = ValueError("amqp://user:hunter2@host/ does not\nanswer; see https://docs.example/x?y=1")
    assert in_one_line(error) == "amqp://…@host/ does not answer; see https://docs.example/x?y=1"
    assert without_credentials("Port could not be cast to integer value as 'hunt'").endswith(
        "value as …"
    )
    assert without_urls("'a' is not one of b, c") == "'a' is not one of b, c"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Invalid url: redis://:hunt'er2@host/0", "Invalid url: redis://…"),
        ('Invalid url: redis://:hunt"er2@host/0', "Invalid url: redis://…"),
        ("amqp://u:hunt er2@host// is invalid", "amqp://… is invalid"),
        ("amqp://u:hunt er2@host and redis://:hunt@er 2@host fail", "amqp://… fail"),
        ("use 'redis://:x@y', not amqp://u:hunt er2@host", "use 'redis://…', not amqp://…"),
        ("redis://:hunt er2@host is invalid\nask a@b.c", "redis://… is invalid\nask a@b.c"),
        ("'redis://host' is invalid; ask a@b.c", "'redis://…' is invalid; ask a@b.c"),
    ],
)
def test_unquoted_url_is_removed_up_to_the_last_at_sign_of_its_line(
    text: str, expected: str
) -> None:
    assert without_urls(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "GET https://api.example.com/users?mail=a@b.c: 404",
        "https://medium.com/@user/post",
        "HTTP://docs.example/@cron",
        "redis://host:6379: refused; ask a@b.c",
        "https://host:8080 refused the connection; ask a@b.c",
        "redis://host:6379/0 refused the connection; ask a@b.c",
    ],
)
def test_url_without_user_name_and_password_is_shown(text: str) -> None:
    assert without_credentials(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://user:hunter2@host.example/x", "https://…@host.example/x"),
        ("https://hunter2@host.example/x", "https://…@host.example/x"),
        ("https://hunter.2/3@host.example/x", "https://…@host.example/x"),
        ("https://hunter.2?3@host.example/x", "https://…@host.example/x"),
        ("redis://:hunt/er2@host", "redis://…@host"),
        ("redis://hunt.er2/x@host", "redis://…@host"),
        ("https://first.last/x:hunter2@host", "https://…@host"),
        ("https://a.example/@user,redis://:hunter2@host", "https://…@host"),
        ("amqp://u:hunt er2@host// is invalid", "amqp://…@host// is invalid"),
        ("amqp://u:hunt er@2@host// is invalid", "amqp://…@host// is invalid"),
    ],
)
def test_credentials_of_unusual_urls_are_removed(text: str, expected: str) -> None:
    assert without_credentials(text) == expected
