"""Test the outbox: it batches alerts, respects a channel's rate and retries until delivery."""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from django.core import mail
from pytest_django import DjangoAssertNumQueries, Settings

from django_dcron.contrib.alerts import channels, outbox
from django_dcron.contrib.alerts.outbox import (
    Message,
    prune_alerts,
    send_due,
    store_alerts,
    store_new_alerts,
)
from django_dcron.db.now import database_now
from django_dcron.models import Alert
from django_dcron.policies.alerting import AlertKind
from tests.contrib.alerts.conftest import Service
from tests.logs import logged
from tests.threads import in_threads

pytestmark = pytest.mark.django_db


def message(number: int, *, to: tuple[str, ...] = ("ops",)) -> Message:
    return Message(
        AlertKind.FAILED, f"failed:{number}", f"job {number} failed", "no more beans", to=to
    )


def make_due() -> None:
    Alert.objects.filter(try_at__isnull=False).update(try_at=database_now("default"))


def test_alerts_due_together_are_sent_as_one_message(service: Service) -> None:
    store_alerts(message(number) for number in range(3))
    assert send_due() == 3
    assert send_due() == 0
    [notification] = service.received
    assert notification["title"] == "[dcron] 3 alerts: job 0 failed, ..."
    assert all(
        f"job {number} failed\nno more beans" in notification["message"] for number in range(3)
    )


def test_message_begins_with_its_most_severe_alert(service: Service, settings: Settings) -> None:
    settings.DCRON_ALERT_CHANNELS |= {"mail": {"mail": ["ops@shop.example"]}}
    kinds = [
        *(AlertKind.RECOVERED, AlertKind.LATE, AlertKind.FAILED, AlertKind.DEGRADED),
        *(AlertKind.UNHEALTHY, AlertKind.MISSED, AlertKind.NODE_LOST, AlertKind.SILENT),
    ]
    store_alerts(Message(kind, f"{kind}:1", kind, to=("ops", "mail")) for kind in kinds)
    assert send_due() == 2 * len(kinds)
    [notification], [sent] = service.received, mail.outbox
    assert notification["title"] == sent.subject == "[dcron] 8 alerts: unhealthy, ..."
    for text in (notification["message"], sent.body):
        assert text.split() == [
            *("unhealthy", "node_lost"),
            *("failed", "silent"),
            *("late", "degraded", "missed"),
            "recovered",
        ]


def test_every_kind_of_alert_has_a_severity() -> None:
    assert set(outbox.SEVERITY) == set(AlertKind)


def test_alert_of_a_newer_release_is_sent(service: Service) -> None:
    store_alerts([message(1), message(2)])
    Alert.objects.filter(key="failed:1").update(kind="newer")
    assert send_due() == 2
    assert service.received[0]["type"] == "failure"


@pytest.mark.parametrize(
    ("kinds", "tone"),
    [
        ([AlertKind.RECOVERED], "success"),
        ([AlertKind.RECOVERED, AlertKind.MISSED], "warning"),
        ([AlertKind.DEGRADED, AlertKind.FAILED, AlertKind.RECOVERED], "failure"),
    ],
)
def test_message_has_the_tone_of_its_most_severe_alert(
    service: Service, kinds: list[AlertKind], tone: str
) -> None:
    store_alerts(Message(kind, f"{kind}:1", "subject", to=("ops",)) for kind in kinds)
    assert send_due() == len(kinds)
    assert service.received[0]["type"] == tone


def test_alert_with_the_same_key_is_sent_once(service: Service) -> None:
    for _ in range(2):
        store_alerts([message(1)])
        assert store_new_alerts([message(1)]) == 0
    assert send_due() == 1
    store_alerts([message(1)])
    assert send_due() == 0


def test_channel_interval_is_respected(service: Service, settings: Settings) -> None:
    settings.DCRON_ALERT_CHANNELS = {"ops": {"apprise": [service.url], "every": timedelta(hours=1)}}
    store_alerts([message(1)])
    assert send_due() == 1
    store_alerts([message(2), message(3)])
    assert send_due() == 0
    Alert.objects.filter(key="failed:1").update(
        sent_at=database_now("default") - timedelta(hours=2)
    )
    assert send_due() == 2
    assert len(service.received) == 2


def test_second_channel_with_the_same_url_has_its_own_interval(
    service: Service, settings: Settings
) -> None:
    channel = {"apprise": [service.url], "every": timedelta(hours=1)}
    settings.DCRON_ALERT_CHANNELS = {"ops": channel, "cluster": channel}
    store_alerts([message(1)])
    assert send_due() == 1
    store_alerts([message(2), message(3, to=("cluster",))])
    assert send_due() == 1
    assert [each["title"] for each in service.received] == [
        "[dcron] job 1 failed",
        "[dcron] job 3 failed",
    ]


def test_failing_channel_is_retried_later_and_does_not_block_others(
    service: Service, settings: Settings
) -> None:
    settings.DCRON_ALERT_CHANNELS |= {"mail": {"mail": ["ops@shop.example"]}}
    service.status = 503
    store_alerts([message(1, to=("ops", "mail"))])
    assert send_due() == 1
    assert [each.subject for each in mail.outbox] == ["[dcron] job 1 failed"]
    assert mail.outbox[0].to == ["ops@shop.example"]

    row = Alert.objects.get(channel="ops")
    assert (row.sent_at, row.tries, row.claim) == (None, 1, None)
    assert "(json)" in row.error
    assert "127.0.0.1" not in row.error, "a URL may hold secrets"
    assert row.try_at is not None
    assert row.try_at > database_now("default")
    assert send_due() == 0, "the next try isn't due yet"

    service.status = 200
    make_due()
    assert send_due() == 1
    row.refresh_from_db()
    assert (row.error, row.try_at) == ("", None)
    assert row.sent_at is not None


def test_alert_is_abandoned_after_the_last_try_and_keeps_its_error(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    service.status = 503
    store_alerts([message(1)])
    Alert.objects.update(tries=outbox.MAX_TRIES - 1)
    assert send_due() == 0
    row = Alert.objects.get()
    assert (row.try_at, row.sent_at) == (None, None)
    assert "(json)" in row.error
    assert logged(caplog, "alert_given_up", row.channel, "(json)", channel=row.channel)


@pytest.mark.parametrize(
    ("channel", "error"),
    [
        ("gone", "don't contain the channel"),
        ("chat", "manage.py check"),
        ("nobody", "no address or URL"),
    ],
)
def test_alert_for_a_channel_that_cannot_send_is_abandoned_after_the_last_try(
    service: Service,
    settings: Settings,
    caplog: pytest.LogCaptureFixture,
    channel: str,
    error: str,
) -> None:
    store_alerts([message(1, to=(channel,))])
    settings.DCRON_ALERT_CHANNELS |= {"chat": {"apprise": 8899}, "nobody": {"mail": []}}
    Alert.objects.update(tries=outbox.MAX_TRIES - 1)
    assert send_due() == 0
    row = Alert.objects.get()
    assert row.try_at is None
    assert error in row.error
    assert logged(caplog, "alert_given_up", f"channel={channel}", channel=channel)


def test_channel_without_addresses_gets_no_alerts(service: Service, settings: Settings) -> None:
    settings.DCRON_ALERT_CHANNELS |= {"nobody": {"mail": []}, "nowhere": {"apprise": []}}
    store_alerts([message(1, to=("nobody", "nowhere", "ops"))])
    assert [alert.channel for alert in Alert.objects.all()] == ["ops"]
    assert send_due() == 1


def test_alert_waits_for_a_node_whose_settings_contain_the_channel(
    service: Service, settings: Settings
) -> None:
    """During a deploy that adds a channel, a node with the old settings may see the alert first."""
    new = settings.DCRON_ALERT_CHANNELS
    store_alerts([message(1)])
    settings.DCRON_ALERT_CHANNELS = {"other": {"mail": ["ops@shop.example"]}}
    assert send_due() == 0
    make_due()
    settings.DCRON_ALERT_CHANNELS = new
    assert send_due() == 1


def test_alert_of_a_dead_sender_is_sent_by_another_sender(service: Service) -> None:
    store_alerts([message(1)])

    def dies(channel: Mapping[str, Any], subject: str, text: str, tone: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        send_due(dies)
    assert send_due() == 0, "the first sender may still be sending"
    make_due()
    assert send_due() == 1


def test_error_with_characters_that_no_database_stores_is_kept(service: Service) -> None:
    def fails(channel: Mapping[str, Any], subject: str, text: str, tone: str) -> None:
        raise OSError("no file caf\udce9\0.pem")

    store_alerts([message(1)])
    assert send_due(fails) == 0
    row = Alert.objects.get()
    assert (row.claim, row.error) == (None, "no file caf\ufffd\ufffd.pem")


def test_error_for_an_invalid_url_names_only_its_scheme(settings: Settings) -> None:
    settings.DCRON_ALERT_CHANNELS = {"ops": {"apprise": ["nosuch://secret@host"]}}
    store_alerts([message(1)])
    assert send_due() == 0
    error = Alert.objects.get().error
    assert "'nosuch'" in error
    assert "secret" not in error


@pytest.mark.django_db(transaction=True)
def test_concurrent_senders_send_each_alert_once(service: Service) -> None:
    store_alerts(message(number) for number in range(50))
    assert sum(in_threads(*[send_due] * 4)) == 50
    texts = "\n".join(each["message"] for each in service.received)
    assert texts.count("no more beans") == 50


def test_new_alert_is_not_abandoned_with_an_old_one(service: Service) -> None:
    service.status = 503
    store_alerts([message(1)])
    Alert.objects.update(tries=outbox.MAX_TRIES - 1)
    store_alerts([message(2)])
    assert send_due() == 0
    old, new = Alert.objects.order_by("pk")
    assert (old.try_at, new.tries) == (None, 1)
    assert new.try_at is not None
    assert new.try_at < database_now("default") + 2 * outbox.FIRST_WAIT, (
        "the first wait is the shortest"
    )
    service.status = 200
    make_due()
    assert send_due() == 1


def test_each_service_of_a_channel_gets_an_alert_once_even_if_another_fails(
    service: Service, settings: Settings
) -> None:
    settings.DCRON_ALERT_CHANNELS = {
        "ops": {"apprise": ["json://127.0.0.1:9/", service.url], "every": timedelta()}
    }
    store_alerts([message(1)])
    assert store_new_alerts([message(1)]) == 0
    assert send_due() == 1
    make_due()
    assert send_due() == 0
    assert len(service.received) == 1
    assert [row.sent_at is None for row in Alert.objects.order_by("pk")] == [True, False]


def test_claim_period_starts_when_the_claim_is_made(service: Service, settings: Settings) -> None:
    """A claim doesn't include the time of the previous channel's delivery, which may be slow."""
    settings.DCRON_ALERT_CHANNELS |= {"a": {"mail": ["ops@shop.example"]}}
    claims = {}

    def slow(channel: Mapping[str, Any], subject: str, text: str, tone: str) -> None:
        name = "a" if "mail" in channel else "ops"
        claims[name] = Alert.objects.get(channel=name).try_at - database_now("default")
        if name == "a":  # let time pass
            monkeypatch.setattr(
                outbox, "database_now", lambda using: database_now(using) + 2 * outbox.CLAIM_TIMEOUT
            )

    with pytest.MonkeyPatch.context() as monkeypatch:
        store_alerts([message(1, to=("a", "ops"))])
        assert send_due(slow) == 2
    assert claims["ops"] > 2 * outbox.CLAIM_TIMEOUT


def test_long_message_is_cut_but_names_as_many_jobs_as_possible(service: Service) -> None:
    store_alerts(
        Message(AlertKind.FAILED, f"{number}", f"job {number} failed", "x" * 1000, to=("ops",))
        for number in range(100)
    )
    assert send_due() == 100
    text = service.received[0]["message"]
    assert len(text) <= outbox.TEXT_LIMIT + 100
    assert text.startswith("job 0 failed\nxxx")
    assert "\n\njob 20 failed\n\n" in text
    assert "job 99 failed" in text or re.search(r"\n\n\d+ more alerts", text)
    store_alerts(
        Message(AlertKind.FAILED, f"long {number}", "y" * 255, to=("ops",)) for number in range(100)
    )
    assert send_due() == 100
    named = service.received[1]["message"].count("y" * 255)
    assert service.received[1]["message"].endswith(
        f"{100 - named} more alerts are listed in the admin"
    )


def test_single_alert_that_is_left_out_is_counted_in_the_singular(service: Service) -> None:
    store_alerts(
        Message(AlertKind.FAILED, f"{number}", "y" * 255, "x" * 3000, to=("ops",))
        for number in range(2)
    )
    assert send_due() == 2
    assert service.received[0]["message"].endswith("\n\n1 more alert is listed in the admin")


def test_message_is_cut_to_the_limit_of_the_service(
    service: Service, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apprise.plugins.custom_json.NotifyJSON.body_maxlen", 100)
    store_alerts([Message(AlertKind.FAILED, "1", "job 1 failed", "x" * 1000, to=("ops",))])
    assert send_due() == 1
    assert len(service.received[0]["message"]) <= 100


def test_alerts_wait_while_another_sender_uses_the_channel(service: Service) -> None:
    store_alerts([message(1)])
    meanwhile = []

    def send(channel: Mapping[str, Any], subject: str, text: str, tone: str) -> None:
        store_alerts([message(2)])
        meanwhile.append(send_due())

    assert send_due(send) == 1
    assert meanwhile == [0]
    assert service.received == []
    assert send_due() == 1


def test_new_alert_waits_for_the_next_try_after_a_failure(service: Service) -> None:
    service.status = 503
    store_alerts([message(1)])
    send_due()
    store_alerts([message(2)])
    assert send_due() == 0
    assert list(Alert.objects.order_by("pk").values_list("tries", flat=True)) == [1, 0]


def test_lookup_of_keys_uses_the_index(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    store_alerts([message(1)])
    with django_assert_num_queries(1) as captured:
        store_new_alerts([message(1)])
    assert "channel" in captured.captured_queries[0]["sql"].partition("WHERE")[2]


def test_mail_has_a_one_line_subject_and_a_timeout(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.core.mail.backends import locmem

    monkeypatch.setattr(locmem.EmailBackend, "timeout", None, raising=False)
    sent = []
    monkeypatch.setattr(
        locmem.EmailBackend,
        "send_messages",
        lambda self, messages: sent.append((self.timeout, messages[0].subject)) or len(messages),
    )
    channels.send({"mail": ["ops@shop.example"]}, "job\r\nBcc: all@shop.example failed", "text")
    assert sent == [(channels.SEND_TIMEOUT, "[dcron] job Bcc: all@shop.example failed")]


def test_old_alerts_are_deleted_in_batches(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "PRUNE_BATCH_SIZE", 2)
    store_alerts(message(number) for number in range(3))
    send_due()
    Alert.objects.update(created_at=database_now("default") - timedelta(days=60))
    assert not prune_alerts()
    assert prune_alerts()
    assert not Alert.objects.exists()


def test_old_pending_alerts_are_not_deleted(service: Service) -> None:
    store_alerts([message(1)])
    send_due()
    store_alerts([message(2)])
    long_ago = database_now("default") - timedelta(days=60)
    Alert.objects.update(created_at=long_ago)
    assert prune_alerts()
    assert Alert.objects.get().key == "failed:2"
