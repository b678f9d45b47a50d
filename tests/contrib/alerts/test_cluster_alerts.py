"""Test alerts about nodes, and that a failure to alert doesn't affect the node."""

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from time import monotonic
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections
from pytest_django import Settings

from django_dcron import node
from django_dcron.conf import settings as dcron
from django_dcron.contrib.alerts.alerter import Alerter
from django_dcron.contrib.alerts.outbox import KEPT
from django_dcron.db.now import database_now
from django_dcron.diagnosis.system_health import read_verdict
from django_dcron.models import Alert, Node
from django_dcron.policies.health.facts import Named, SystemFacts
from django_dcron.policies.health.verdict import assess
from django_dcron.scheduler.watchdog import Watchdog
from tests.contrib.alerts.conftest import Service
from tests.contrib.alerts.test_job_alerts import Leader
from tests.logs import logged
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db


def make_node(name: str, silent_for: timedelta) -> Node:
    now = database_now("default")
    return Node.objects.create(
        id=f"{name}-1",
        name=name,
        host="host",
        pid=7,
        release="1",
        started_at=now,
        heartbeat_at=now - silent_for,
    )


def look_for_a_lease(
    monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object] = lambda: None
) -> None:
    alerter = Alerter(Leader())
    alerter.look()
    meanwhile()
    later = monotonic() + dcron.LEASE.total_seconds()
    with monkeypatch.context() as patched:
        patched.setattr("django_dcron.contrib.alerts.cluster_alerts.monotonic", lambda: later)
        alerter.look()


def test_a_node_that_vanished_is_reported_once(
    service: Service, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DCRON_ALERTS = [{"on": "node_lost", "to": ["ops"]}]
    make_node("well", timedelta())
    make_node(
        "slow", settings.DCRON_LEASE if hasattr(settings, "DCRON_LEASE") else timedelta(seconds=7)
    )
    make_node("gone", timedelta(hours=1))
    for _ in range(2):
        look_for_a_lease(monkeypatch)
    assert service.subjects == ["[dcron] node gone is lost"]
    assert "process 7" in service.received[0]["message"]


def test_nobody_is_lost_for_the_database_was_away(
    service: Service, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DCRON_ALERTS = [{"on": "node_lost", "to": ["ops"]}]
    make_node("well", timedelta(minutes=5))
    look_for_a_lease(
        monkeypatch,
        meanwhile=lambda: Node.objects.update(heartbeat_at=database_now("default") - dcron.LEASE),
    )
    assert service.received == []


def test_a_node_that_came_back_and_vanished_again_is_reported_again(
    service: Service, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DCRON_ALERTS = [{"on": "node_lost", "to": ["ops"]}]
    node = make_node("frozen", timedelta(hours=1))
    look_for_a_lease(monkeypatch)
    Node.objects.filter(pk=node.pk).update(
        heartbeat_at=database_now("default") - timedelta(minutes=10)
    )
    look_for_a_lease(monkeypatch)
    assert service.subjects == ["[dcron] node frozen is lost"] * 2


def test_a_row_that_nobody_has_cleared_away_is_not_reported_for_ever(
    service: Service, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DCRON_ALERTS = [{"on": "node_lost", "to": ["ops"]}]
    node = make_node("gone", KEPT - timedelta(minutes=1))
    look_for_a_lease(monkeypatch)
    assert len(service.received) == 1
    Node.objects.filter(pk=node.pk).update(heartbeat_at=database_now("default") - KEPT)
    Alert.objects.all().delete()  # as the cleanup of old alerts would
    look_for_a_lease(monkeypatch)
    assert len(service.received) == 1


def test_a_degraded_node_tells_of_itself_once_it_lasts(
    service: Service, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DCRON_ALERTS = [{"on": "degraded", "to": ["ops"]}]
    leader = Leader()
    alerter = Alerter(leader)
    leader.degraded = True
    alerter.look()
    assert service.received == [], "it may pass"
    monkeypatch.setattr("django_dcron.contrib.alerts.cluster_alerts.A_WHILE", timedelta())
    alerter.look()
    alerter.look()
    assert service.subjects == ["[dcron] node here is degraded"]


def test_an_error_of_the_health_verdict_is_reported_once_while_it_lasts(
    service: Service, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DCRON_ALERTS = [{"on": "unhealthy", "to": ["ops"]}]
    settings.DCRON_SITE_URL = "https://shop.example"
    monkeypatch.setattr("django_dcron.contrib.alerts.alerter.HEALTH_EVERY", 0)
    now = database_now("default")
    well = SystemFacts(now, timedelta(minutes=1), enabled_jobs=1, live_nodes=1)
    facts = {"now": well}
    leader, other = Leader(), Leader()
    other.shards -= {0}
    alerters = [Alerter(each, lambda: assess(facts["now"])) for each in (leader, other)]

    def look(*, after: timedelta = timedelta()) -> None:
        monkeypatch.setattr(
            "django_dcron.contrib.alerts.alerter.database_now", lambda using: now + after
        )
        for alerter in alerters:
            alerter.look()

    look()
    facts["now"] = replace(well, degraded=Named(1, ("node-a",)), unserved=Named(1, ("billing",)))
    look(after=timedelta(seconds=1))
    assert service.received == [], "it may pass"
    look(after=timedelta(seconds=11))
    look(after=timedelta(seconds=30))
    assert service.subjects == [
        "[dcron] Namespaces with enabled jobs but no running node: billing."
    ]
    assert "manage.py runcron" in service.received[0]["message"]
    assert "https://shop.example/admin/django_dcron/dashboard/" in service.received[0]["message"]

    facts["now"] = well
    look(after=timedelta(minutes=1))
    facts["now"] = replace(well, unserved=Named(1, ("billing",)))
    look(after=timedelta(minutes=2))
    look(after=timedelta(minutes=3))
    assert len(service.received) == 2, "a new outbreak"


def test_runcron_gives_its_node_the_health_verdict(
    monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    settings.DCRON_ALERT_CHANNELS = {"ops": {"mail": ["ops@shop.example"]}}
    given: dict[str, Any] = {}

    def make(**options: object) -> None:
        given.update(options)
        raise ZeroDivisionError("that is all")

    monkeypatch.setattr(node, "Runner", make)
    with pytest.raises(ZeroDivisionError):
        call_command("runcron", "--once")
    make_alerter = given["make_alerter"]
    assert (make_alerter.func, make_alerter.keywords) == (Alerter, {"read_verdict": read_verdict})


def test_a_node_that_has_no_verdict_tells_of_none(
    service: Service, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DCRON_ALERTS = [{"on": "unhealthy", "to": ["ops"]}]
    Alerter(Leader()).look()
    assert service.received == []


def test_rules_that_cannot_be_read_are_no_rules(
    service: Service, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    settings.DCRON_ALERTS = [{"on": "nothing"}]
    Alerter(Leader()).look()
    assert logged(caplog, "alert_rules", "DCRON_ALERTS", "rule 1: ", "'nothing'")


def test_no_error_ends_the_thread_and_it_is_reported_once(
    service: Service,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("django_dcron.contrib.alerts.alerter.LOOK_EVERY", 0.001)
    alerter, stopping = Alerter(Leader()), threading.Event()
    looks = []

    def fails() -> None:
        looks.append(1)
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(alerter, "notice", fails)

    def live() -> None:
        try:
            alerter.run(stopping, Watchdog("here", monotonic), "alerts")
        finally:
            connections.close_all()

    thread = threading.Thread(target=live)
    thread.start()
    try:
        wait_until(lambda: len(looks) > 3)
    finally:
        stopping.set()
        thread.join(10)
    assert not thread.is_alive()
    assert len(logged(caplog, "alerts_late", "=here ", "a bug")) == 1
    assert not Alert.objects.exists()
