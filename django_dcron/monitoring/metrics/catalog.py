"""The catalog of all metrics: name, type, labels and meaning.

Invariants:

- Only metrics of this module are exposed. ``docs/reference/observability.md`` lists the same ones.
- No label is named ``job``, ``instance`` or ``namespace``. Prometheus, and its operator on
  Kubernetes, set these labels on targets and would rename ours.
- Labels have a bounded number of values. Job labels are bounded by ``DCRON_METRICS_JOBS``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class MetricType(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


class MetricSource(StrEnum):
    NODE = "node"
    """A node's own state, only in its own scrape, even if the database is unreachable."""
    ATTEMPTS = "attempts"
    """Attempts of the shards that a node leads, counted since its start, only in its own scrape.

    The sum over all nodes is the cluster's.
    """
    CLUSTER = "cluster"
    """Read from the database. Every scrape of any node or of Django has the same values."""
    SCRAPE = "scrape"
    """About the scrape itself."""


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    type: MetricType
    source: MetricSource
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""


def _node(
    name: str, help: str, unit: str = "", *labels: str, type: MetricType = MetricType.GAUGE
) -> Metric:
    return Metric(f"dcron_node_{name}", type, MetricSource.NODE, help, labels, unit)


def _cluster(
    name: str, help: str, unit: str = "", *labels: str, type: MetricType = MetricType.GAUGE
) -> Metric:
    return Metric(f"dcron_{name}", type, MetricSource.CLUSTER, help, labels, unit)


def _attempt(name: str, help: str, *labels: str) -> Metric:
    return Metric(
        f"dcron_attempt_{name}",
        MetricType.HISTOGRAM,
        MetricSource.ATTEMPTS,
        help,
        labels,
        "seconds",
    )


DATABASE_UP = Metric(
    "dcron_database_up",
    MetricType.GAUGE,
    MetricSource.SCRAPE,
    "1 if the database answered in time; 0 if its metrics are missing from this scrape.",
)

NODE_INFO = _node(
    "info",
    "Always 1; the labels identify the node.",
    "",
    "node_name",
    "node_namespace",
    "version",
    type=MetricType.INFO,
)
NODE_STATUS = _node(
    "status", "1 for the node's current status, as in /health; 0 for the others.", "", "status"
)
NODE_SHARDS = _node("shards", "Shards that the node leads.")
NODE_LEASES = _node(
    "leases",
    "Shards whose lock the node has. Without the lock server, shards are assigned by hash.",
)
NODE_AGENDA = _node("agenda_runs", "Runs on the node's agenda: claimed, not dispatched yet.")
NODE_LAG = _node("lag_seconds", "Lag of the oldest run awaiting dispatch, in seconds.", "seconds")
NODE_TICK_AGE = _node(
    "tick_age_seconds", "Seconds since the node's last successful tick.", "seconds"
)
NODE_HEARTBEAT_AGE = _node(
    "heartbeat_age_seconds", "Seconds since the node last wrote its heartbeat.", "seconds"
)
NODE_HANGING = _node("hanging_threads", "Threads of the node that hang.")
NODE_DEGRADED = _node(
    "degraded", "1 if the node can't reach the lock server and assigns shards by hash."
)
NODE_BROKER_UNREACHABLE = _node(
    "broker_unreachable", "1 if the broker accepts no messages; due runs wait on the agenda."
)
NODE_DATABASE_UNREACHABLE = _node(
    "database_unreachable", "1 if the node's ticks fail because the database is unreachable."
)
NODE_SKEW = _node(
    "skew_seconds", "The node's system clock minus the database clock, in seconds.", "seconds"
)

START_DELAY = _attempt("start_delay_seconds", "Time from an attempt's due time to its start.")
WAIT = _attempt(
    "wait_seconds", "Time an attempt waited for a worker, from its dispatch to its start."
)
DURATION = _attempt("duration_seconds", "Time from an attempt's start to its end.", "outcome")
UNOBSERVED = Metric(
    "dcron_attempts_unobserved_total",
    MetricType.COUNTER,
    MetricSource.ATTEMPTS,
    "Minimum number of the cluster's attempts missing from this node's histograms because of high "
    "load.",
)

RUNS = _cluster(
    "runs_total",
    "Finished occurrences of a job, by outcome. Pruning and restarts don't reset it.",
    "",
    "job_id",
    "job_namespace",
    "job_name",
    "outcome",
    type=MetricType.COUNTER,
)
LATE_SUCCESSES = _cluster(
    "late_successes_total",
    "Attempts of a job that succeeded after they were declared lost or had timed out.",
    "",
    "job_id",
    "job_namespace",
    "job_name",
    type=MetricType.COUNTER,
)
JOBS = _cluster("jobs", "Jobs, by scheduling state.", "", "state")
JOBS_FAILING = _cluster(
    "jobs_failing",
    "Enabled jobs that have failed since their last success.",
)
JOBS_UNCOUNTED = _cluster(
    "jobs_uncounted",
    "Jobs without their own counter, because there are more than DCRON_METRICS_JOBS.",
)
RUNS_UNFINISHED = _cluster(
    "runs_unfinished", "Unfinished runs, by state. 10001 means more than 10000.", "", "state"
)
OLDEST = _cluster(
    "runs_oldest_seconds",
    "Seconds since the oldest run in this state was due.",
    "seconds",
    "state",
)
CURSORS_OVERDUE = _cluster(
    "cursors_overdue",
    "Jobs with an overdue occurrence that no node has claimed. 10001 means more than 10000.",
)
CURSOR_LAG = _cluster(
    "cursor_lag_seconds",
    "Age of the oldest unclaimed occurrence that isn't frozen, in seconds.",
    "seconds",
)
NODES = _cluster(
    "nodes",
    "Nodes, by state. A live node may also be degraded, stalled or skewed.",
    "",
    "state",
)
NODES_AGENDA = _cluster(
    "nodes_agenda_runs", "Runs on the agendas of all live nodes, according to their heartbeats."
)
NODES_SKEW = _cluster(
    "nodes_skew_seconds", "Largest absolute clock skew of a live node, in seconds.", "seconds"
)
SHARDS_UNLED = _cluster(
    "shards_unled", "Shards without a leader, in namespaces that have live nodes."
)
NAMESPACES_UNSERVED = _cluster(
    "namespaces_unserved",
    "Namespaces with enabled jobs that no live node serves, or whose live nodes are all stalled.",
)
FROZEN = _cluster(
    "frozen",
    "1 while scheduling of the namespace is frozen, else 0. An empty label means all namespaces.",
    "",
    "job_namespace",
)
HEALTH_STATUS = _cluster(
    "health_status",
    "1 for the system's current health status; 0 for the others.",
    "",
    "status",
)
PROBLEM = _cluster(
    "problem", "1 if the system currently has the problem with this code; 0 otherwise.", "", "code"
)

METRICS = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
