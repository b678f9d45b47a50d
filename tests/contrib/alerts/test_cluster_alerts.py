"""Test alerts about nodes, and that a failure to alert doesn't affect the node."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from time import monotonic
from typing import Any

import pytest
from django.core.management import call_command
from django.db import OperationalError, connections
from pytest_django import Settings

from django_dcron import node
from django_dcron.conf import settings as dcron
from django_dcron.contrib.alerts.alerter import Alerter
from django_dcron.contrib.alerts.cluster_alerts import _error_alerts
from django_dcron.contrib.alerts.messages import node_loss_message
from django_dcron.contrib.alerts.outbox import RETENTION
from django_dcron.db import clock
from django_dcron.db.now import database_now
from django_dcron.diagnosis.system_health import read_verdict
from django_dcron.models import Alert, Node
from django_dcron.policies.health.facts import NamedCount, SystemFacts
from django_dcron.policies.health.verdict import assess
from django_dcron.policies.outages import FailedHeartbeat, Outage
from django_dcron.scheduler.watchdog import Watchdog
from django_dcron.utils.time_format import format_site_time
from tests.contrib.alerts.conftest import Service
from tests.contrib.alerts.test_job_alerts import Leader
from tests.factories import make_node
from tests.logs import logged
from tests.waiting import TIMEOUT, wait_until

pytestmark = pytest.mark.django_db


@pytest.fixture
def fixed_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the age of heartbeats constant, however long a test takes."""
    monkeypatch.setattr(clock, "fixed_at", database_now("default"))


def check_twice_a_lease_apart(
    monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object] = lambda: None
) -> None:
    alerter = Alerter(Leader())
    alerter.check_and_send()
    meanwhile()
    later = monotonic() + dcron.LEASE.total_seconds()
    with monkeypatch.context() as patched:
        patched.setattr("django_dcron.contrib.alerts.cluster_alerts.monotonic", lambda: later)
        alerter.check_and_send()


@pytest.mark.usefixtures("fixed_clock")
def test_lost_node_is_reported_once(
    service: Service, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DCRON_ALERTS = [{"on": "node_lost", "to": ["ops"]}]
    settings.DCRON_SITE_URL = "https://shop.example"
    make_node("well")
    make_node("slow", dcron.LEASE)
    make_node("gone", timedelta(hours=1))
    for _ in range(2):
        check_twice_a_lease_apart(monkeypatch)
    assert service.subjects == ["[dcron shop.example] node gone is lost"]
    message = service.received[0]["message"]
    assert "process 7" in message
    assert "serve all namespaces: 1." in message
    assert message.endswith("https://shop.example/admin/django_dcron/node/")


@pytest.mark.parametrize(
    ("namespace", "text"), [("sales", "serve sales: 2."), ("billing", "serve billing: 1.")]
)
@pytest.mark.usefixtures("fixed_clock")
def test_alert_about_a_lost_node_counts_the_nodes_that_take_over(namespace: str, text: str) -> None:
    make_node("all")
    lost = make_node("gone", timedelta(hours=1))
    make_node("sales", namespace="sales")
    lost.namespace = namespace
    written = node_loss_message(lost).text
    assert callable(written)
    assert text.replace("serve ", "serve namespace ") in written()
    Node.objects.filter(namespace="").delete()
    assert ("No live node is left" in written()) is (namespace == "billing")


@pytest.mark.usefixtures("fixed_clock")
def test_nodes_are_not_lost_after_a_database_outage(
    service: Service, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DCRON_ALERTS = [{"on": "node_lost", "to": ["ops"]}]
    make_node("well", timedelta(minutes=5))
    check_twice_a_lease_apart(
        monkeypatch,
        meanwhile=lambda: Node.objects.update(heartbeat_at=database_now("default") - dcron.LEASE),
    )
    assert service.received == []


@pytest.mark.usefixtures("fixed_clock")
def test_node_lost_again_is_reported_again(
    service: Service, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DCRON_ALERTS = [{"on": "node_lost", "to": ["ops"]}]
    node = make_node("suspended", timedelta(hours=1))
    check_twice_a_lease_apart(monkeypatch)
    Node.objects.filter(pk=node.pk).update(
        heartbeat_at=database_now("default") - timedelta(minutes=10)
    )
    check_twice_a_lease_apart(monkeypatch)
    assert service.subjects == ["[dcron] node suspended is lost"] * 2


def test_old_node_row_is_not_reported_again(
    service: Service, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DCRON_ALERTS = [{"on": "node_lost", "to": ["ops"]}]
    node = make_node("gone", RETENTION - timedelta(minutes=1))
    check_twice_a_lease_apart(monkeypatch)
    assert len(service.received) == 1
    Node.objects.filter(pk=node.pk).update(heartbeat_at=database_now("default") - RETENTION)
    Alert.objects.all().delete()  # as the cleanup of old alerts would
    check_twice_a_lease_apart(monkeypatch)
    assert len(service.received) == 1


def test_node_degraded_for_a_while_is_reported_once(
    service: Service, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DCRON_ALERTS = [{"on": "degraded", "to": ["ops"]}]
    leader = Leader()
    alerter = Alerter(leader)
    leader.degraded = True
    alerter.check_and_send()
    assert service.received == [], "the problem may be temporary"
    monkeypatch.setattr("django_dcron.contrib.alerts.cluster_alerts.MIN_DURATION", timedelta())
    alerter.check_and_send()
    alerter.check_and_send()
    assert service.subjects == ["[dcron] node here is degraded"]


def test_lasting_health_error_is_reported_once(
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

    def check_at(*, after: timedelta = timedelta()) -> None:
        monkeypatch.setattr(
            "django_dcron.contrib.alerts.alerter.database_now", lambda using: now + after
        )
        for alerter in alerters:
            alerter.check_and_send()

    check_at()
    facts["now"] = replace(
        well, degraded=NamedCount(1, ("node-a",)), unserved=NamedCount(1, ("billing",))
    )
    check_at(after=timedelta(seconds=1))
    assert service.received == [], "the problem may be temporary"
    check_at(after=timedelta(seconds=11))
    check_at(after=timedelta(seconds=30))
    assert service.subjects == [
        "[dcron shop.example] Namespaces with enabled jobs but no running node: billing."
    ]
    assert "manage.py runcron" in service.received[0]["message"]
    assert "https://shop.example/admin/django_dcron/dashboard/" in service.received[0]["message"]

    facts["now"] = well
    check_at(after=timedelta(minutes=1))
    facts["now"] = replace(well, unserved=NamedCount(1, ("billing",)))
    check_at(after=timedelta(minutes=2))
    check_at(after=timedelta(minutes=3))
    assert len(service.received) == 2, "the error occurred again"


def test_end_of_health_errors_is_reported_once(
    service: Service, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DCRON_ALERT_CHANNELS |= {"mail": {"mail": ["a@shop.example"]}}
    settings.DCRON_ALERTS = [
        {"on": "unhealthy", "to": ["ops"]},
        {"on": "recovered", "to": ["mail", "ops"], "after": 3},
    ]
    settings.DCRON_SITE_URL = "https://shop.example"
    monkeypatch.setattr("django_dcron.contrib.alerts.alerter.HEALTH_EVERY", 0)
    now = database_now("default")
    well = SystemFacts(now, timedelta(minutes=1), enabled_jobs=1, live_nodes=1)
    ill = replace(well, unserved=NamedCount(1, ("billing",)))
    current = {"facts": well, "alerter": Alerter(Leader())}

    def restart() -> None:
        current["alerter"] = Alerter(Leader(), lambda: assess(current["facts"]))

    def check_at(seconds: int, facts: SystemFacts) -> list[str]:
        current["facts"], before = facts, len(service.received)
        monkeypatch.setattr(
            "django_dcron.contrib.alerts.alerter.database_now",
            lambda using: now + timedelta(seconds=seconds),
        )
        current["alerter"].check_and_send()
        return service.subjects[before:]

    restart()
    error = "[dcron shop.example] Namespaces with enabled jobs but no running node: billing."
    recovery = "[dcron shop.example] the cluster has recovered"
    assert check_at(0, well) == check_at(100, well) == [], "no error was reported"
    assert check_at(200, ill) == []
    assert check_at(220, ill) == [error]
    assert check_at(240, well) == check_at(290, well) == [], "the errors may return"
    assert check_at(295, ill) == []
    assert check_at(300, well) == check_at(355, well) == []
    restart()
    assert check_at(400, well) == check_at(455, well) == []
    assert check_at(460, well) == [recovery]
    message = service.received[-1]["message"]
    assert "no running node: billing" in message
    assert message.endswith("https://shop.example/admin/django_dcron/dashboard/")
    restart()
    assert check_at(500, well) == check_at(600, well) == [], "it is reported already"
    assert check_at(700, ill) == []
    assert check_at(720, ill) == [error]
    assert check_at(730, well) == []
    assert check_at(790, well) == [recovery]
    assert not Alert.objects.filter(channel="mail").exists(), "it got no alert about the error"


def test_end_of_errors_is_not_reported_to_a_channel_that_was_added_later(
    service: Service, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DCRON_ALERT_CHANNELS |= {"mail": {"mail": ["a@shop.example"]}}
    settings.DCRON_ALERTS = [{"on": "unhealthy", "to": ["ops"]}]
    monkeypatch.setattr("django_dcron.contrib.alerts.cluster_alerts.MIN_DURATION", timedelta())
    monkeypatch.setattr("django_dcron.contrib.alerts.cluster_alerts.RECOVERED_AFTER", timedelta())
    monkeypatch.setattr("django_dcron.contrib.alerts.alerter.HEALTH_EVERY", 0)
    well = SystemFacts(database_now("default"), timedelta(minutes=1), enabled_jobs=1, live_nodes=1)
    Alerter(Leader(), lambda: assess(replace(well, live_nodes=0))).check_and_send()
    settings.DCRON_ALERTS = [
        {"on": "unhealthy", "to": ["mail", "ops"]},
        {"on": "recovered", "to": ["mail", "ops"]},
    ]
    Alerter(Leader(), lambda: assess(well)).check_and_send()
    channels = Alert.objects.filter(kind="recovered").values_list("channel", flat=True)
    assert list(channels) == ["ops"]


@pytest.mark.sqlite
def test_last_alert_about_an_error_is_found_by_an_index() -> None:
    assert "dcron_alert_kind" in _error_alerts()[:1].explain()


def test_end_of_health_errors_needs_a_rule(
    service: Service, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DCRON_ALERTS = [{"on": "unhealthy", "to": ["ops"]}]
    monkeypatch.setattr("django_dcron.contrib.alerts.cluster_alerts.MIN_DURATION", timedelta())
    monkeypatch.setattr("django_dcron.contrib.alerts.cluster_alerts.RECOVERED_AFTER", timedelta())
    monkeypatch.setattr("django_dcron.contrib.alerts.alerter.HEALTH_EVERY", 0)
    well = SystemFacts(database_now("default"), timedelta(minutes=1), enabled_jobs=1, live_nodes=1)
    verdicts = [assess(replace(well, live_nodes=0)), assess(well)]
    alerter = Alerter(Leader(), lambda: verdicts.pop(0))
    alerter.check_and_send()
    alerter.check_and_send()
    assert len(service.received) == 1


def test_outage_is_reported_once_and_then_its_end(
    service: Service, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DCRON_ALERTS = [{"on": kind, "to": ["ops"]} for kind in ("unhealthy", "recovered")]
    settings.DCRON_SITE_URL = "https://shop.example"
    monkeypatch.setattr("django_dcron.contrib.alerts.alerter.HEALTH_EVERY", 0)
    now = database_now("default").replace(microsecond=0)
    well = assess(SystemFacts(now, timedelta(minutes=1), enabled_jobs=1, live_nodes=1))
    leaders = [Leader(), Leader()]
    leaders[0].shards -= {0}
    alerters = [Alerter(leader, lambda: well) for leader in leaders]

    def check_at(after: timedelta) -> list[str]:
        before = len(service.received)
        monkeypatch.setattr(
            "django_dcron.contrib.alerts.alerter.database_now", lambda using: now + after
        )
        for alerter in alerters:
            alerter.check_and_send()
        return service.subjects[before:]

    minute = timedelta(minutes=1)
    assert check_at(timedelta()) == check_at(minute) == []
    failure = FailedHeartbeat(now + 2 * minute, "no route")
    for leader, found in zip(leaders, (failure, None), strict=True):
        leader.outages.append(Outage(now + minute, now + 16.5 * minute, found))
    (subject,) = check_at(17 * minute)
    assert subject == (
        "[dcron shop.example] nothing was scheduled for 15m 30s: "
        f"from {format_site_time(now + minute)} to {format_site_time(now + 16.5 * minute)}"
    )
    lines = service.received[0]["message"].splitlines()
    assert lines[0].endswith(f"from {format_site_time(now + 2 * minute)} on: no route")
    assert "Missed runs: https://shop.example/admin/django_dcron/run/?state__exact=missed" in lines
    assert [leader.outages for leader in leaders] == [deque(), deque()]
    assert check_at(17.5 * minute) == []
    assert check_at(18 * minute) == ["[dcron shop.example] the cluster has recovered"]
    assert "nothing was scheduled for 15m 30s" in service.received[1]["message"]


@pytest.mark.parametrize("finder", [0, 1])
def test_end_of_an_outage_is_reported_although_no_check_was_late(
    service: Service, settings: Settings, monkeypatch: pytest.MonkeyPatch, finder: int
) -> None:
    settings.DCRON_ALERTS = [{"on": kind, "to": ["ops"]} for kind in ("unhealthy", "recovered")]
    monkeypatch.setattr("django_dcron.contrib.alerts.alerter.HEALTH_EVERY", 0)
    now = database_now("default").replace(microsecond=0)
    well = assess(SystemFacts(now, timedelta(minutes=1), enabled_jobs=1, live_nodes=1))
    leaders = [Leader(), Leader()]
    leaders[1].shards -= {0}
    alerters = [Alerter(leader, lambda: well) for leader in leaders]

    def check_at(seconds: int) -> list[str]:
        before, at = len(service.received), now + timedelta(seconds=seconds)
        for module in ("alerter", "outbox"):
            name = f"django_dcron.contrib.alerts.{module}.database_now"
            monkeypatch.setattr(name, lambda using: at)
        for alerter in alerters:
            alerter.check_and_send()
        return service.subjects[before:]

    assert check_at(0) == check_at(60) == check_at(68) == []
    leaders[finder].outages.append(
        Outage(now + timedelta(seconds=62), now + timedelta(seconds=125))
    )
    (subject,) = check_at(126)
    assert "nothing was scheduled for 1m 03s" in subject
    assert check_at(141) == check_at(185) == []
    assert check_at(186) == ["[dcron] the cluster has recovered"]
    assert format_site_time(now + timedelta(seconds=126)) in service.received[1]["message"]
    assert check_at(246) == []


def test_outage_is_reported_once_the_database_accepts_the_alert(
    service: Service, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DCRON_ALERTS = [{"on": "unhealthy", "to": ["ops"]}]
    leader, now = Leader(), database_now("default")
    leader.outages += [Outage(now - timedelta(hours=hours), now) for hours in (2, 1)]
    alerter = Alerter(leader)

    def fail(*args: Any) -> None:
        raise OperationalError("gone")

    with connections["default"].execute_wrapper(fail), pytest.raises(OperationalError):
        alerter.check()
    alerter.check_and_send()
    assert "No node wrote a heartbeat" in service.received[0]["message"]
    assert Alert.objects.filter(kind="unhealthy").count() == 2


def test_runcron_passes_read_verdict_to_the_alerter(
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


def test_alerter_without_verdict_reports_no_health_errors(
    service: Service, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DCRON_ALERTS = [{"on": "unhealthy", "to": ["ops"]}]
    Alerter(Leader()).check_and_send()
    assert service.received == []


def test_invalid_rules_are_logged_and_ignored(
    service: Service, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    settings.DCRON_ALERTS = [{"on": "faild"}]
    Alerter(Leader()).check_and_send()
    assert logged(caplog, "alert_rules", "DCRON_ALERTS", "rule 1: ", "'faild'")


@pytest.mark.parametrize(
    ("error", "has_traceback"),
    [(ZeroDivisionError("a bug"), True), (OperationalError("no database"), False)],
)
def test_alerter_thread_survives_errors_and_logs_them_once(
    error: Exception,
    has_traceback: bool,
    service: Service,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("django_dcron.contrib.alerts.alerter.CHECK_EVERY", 0.001)
    alerter, stopping = Alerter(Leader()), threading.Event()
    checks = []

    def fails() -> None:
        checks.append(1)
        raise error

    monkeypatch.setattr(alerter, "check", fails)

    def live() -> None:
        try:
            alerter.run(stopping, Watchdog("here", monotonic), "alerts")
        finally:
            connections.close_all()

    thread = threading.Thread(target=live)
    thread.start()
    try:
        wait_until(lambda: len(checks) > 3)
    finally:
        stopping.set()
        thread.join(TIMEOUT)
    assert not thread.is_alive()
    assert len(logged(caplog, "alerts_late", "=here ", str(error))) == 1
    (record,) = [record for record in caplog.records if "alerts delayed" in record.msg]
    assert bool(record.exc_info) is has_traceback
    assert not Alert.objects.exists()
