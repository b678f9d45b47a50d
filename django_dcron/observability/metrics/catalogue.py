"""Every metric there is: name, type, labels and meaning. What is not here is not exposed; ``docs/observability.md`` lists the same.

No label is called ``job``, ``instance`` or ``namespace``: Prometheus, and its operator on Kubernetes, give these to what they scrape
and rename ours. No label has values without a bound but a job's, of which there are ``DCRON_METRICS_JOBS`` at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Type(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


class Source(StrEnum):
    NODE = "node"
    """What one node knows of itself: in its own scrape only, also while the database is away."""
    ATTEMPTS = "attempts"
    """The attempts of the shards that a node leads, since its start: in its own scrape only. The sum is the cluster's."""
    CLUSTER = "cluster"
    """Read from the database: the same in every scrape, of any node or of Django. Any one of them is the cluster's."""
    SCRAPE = "scrape"
    """Of the answer itself: in every scrape."""


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    type: Type
    source: Source
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""


def _node(name: str, help: str, unit: str = "", *labels: str, type: Type = Type.GAUGE) -> Metric:
    return Metric(f"dcron_node_{name}", type, Source.NODE, help, labels, unit)


def _cluster(name: str, help: str, unit: str = "", *labels: str, type: Type = Type.GAUGE) -> Metric:
    return Metric(f"dcron_{name}", type, Source.CLUSTER, help, labels, unit)


def _attempt(name: str, help: str, *labels: str) -> Metric:
    return Metric(f"dcron_attempt_{name}", Type.HISTOGRAM, Source.ATTEMPTS, help, labels, "seconds")


DATABASE_UP = Metric(
    "dcron_database_up",
    Type.GAUGE,
    Source.SCRAPE,
    "1: the database answered in time; 0: what comes from it is left out.",
)

NODE_INFO = _node(
    "info",
    "1, for its labels: which node this is.",
    "",
    "node_name",
    "node_namespace",
    "release",
    type=Type.INFO,
)
NODE_STATUS = _node("status", "1 for the status it is in, as in /health, 0 for the others.", "", "status")
NODE_SHARDS = _node("shards", "Shards it leads.")
NODE_LEASES = _node(
    "leases", "Shards whose lock it holds; without the lock's server it leads by hashing alone."
)
NODE_AGENDA = _node("agenda_runs", "Runs on its agenda: claimed, and not handed over yet.")
NODE_LAG = _node("lag_seconds", "How late that run is which has waited longest to be handed over.", "seconds")
NODE_TICK_AGE = _node("tick_age_seconds", "Since its last tick went through.", "seconds")
NODE_HEARTBEAT_AGE = _node("heartbeat_age_seconds", "Since its last heartbeat was written.", "seconds")
NODE_HANGING = _node("hanging_threads", "Its threads that hang.")
NODE_DEGRADED = _node("degraded", "1: it cannot reach the lock's server and leads by hashing alone.")
NODE_BROKER_AWAY = _node("broker_away", "1: the broker does not take runs; they wait on the agenda.")
NODE_DATABASE_AWAY = _node("database_away", "1: its ticks do not go through, as the database is away.")
NODE_SKEW = _node("skew_seconds", "Its wall clock less the database's, by which it schedules.", "seconds")

LATENESS = _attempt("lateness_seconds", "From the time an attempt was due to its start.")
WAIT = _attempt(
    "wait_seconds", "From the time an attempt was handed over to its start: the wait for a worker."
)
DURATION = _attempt("duration_seconds", "From an attempt's start to its end.", "outcome")
UNOBSERVED = Metric(
    "dcron_attempts_unobserved_total",
    Type.COUNTER,
    Source.ATTEMPTS,
    "Attempts of the whole cluster that this node's histograms left out, as they came too fast to follow: so many or more.",
)

RUNS = _cluster(
    "runs_total",
    "Occurrences of a job that have come to their end; neither pruning nor a restart changes it.",
    "",
    "job_id",
    "job_namespace",
    "job_name",
    "outcome",
    type=Type.COUNTER,
)
JOBS = _cluster("jobs", "Jobs by what becomes of their occurrences.", "", "state")
JOBS_FAILING = _cluster("jobs_failing", "Enabled jobs whose latest run that succeeded or failed has failed.")
JOBS_UNCOUNTED = _cluster(
    "jobs_uncounted", "Jobs without a counter of their own: those beyond the first DCRON_METRICS_JOBS."
)
RUNS_UNFINISHED = _cluster("runs_unfinished", "Unfinished runs; 10001 are more than 10000.", "", "state")
OLDEST = _cluster(
    "runs_oldest_seconds", "Since the run was due that has waited longest in this state.", "seconds", "state"
)
CURSORS_OVERDUE = _cluster(
    "cursors_overdue", "Jobs with an occurrence in the past that nobody has claimed; 10001 are more."
)
CURSOR_LAG = _cluster("cursor_lag_seconds", "How long the oldest of those occurrences is past.", "seconds")
NODES = _cluster(
    "nodes", "Nodes by how they are; a live one may be degraded, stalled and skewed too.", "", "state"
)
NODES_AGENDA = _cluster("nodes_agenda_runs", "Runs on the agendas of all live nodes, as of their heartbeats.")
NODES_SKEW = _cluster(
    "nodes_skew_seconds", "The largest clock skew of a live node, whichever way.", "seconds"
)
SHARDS_UNLED = _cluster("shards_unled", "Shards that no live node leads, where there are live nodes.")
NAMESPACES_UNSERVED = _cluster("namespaces_unserved", "Namespaces with enabled jobs that no node works for.")
HEALTH_STATUS = _cluster(
    "health_status",
    "1 for the status that the health verdict gives the whole system, 0 for the others.",
    "",
    "status",
)
PROBLEM = _cluster(
    "problem", "1 while the health verdict contains the problem with this code, else 0.", "", "code"
)

METRICS = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
