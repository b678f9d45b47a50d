"""Compare documentation, dashboard and alert rules with the metrics catalog and a scrape."""

import json
import re
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import yaml

from django_dcron.conf import Settings
from django_dcron.monitoring.metrics import attempts, catalog, cluster, readings
from django_dcron.monitoring.metrics.catalog import METRICS, Metric, MetricSource, MetricType
from django_dcron.monitoring.metrics.exposition import MISSING_EXTRA_MESSAGE
from django_dcron.policies.lifecycle import Outcome
from django_dcron.scheduler.health import HealthStatus
from tests.factories import make_idle_job

DOCS = Path(__file__).resolve().parents[2] / "docs"
DOCUMENT = DOCS / "reference" / "observability.md"
DASHBOARD = json.loads((DOCS / "grafana-dashboard.json").read_text())
RULES = yaml.safe_load((DOCS / "prometheus-rules.yml").read_text())

BY_NAME = {metric.name: metric for metric in METRICS}
SUFFIXES = ("_bucket", "_sum", "_count")
FUNCTIONS = {
    *(
        "absent_over_time",
        "count",
        "histogram_quantile",
        "increase",
        "label_values",
        "max",
        "max_over_time",
    ),
    *("min_over_time", "rate", "sum"),
}
WORDS = {"by", "or", "unless"}
TARGET_LABELS = {"instance", "job"}


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    return found


def alerts() -> list[dict[str, Any]]:
    return [rule for group in RULES["groups"] for rule in group["rules"]]


def expressions() -> dict[str, str]:
    found = {rule["alert"]: rule["expr"] for rule in alerts()}
    for panel in panels():
        for target in panel["targets"]:
            found[f"{panel['title']} {target['refId']}"] = target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            found[f"${variable['name']}"] = variable["definition"]
    return found


def metric_of(name: str) -> Metric:
    for suffix in SUFFIXES:
        stem = name.removesuffix(suffix)
        if name.endswith(suffix) and stem in BY_NAME:
            assert BY_NAME[stem].type is MetricType.HISTOGRAM, name
            return BY_NAME[stem]
    assert name in BY_NAME, f"there is no metric {name}"
    assert BY_NAME[name].type is not MetricType.HISTOGRAM, (
        f"{name} is a histogram: use one of its series"
    )
    return BY_NAME[name]


@dataclass(frozen=True, slots=True)
class Selector:
    metric: Metric
    name: str
    """The name as written. For a histogram, it is the name of one of its series."""
    matchers: list[tuple[str, str, str]]
    before: str
    after: str

    @property
    def labels(self) -> set[str]:
        return {*self.metric.labels, *(["le"] if self.name.endswith("_bucket") else [])}


def selectors(expression: str) -> list[Selector]:
    return [
        Selector(
            metric_of(found[1]),
            found[1],
            matchers(found[2] or ""),
            expression[: found.start()],
            expression[found.end() :],
        )
        for found in re.finditer(r"\b(dcron_\w+)(?:\{([^}]*)\})?", expression)
    ]


def matchers(braces: str) -> list[tuple[str, str, str]]:
    found = re.findall(r'(\w+)(=~|!~|!=|=)"([^"]*)"', braces)
    assert ", ".join(f'{label}{how}"{value}"' for label, how, value in found) == braces
    return found


@pytest.fixture
def possible_values(db: None) -> dict[tuple[str, str], set[str]]:
    """Return the possible values of each label, by metric and label, where they can be listed."""
    make_idle_job()
    found: dict[tuple[str, str], set[str]] = {}
    for sample in cluster.read_samples():
        for label, value in zip(sample.metric.labels, sample.labels, strict=True):
            found.setdefault((sample.metric.name, label), set()).add(value)
    found[catalog.NODE_STATUS.name, "status"] = {status.value for status in HealthStatus}
    found[catalog.DURATION.name, "outcome"] = {outcome.value for outcome in Outcome}
    return found


# --- queries --------------------------------------------------------------------------------------


def test_queries_use_existing_metrics_and_labels() -> None:
    for where, expression in expressions().items():
        found = selectors(expression)
        assert found, where
        for each in found:
            used = {label for label, _, _ in each.matchers}
            assert used <= each.labels | TARGET_LABELS, (where, each.name)
        known = TARGET_LABELS.union(*(each.labels for each in found))
        for grouping in re.findall(r"\bby \(([^)]*)\)", expression):
            assert set(grouping.split(", ")) <= known, where


def test_queries_use_possible_label_values(
    possible_values: dict[tuple[str, str], set[str]],
) -> None:
    checked = 0
    for where, expression in expressions().items():
        for each in selectors(expression):
            for label, how, wanted in each.matchers:
                if not wanted.startswith("$"):
                    values = wanted.split("|") if "~" in how else [wanted]
                    assert set(values) <= possible_values[each.metric.name, label], where
                    checked += 1
    assert checked > 20


def test_queries_have_valid_brackets_and_functions() -> None:
    """Check brackets, function names, and ``rate`` or ``increase`` around each counter.

    ``test_promtool.py`` checks the syntax where promtool is available.
    """
    for where, expression in expressions().items():
        bare = re.sub(r'"[^"]*"', "", expression)
        for pair in ("()", "{}", "[]"):
            assert bare.count(pair[0]) == bare.count(pair[1]), where
        called = set(re.findall(r"\b([a-z_]+) ?\(", re.sub(r"\{[^}]*\}", "", bare)))
        assert called <= FUNCTIONS | WORDS, where
        for each in selectors(expression):
            counts = each.metric.type in (
                MetricType.COUNTER,
                MetricType.HISTOGRAM,
            ) and not where.startswith("$")
            assert bool(re.search(r"\b(rate|increase)\($", each.before)) == counts, (
                where,
                each.name,
            )
            takes_range = re.search(r"\b(rate|increase|\w+_over_time)\($", each.before)
            has_range = re.match(r"\[(\$__\w+|\d+[mhd])\]\)", each.after)
            assert bool(takes_range) == bool(has_range), (where, each.name)


def test_queries_sum_node_metrics_and_take_max_of_cluster_metrics() -> None:
    """Queries sum the metrics of nodes and take one value of the cluster's metrics.

    Each node observes its own attempts, but all report the same about the cluster.
    """
    wanted = {MetricSource.ATTEMPTS: "sum", MetricSource.CLUSTER: "max"}
    for where, expression in expressions().items():
        for each in selectors(expression):
            if each.metric.source in wanted and not where.startswith("$"):
                over = re.search(
                    r"\b(\w+)(?: by \([^)]*\) )?\((?:rate\(|increase\()?$", each.before
                )
                assert over, (where, each.name)
                assert over[1] == wanted[each.metric.source], (where, each.name)


# --- dashboard and rules --------------------------------------------------------------------------


def test_dashboard_panels_leave_no_gaps_or_overlaps() -> None:
    taken: set[tuple[int, int]] = set()
    height = 0
    for panel in DASHBOARD["panels"]:
        grid = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(grid["x"], grid["x"] + grid["w"])
            for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        height = max(height, grid["y"] + grid["h"])
    assert len(taken) == 24 * height
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)


def test_dashboard_uses_chosen_data_source() -> None:
    names = [variable["name"] for variable in DASHBOARD["templating"]["list"]]
    used = set(re.findall(r"\$\{?([a-z]\w+)", json.dumps(DASHBOARD["panels"])))
    assert used == set(names)
    for panel in panels():
        for each in (panel, *panel["targets"]):
            assert each["datasource"]["uid"] == "${datasource}", panel["title"]


def test_every_alert_has_severity_summary_and_description() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert len(set(names)) == len(names) > 10
    for rule in alerts():
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), rule["alert"]
        assert rule["annotations"].keys() == {"summary", "description"}, rule["alert"]
        assert re.fullmatch(r"\d+[mhd]", rule.get("for", "1m")), rule["alert"]
        grouped = re.findall(r"\bby \(([^)]*)\)", rule["expr"])
        for label in re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])):
            aggregated = rule["expr"].startswith(("max", "sum"))
            assert label in (grouped[0].split(", ") if aggregated else TARGET_LABELS), rule["alert"]


# --- documentation --------------------------------------------------------------------------------


def section() -> str:
    return re.split(
        r"^## ", DOCUMENT.read_text().partition("\n## Metrics\n")[2], flags=re.MULTILINE
    )[0]


def documented() -> dict[str, list[str]]:
    rows = re.findall(r"^\| `(dcron_\w+)` \| (.*?) \|$", section(), re.MULTILINE)
    return {name: cells.split(" | ") for name, cells in rows}


def test_documented_metrics_match_catalog() -> None:
    assert list(documented()) == [metric.name for metric in METRICS]
    for name in re.findall(r"\b(?<!django_)dcron_\w+", section()):
        assert name in BY_NAME or metric_of(name)


def test_types_labels_and_units_are_documented() -> None:
    for metric in METRICS:
        kind, labels, unit, _ = documented()[metric.name]
        assert kind == metric.type, metric.name
        assert re.findall(r"\w+", labels) == list(metric.labels), metric.name
        assert unit == metric.unit, metric.name


def test_every_alert_is_documented() -> None:
    named = set(re.findall(r"`(Dcron\w+)`", section()))
    assert named == {rule["alert"] for rule in alerts()}


def test_limits_are_documented() -> None:
    text = " ".join(section().split())
    words = {2: "two", 3: "three", 5: "five"}
    assert f"waits {words[int(readings.BUDGET)]} seconds for the database" in text
    assert f"cached for {words[int(readings.FRESH)]} seconds" in text
    assert f"at most {cluster.QUERIES} queries" in text
    assert f"at least {words[attempts.COMMIT_MARGIN.seconds]} seconds ago" in text
    assert f"more than {attempts.MAX_NEW:,} attempts" in text
    assert f"`DCRON_METRICS_JOBS` jobs ({Settings.METRICS_JOBS})" in text
    assert MISSING_EXTRA_MESSAGE.partition(": ")[2] in text
    assert str(HTTPStatus.NOT_IMPLEMENTED.value) in text


def test_buckets_are_documented() -> None:
    text = " ".join(section().split())
    for bounds in (attempts.DELAY_BUCKETS, attempts.DURATION_BUCKETS):
        assert ", ".join(f"{bound:g}" for bound in bounds) in text
