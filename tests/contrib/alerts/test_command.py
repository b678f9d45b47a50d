"""Test ``manage.py dcron alert``."""

from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from pytest_django import Settings

from tests.contrib.alerts.conftest import Service


def dcron_alert(*channels: str) -> str:
    out = StringIO()
    call_command("dcron", "alert", *channels, stdout=out, skip_checks=True)
    return out.getvalue()


def test_test_message_is_sent_to_the_channel(service: Service) -> None:
    assert dcron_alert("ops") == "ops: sent.\n"
    assert service.subjects == ["[dcron] Test message"]


def test_test_message_names_the_site(service: Service, settings: Settings) -> None:
    settings.DCRON_SITE_URL = "https://shop.example/office"
    dcron_alert("ops")
    assert service.subjects == ["[dcron shop.example] Test message"]
    assert "shop.example" in service.received[0]["message"]


def test_failing_channel_is_reported_and_others_are_tried(
    service: Service, settings: Settings
) -> None:
    settings.DCRON_ALERT_CHANNELS |= {"bad": {"apprise": ["nosuch://x"]}}
    with pytest.raises(CommandError, match=r"\bbad\b") as caught:
        dcron_alert("bad", "ops")
    assert caught.value.returncode == 1
    assert len(service.received) == 1


def test_every_url_of_a_channel_is_tried(service: Service, settings: Settings) -> None:
    settings.DCRON_ALERT_CHANNELS = {"ops": {"apprise": ["nosuch://secret@x", service.url]}}
    out = StringIO()
    with pytest.raises(CommandError, match=r"\bops\b"):
        call_command("dcron", "alert", "ops", stdout=out, skip_checks=True)
    assert "'nosuch'" in out.getvalue()
    assert "ops 2: sent." in out.getvalue()
    assert "secret" not in out.getvalue()
    assert len(service.received) == 1


def test_channel_without_addresses_sends_nothing(service: Service, settings: Settings) -> None:
    settings.DCRON_ALERT_CHANNELS |= {"nobody": {"mail": []}}
    nobody, ops = dcron_alert("nobody", "ops").splitlines()
    assert "nobody: sends nothing" in nobody
    assert ops == "ops: sent."
    assert len(service.received) == 1


def test_unknown_channel_is_refused(service: Service) -> None:
    with pytest.raises(CommandError, match=r"'opps' .*: ops\)") as caught:
        dcron_alert("ops", "opps")
    assert caught.value.returncode == 2
    assert service.received == []
