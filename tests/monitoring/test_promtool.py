"""Check scrapes, alert rules and dashboard queries with promtool of Prometheus."""

import json
import re
import subprocess
from collections import defaultdict
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families as families
from pytest_django import Settings

from django_dcron.monitoring.metrics import Collector, views
from django_dcron.monitoring.metrics.catalog import METRICS, MetricSource
from tests import services
from tests.conftest import StartProcess
from tests.factories import make_job
from tests.monitoring.test_metrics_documents import DASHBOARD, DOCS, alerts, panels
from tests.waiting import TIMEOUT, wait_until

pytestmark = pytest.mark.promtool

RULES_TEST = Path(__file__).with_name("prometheus_rules_test.yml")
GRAFANA_VARIABLES = {"$__rate_interval": "5m", "$__range": "1h", "$__interval": "1m"}


def promtool(*arguments: str | Path, given: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        ["promtool", *arguments], input=given, capture_output=True, timeout=TIMEOUT
    )


def complaints(body: bytes) -> str:
    """Return what promtool reports about a scrape."""
    done = promtool("check", "metrics", given=body)
    message = (done.stdout + done.stderr).decode()
    assert bool(done.returncode) == bool(message), (done.returncode, message)
    return message


# --- scrapes --------------------------------------------------------------------------------------


def names(body: bytes) -> set[str]:
    """Return the names of the metric families with samples, as in the catalog."""
    suffix = {"counter": "_total"}
    return {
        family.name + suffix.get(family.type, "")
        for family in families(body.decode())
        if family.samples
    }


def total(body: bytes, name: str, **labels: str) -> float:
    samples = [sample for family in families(body.decode()) for sample in family.samples]
    return sum(
        each.value
        for each in samples
        if each.name == name and labels.items() <= each.labels.items()
    )


def test_scrapes_of_node_and_django_are_valid(
    start_runcron: StartProcess,
    redis_server: services.Server,
    settings: Settings,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_job(name="über 9:00 @ Köln", namespace="shop")
    make_job(name="fails", target="tests.app.tasks.fail", max_attempts=1)
    make_job(name="waits", overlap_policy="queue_all", target="tests.app.tasks.nap", args=[3])
    make_job(name="paused", enabled=False)
    node = start_runcron("--embedded", "--name", "n", "--http", "127.0.0.1:0")
    node.wait_for_log("address=http://")
    address = node.log.partition("address=http://")[2].split()[0]

    def scrape_node() -> bytes:
        with closing(HTTPConnection(address, timeout=TIMEOUT)) as http:
            http.request("GET", "/metrics")
            return http.getresponse().read()

    def all_observed() -> bytes | None:
        body = scrape_node()
        ended = all(
            total(body, "dcron_attempt_duration_seconds_count", outcome=outcome)
            for outcome in ("succeeded", "failed")
        )
        unfinished = total(body, "dcron_runs_unfinished", state="waiting")
        return body if ended and unfinished and total(body, "dcron_jobs_failing") else None

    body = wait_until(all_observed, what="runs of all kinds in the metrics", interval=0.2)
    assert names(body) == {metric.name for metric in METRICS}
    assert complaints(body) == ""

    settings.DCRON_METRICS_TOKEN = "t"
    monkeypatch.setattr(views, "_collector", Collector())
    django_scrape = client.get("/probes/metrics", headers={"authorization": "Bearer t"}).content
    assert total(django_scrape, "dcron_runs_total", outcome="failed")
    assert names(django_scrape) == {
        metric.name
        for metric in METRICS
        if metric.source in (MetricSource.CLUSTER, MetricSource.SCRAPE)
    }
    assert complaints(django_scrape) == ""


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"# TYPE dcron_runs counter\ndcron_runs 1\n", 'should have "_total" suffix'),
        (
            b"# HELP dcron_wait_ms W.\n# TYPE dcron_wait_ms gauge\ndcron_wait_ms 1\n",
            "abbreviated units",
        ),
        (b"dcron_runs{ 1\n", "error while linting"),
    ],
)
def test_promtool_reports_invalid_scrape(body: bytes, message: str) -> None:
    assert message in complaints(body)


# --- alert rules ----------------------------------------------------------------------------------


def test_rules_are_valid() -> None:
    done = promtool("check", "rules", DOCS / "prometheus-rules.yml")
    assert done.returncode == 0, done.stderr.decode()
    assert f"{len(alerts())} rules found" in done.stdout.decode()


def test_rules_fire_as_intended() -> None:
    done = promtool("test", "rules", RULES_TEST)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()


def test_every_rule_is_tested_firing_and_silent() -> None:
    tried: dict[str, set[bool]] = defaultdict(set)
    for group in yaml.safe_load(RULES_TEST.read_text())["tests"]:
        for case in group["alert_rule_test"]:
            tried[case["alertname"]].add(bool(case.get("exp_alerts")))
    assert tried == {rule["alert"]: {True, False} for rule in alerts()}


# --- dashboard ------------------------------------------------------------------------------------


def queries() -> dict[str, str]:
    """Return the queries as Prometheus receives them, with Grafana's variables filled in."""
    found = {
        f"{panel['title']} {each['refId']}": each["expr"]
        for panel in panels()
        for each in panel["targets"]
    }
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((.*), \w+\)", variable["definition"])
            assert match, variable["definition"]
            found[f"${variable['name']}"] = match[1]
    return {where: with_variables(text) for where, text in found.items()}


def with_variables(text: str) -> str:
    for name, value in GRAFANA_VARIABLES.items():
        text = text.replace(name, value)
    return re.sub(r"\$\{?([a-z]\w*)\}?", r"\1", text)


def recording(exprs: dict[str, str]) -> dict[str, Any]:
    """Return the queries as recording rules.

    Without a server, promtool parses a query only as part of a rule.
    """
    rules = [
        {"record": f"query:number_{n}", "expr": text, "labels": {"where": where}}
        for n, (where, text) in enumerate(exprs.items())
    ]
    return {"groups": [{"name": "dashboard", "rules": rules}]}


def test_dashboard_queries_are_valid(tmp_path: Path) -> None:
    expressions = queries()
    assert len(expressions) > 20
    file = tmp_path / "queries.yml"
    file.write_text(json.dumps(recording(expressions)))  # JSON is valid YAML
    done = promtool("check", "rules", file)
    assert done.returncode == 0, done.stderr.decode()
    assert f"{len(expressions)} rules found" in done.stdout.decode()


def test_promtool_rejects_invalid_query(tmp_path: Path) -> None:
    file = tmp_path / "queries.yml"
    file.write_text(json.dumps(recording({"a": "sum by (x (dcron_jobs)"})))
    assert promtool("check", "rules", file).returncode
