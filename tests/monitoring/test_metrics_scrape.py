"""Test scrapes of a node, of Django and of a project's own registry.

They also work without the metrics extra and with an unreachable database.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from http.client import HTTPConnection
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError, connection, connections
from django.test import Client
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families as text_families
from pytest_django import Settings

from django_dcron.models import Run
from django_dcron.models.statistics import count_ended_runs
from django_dcron.monitoring.metrics import Collector, NodeMetrics, readings, views
from django_dcron.monitoring.metrics.catalog import METRICS, MetricSource
from django_dcron.monitoring.metrics.readings import BackgroundReading, DirectReading
from django_dcron.policies.lifecycle import State
from django_dcron.scheduler.health import NodeHealth, judge
from tests import services
from tests.conftest import StartProcess
from tests.factories import make_idle_job, make_job
from tests.scheduler.test_health import WELL
from tests.waiting import TIMEOUT, wait_until

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"


def values(body: bytes) -> dict[str, float]:
    """Return the sum of the samples, by name."""
    found: dict[str, float] = {}
    for family in text_families(body.decode()):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0) + sample.value
    return found


def health(**fields: Any) -> NodeHealth:
    facts = {
        "name": 'a"b\\c',
        "shards": 3,
        "leases": 2,
        "lag": 0.5,
        "lock_degraded": True,
        "skew": -0.25,
    }
    return judge(replace(WELL, **facts | fields), 60)  # type: ignore[arg-type]


def node_metrics(read: Callable[[], Any] | None = None) -> NodeMetrics:
    metrics = NodeMetrics(health, "", frozenset)
    if read:
        metrics._reading = BackgroundReading(read)
    return metrics


def raise_unreachable() -> None:
    raise OperationalError("unreachable")


# --- node -----------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_node_exposes_every_metric_once(settings: Settings) -> None:
    make_idle_job()
    metrics = node_metrics()
    samples = metrics.samples()

    assert {sample.metric for sample in samples} == set(METRICS)
    assert len({(sample.metric.name, sample.labels) for sample in samples}) == len(samples)
    shown = values(metrics.response().body)
    assert shown["dcron_node_shards"] == 3
    assert shown["dcron_node_leases"] == 2
    assert shown["dcron_node_lag_seconds"] == 0.5
    assert shown["dcron_node_skew_seconds"] == -0.25
    assert shown["dcron_node_degraded"] == 1
    assert shown["dcron_node_broker_unreachable"] == shown["dcron_node_database_unreachable"] == 0
    assert shown["dcron_node_status"] == 1
    assert shown["dcron_database_up"] == 1
    assert shown["dcron_runs_total"] == 0


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "accept", ["application/openmetrics-text;version=x", "text/plain;version=1.x"]
)
def test_invalid_format_version_gets_default_format(accept: str) -> None:
    """prometheus-client raises an error for such a version."""
    assert node_metrics().response(accept)[:2] == node_metrics().response("")[:2]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("accept", ["", "text/plain", "*/*", OPENMETRICS])
def test_both_formats_are_valid(accept: str) -> None:
    count_ended_runs([make_idle_job(namespace="a@b").pk], State.FAILED, 7)
    response = node_metrics().response(accept)

    openmetrics = accept == OPENMETRICS
    assert response.status == 200
    assert response.content_type.startswith(
        "application/openmetrics-text" if openmetrics else "text/plain"
    )
    families = list(
        (openmetrics_families if openmetrics else text_families)(response.body.decode())
    )
    by_name = {family.name: family for family in families}
    assert len(by_name) == len(families) == len(METRICS)
    assert {sample.labels["outcome"]: sample.value for sample in by_name["dcron_runs"].samples}[
        "failed"
    ] == 7
    for metric in METRICS:
        name = metric.name.removesuffix("_total").removesuffix("_info")
        family = by_name[name] if openmetrics or metric.type != "info" else by_name[metric.name]
        assert family.documentation == metric.help
        assert family.type == (metric.type if openmetrics or metric.type != "info" else "gauge")
        for sample in family.samples:
            assert sample.labels.keys() - {"le"} == set(metric.labels)


def test_node_name_with_quotes_is_escaped() -> None:
    body = node_metrics(raise_unreachable).response().body.decode()
    (info,) = [family for family in text_families(body) if family.name == "dcron_node_info"]
    assert info.samples[0].labels["node_name"] == 'a"b\\c'


def test_node_without_database_exposes_its_own_metrics() -> None:
    shown = values(node_metrics(raise_unreachable).response().body)

    assert shown["dcron_database_up"] == 0
    wanted = {metric.name for metric in METRICS if metric.source is not MetricSource.CLUSTER}
    names = {
        name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in shown
    }
    assert names == wanted


def test_scrape_does_not_wait_for_stalled_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readings, "BUDGET", 0.05)
    answered = threading.Event()
    reading: BackgroundReading[str] = BackgroundReading(lambda: str(answered.wait(TIMEOUT)))

    threads = threading.active_count()
    assert [reading.get() for _ in range(20)] == [None] * 20
    assert threading.active_count() <= threads + 1
    flight = reading._query
    assert flight is not None
    waits: list[float | None] = []
    monkeypatch.setattr(flight._ended, "wait", lambda seconds: waits.append(seconds))
    reading.get()
    assert waits == [0], "after a timeout, later scrapes don't wait"
    monkeypatch.undo()
    answered.set()
    assert wait_until(reading.get) == "True"


def test_concurrent_scrapes_share_one_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readings, "BUDGET", 60)
    monkeypatch.setattr(readings, "FRESH", 3600)
    read: list[str] = []
    go = threading.Event()

    def slowly() -> str:
        go.wait(TIMEOUT)
        read.append("read")
        return "value"

    reading = BackgroundReading(slowly)
    got: list[str | None] = []
    threads = [threading.Thread(target=lambda: got.append(reading.get())) for _ in range(5)]
    for thread in threads:
        thread.start()
    go.set()
    for thread in threads:
        thread.join(TIMEOUT)
    assert reading.get() == "value"
    assert (got, read) == (["value"] * 5, ["read"])

    monkeypatch.setattr(readings, "FRESH", 0)
    assert reading.get() == "value"
    assert read == ["read"] * 2


@pytest.mark.django_db(transaction=True)
def test_lost_connection_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a thread of the project's own registry, no request begins or ends.

    Django therefore doesn't close an unusable connection there.
    """
    monkeypatch.setattr(readings, "FRESH", 0.0)
    collector = Collector()
    assert collector.samples()[0].value
    connection.connection.close()
    assert [sample.value for sample in collector.samples()] == [False]
    assert collector.samples()[0].value


@pytest.mark.parametrize("kind", [BackgroundReading, DirectReading])
def test_database_error_is_hidden_but_other_errors_are_raised(
    kind: type[BackgroundReading[Any]] | type[DirectReading[Any]],
) -> None:
    def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        kind(broken).get()
    assert kind(raise_unreachable).get() is None


def test_reading_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    reading = DirectReading(lambda: read.append(1))
    for _ in range(3):
        reading.get()
    assert len(read) == 1
    monkeypatch.setattr(readings, "FRESH", 0)
    DirectReading(lambda: read.append(1)).get()
    assert len(read) == 2


@pytest.mark.django_db(transaction=True)
def test_scrape_closes_its_connection() -> None:
    def read() -> Any:
        of_the_thread = connections["default"]
        of_the_thread.ensure_connection()
        assert of_the_thread.connection is not None
        return of_the_thread

    used = BackgroundReading(read).get()
    assert used is not connections["default"]
    assert used.connection is None


# --- Django ---------------------------------------------------------------------------------------


@pytest.fixture
def scrape(client: Client, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setattr(views, "_collector", Collector())
    return lambda **headers: client.get("/probes/metrics", headers=headers)


@pytest.mark.django_db
def test_view_requires_token_or_staff_with_permission(
    scrape: Callable[..., Any], settings: Settings, client: Client
) -> None:
    make_idle_job(name="secret-project")
    user = User.objects.create_user("u", is_staff=True)

    def is_closed(**headers: str) -> bool:
        response = scrape(**headers)
        assert b"secret-project" not in response.content or response.status_code == 200
        assert response.status_code in (200, 403)
        return bool(response.status_code == 403)

    assert is_closed()
    assert is_closed(authorization="Bearer ")
    assert is_closed(authorization="Bearer None")
    client.force_login(user)
    assert is_closed()
    user.user_permissions.add(Permission.objects.get(codename="view_job"))
    assert not is_closed()
    User.objects.update(is_staff=False)
    assert is_closed()
    client.logout()
    settings.DCRON_METRICS_TOKEN = "s3cret-ü"
    assert is_closed()
    assert is_closed(authorization="Bearer s3cret")
    assert is_closed(authorization="Basic s3cret-ü")
    assert not is_closed(authorization="Bearer s3cret-ü")
    assert not is_closed(authorization="bearer s3cret-ü")


@pytest.mark.django_db
def test_view_exposes_cluster_metrics_only(scrape: Callable[..., Any], settings: Settings) -> None:
    settings.DCRON_METRICS_TOKEN = "t"
    count_ended_runs([make_idle_job().pk], State.SUCCEEDED, 3)
    response = scrape(authorization="Bearer t", accept=OPENMETRICS)

    assert response.status_code == 200
    assert response["Content-Type"].startswith("application/openmetrics-text")
    shown = values(scrape(authorization="Bearer t").content)
    wanted = {
        metric.name
        for metric in METRICS
        if metric.source in (MetricSource.CLUSTER, MetricSource.SCRAPE)
    }
    assert shown.keys() == wanted
    assert shown["dcron_runs_total"] == 3


@pytest.mark.django_db
def test_view_reports_unreachable_database(
    scrape: Callable[..., Any], settings: Settings, monkeypatch: pytest.MonkeyPatch, client: Client
) -> None:
    settings.DCRON_METRICS_TOKEN = "t"
    monkeypatch.setattr(views._collector, "_reading", DirectReading(raise_unreachable))
    with connection.execute_wrapper(lambda *_: raise_unreachable()):
        response = scrape(authorization="Bearer t")
        assert (response.status_code, values(response.content)) == (200, {"dcron_database_up": 0})
        client.cookies["sessionid"] = 32 * "a"
        assert scrape().status_code == 403


@pytest.mark.django_db
def test_collector_can_be_registered_in_own_registry(django_assert_num_queries: Any) -> None:
    registry = CollectorRegistry(auto_describe=True)
    with django_assert_num_queries(0):
        registry.register(Collector())
    count_ended_runs([make_idle_job(name="mine").pk], State.FAILED)

    names = {sample.name for family in registry.collect() for sample in family.samples}
    assert names == {
        metric.name
        for metric in METRICS
        if metric.source in (MetricSource.CLUSTER, MetricSource.SCRAPE)
    }


# --- without the extra ----------------------------------------------------------------------------


@pytest.fixture
def without_prometheus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    families = "django_dcron.monitoring.metrics.families"
    monkeypatch.delitem(sys.modules, families, raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "prometheus_client"]:
        monkeypatch.setitem(sys.modules, name, None)
    yield
    assert families not in sys.modules


@pytest.mark.usefixtures("without_prometheus")
def test_missing_prometheus_client_is_reported() -> None:
    response = node_metrics(raise_unreachable).response()

    assert (response.status, response.content_type) == (501, "text/plain; charset=utf-8")
    assert response.body == b"Metrics need prometheus-client: pip install django-dcron[metrics]\n"
    with pytest.raises(ImproperlyConfigured, match=r"pip install django-dcron\[metrics\]"):
        Collector().collect()


# --- a real node ----------------------------------------------------------------------------------


def test_working_node_is_scraped(
    start_runcron: StartProcess, redis_server: services.Server, settings: Settings
) -> None:
    make_job(name="each-second")
    node = start_runcron("--embedded", "--name", "n", "--http", "127.0.0.1:0")
    node.wait_for_log("address=http://")
    address = node.log.partition("address=http://")[2].split()[0]

    def get(accept: str) -> tuple[str, bytes]:
        with closing(HTTPConnection(address, timeout=TIMEOUT)) as http:
            http.request("GET", "/metrics", headers={"Accept": accept})
            response = http.getresponse()
            return response.headers["Content-Type"], response.read()

    def shown() -> dict[str, float] | None:
        content_type, body = get("text/plain")
        assert content_type.startswith("text/plain")
        found = values(body)
        good = found.get("dcron_runs_total") and found["dcron_attempt_duration_seconds_count"]
        return found if good else None

    found = wait_until(shown, what="a run in the metrics", interval=0.2)
    assert found["dcron_node_shards"] == found["dcron_node_leases"] == 64
    # The node observes only the end of an attempt that was running at its first update.
    ends = found["dcron_attempt_duration_seconds_count"]
    assert found["dcron_attempt_start_delay_seconds_count"] >= ends - 1
    assert found["dcron_runs_total"] <= Run.objects.count()
    content_type, body = get(OPENMETRICS)
    assert content_type.startswith("application/openmetrics-text")
    assert list(openmetrics_families(body.decode()))
    node.terminate()
    assert node.wait() == 0
