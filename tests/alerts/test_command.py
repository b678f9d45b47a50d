"""``manage.py dcron alert``."""

from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from pytest_django import Settings

from tests.alerts.conftest import Service


def dcron_alert(*channels: str) -> str:
    out = StringIO()
    call_command("dcron", "alert", *channels, stdout=out, skip_checks=True)
    return out.getvalue()


def test_a_channel_that_works_has_it_at_once(service: Service) -> None:
    assert dcron_alert("ops") == "ops: sent.\n"
    assert service.subjects == ["[dcron] a trial message"]


def test_one_that_does_not_says_why_and_the_others_are_tried(service: Service, settings: Settings) -> None:
    settings.DCRON_ALERT_CHANNELS |= {"bad": {"apprise": ["nosuch://x"]}}
    with pytest.raises(CommandError, match=r"Not taken by bad\.") as caught:
        dcron_alert("bad", "ops")
    assert caught.value.returncode == 1
    assert len(service.told) == 1


def test_each_url_of_a_channel_is_tried(service: Service, settings: Settings) -> None:
    settings.DCRON_ALERT_CHANNELS = {"ops": {"apprise": ["nosuch://secret@x", service.url]}}
    out = StringIO()
    with pytest.raises(CommandError, match=r"Not taken by ops\."):
        call_command("dcron", "alert", "ops", stdout=out, skip_checks=True)
    assert "ops: apprise does not know the 'nosuch' of its URL" in out.getvalue()
    assert "ops 2: sent." in out.getvalue()
    assert "secret" not in out.getvalue()
    assert len(service.told) == 1


def test_a_channel_that_is_not_named(service: Service) -> None:
    with pytest.raises(CommandError, match=r"names no channel 'opps' \(there are: ops\)") as caught:
        dcron_alert("ops", "opps")
    assert caught.value.returncode == 2
    assert service.told == []
