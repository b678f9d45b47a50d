"""Problems of the database and the nodes, up to the dispatch of a run to its queue."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

from django_dcron.policies.health.facts import NOTHING_NAMED, NamedCount, SystemFacts
from django_dcron.policies.health.problems import (
    FIND_UNLED_SHARDS,
    Issue,
    ListedProblem,
    Problem,
    Severity,
    age_text,
    bounded_number,
    issues_of_lists,
)
from django_dcron.utils.messages import TranslatableText, ngettext, with_full_stop
from django_dcron.utils.messages import gettext_noop as _

_STALLED = {
    Problem.NODE_STALLED: ListedProblem(
        "nodes",
        lambda facts: facts.stalled,
        _("Nodes that schedule no jobs because their ticks fail: %(nodes)s."),
        _("Check the logs of these nodes, then restart them."),
    ),
}
_WITHOUT_SHARDS = {
    Problem.NO_SHARD_LED: ListedProblem(
        "nodes",
        lambda facts: facts.without_shards,
        _("No node leads a shard, so no jobs are scheduled. Running nodes: %(nodes)s."),
        _(
            "Check the nodes' logs, and the findings of manage.py dcron doctor about leases. "
            "Another site may use the same Redis without its own KEY_PREFIX in CACHES."
        ),
    ),
}
_UNSERVED = {
    Problem.NAMESPACE_UNSERVED: ListedProblem(
        "namespaces",
        lambda facts: facts.unserved,
        _("Namespaces with enabled jobs but no running node: %(namespaces)s."),
        _(
            "Start manage.py runcron --namespace NAME, or without --namespace to serve all "
            "namespaces."
        ),
        Severity.ERROR,
    ),
}
_IMPAIRED = {
    Problem.NODE_DEGRADED: ListedProblem(
        "nodes",
        lambda facts: facts.degraded,
        _("Nodes that can't use the lock server: %(nodes)s."),
        _(
            "Check the lock server and the network. Nodes may duplicate work, but no run starts "
            "twice."
        ),
    ),
    Problem.NODE_SKEWED: ListedProblem(
        "nodes",
        lambda facts: facts.skewed,
        _("Nodes whose system clock is off by a second or more: %(nodes)s."),
        _("Check NTP. Schedules follow the database clock, but log times will be wrong."),
    ),
}


# --- the database and the nodes -------------------------------------------------------------------


def database_issues(facts: SystemFacts) -> Iterator[Issue]:
    if facts.database_read_only:
        yield Issue(
            Problem.DATABASE_READ_ONLY,
            Severity.ERROR,
            TranslatableText(
                _("The database is read-only, so runs can't be scheduled, started or recorded.")
            ),
            TranslatableText(_("Make the database writable, or connect to the primary server.")),
            facts.last_heartbeat,
        )


def node_issues(facts: SystemFacts) -> Iterator[Issue]:
    if facts.database_read_only or not facts.has_work:
        return
    if not facts.live_nodes:
        yield _no_live_node(facts)
        return
    for issue in issues_of_lists(facts, _STALLED):
        yield replace(issue, severity=_severity_of_stalled(facts), since=facts.stalled_since)
    yield from issues_of_lists(facts, _UNSERVED)
    yield from issues_of_lists(facts, _WITHOUT_SHARDS)


def _severity_of_stalled(facts: SystemFacts) -> Severity:
    """Return an error if work is waiting.

    No other node does the work, because a stalled node keeps its shards.
    """
    waits = facts.stalled_namespaces or facts.overdue_cursors or facts.overdue_runs
    return Severity.ERROR if waits else Severity.WARNING


def remedy_without_nodes(autostart: bool) -> TranslatableText:
    """Return how to start a node, with or without ``DCRON_AUTOSTART``."""
    return TranslatableText(
        _("Start or restart the web server: with DCRON_AUTOSTART, its processes run the nodes.")
        if autostart
        else _("Start a node with manage.py runcron.")
    )


def _no_live_node(facts: SystemFacts) -> Issue:
    figures = {"jobs": facts.overdue_cursors.number, "runs": facts.overdue_runs.number}
    remedy = remedy_without_nodes(facts.autostart)
    if facts.last_heartbeat is None:
        summary = TranslatableText(_("No scheduler node is running, so no jobs will start."))
    elif not (facts.overdue_cursors or facts.overdue_runs):
        age = age_text(facts.now - facts.last_heartbeat)
        summary = TranslatableText(
            _("No scheduler node has been running for %(age)s, so no jobs start."), age=age
        )
    else:
        summary = _outage_with_waiting_work(facts, age_text(facts.now - facts.last_heartbeat))
    return Issue(
        Problem.NO_LIVE_NODE, Severity.ERROR, summary, remedy, facts.last_heartbeat, figures
    )


def _outage_with_waiting_work(facts: SystemFacts, age: TranslatableText) -> TranslatableText:
    """Name the overdue jobs and runs, without zeros.

    The runs of an overdue job don't exist yet, so "0 runs" would look like a contradiction.
    """
    cursors, overdue = facts.overdue_cursors.number, facts.overdue_runs.number
    jobs = ngettext(
        "%(number)s overdue job",
        "%(number)s overdue jobs",
        cursors,
        number=bounded_number(cursors),
    )
    runs = ngettext(
        "%(number)s run awaiting dispatch",
        "%(number)s runs awaiting dispatch",
        overdue,
        number=bounded_number(overdue),
    )
    if cursors and overdue:
        template = _("No scheduler node has been running for %(age)s: %(jobs)s, %(runs)s.")
        return TranslatableText(template, age=age, jobs=jobs, runs=runs)
    template = _("No scheduler node has been running for %(age)s: %(waiting)s.")
    return TranslatableText(template, age=age, waiting=jobs if cursors else runs)


# --- from the node to the queue -------------------------------------------------------------------


def dispatch_issues(facts: SystemFacts) -> Iterator[Issue]:
    if facts.database_read_only or not facts.live_nodes:
        return
    yield from _broker_issue(facts)
    if not (facts.stalled or facts.unserved):  # These explain overdue runs and cursors.
        yield from _overdue_run_issue(facts)
        yield from _overdue_cursor_issue(facts)


def _broker_issue(facts: SystemFacts) -> Iterator[Issue]:
    overdue = facts.overdue_runs
    if facts.on_agendas and overdue.since:
        yield Issue(
            Problem.NO_BROKER,
            Severity.ERROR,
            _with_error(
                ngettext(
                    "The broker has accepted no messages for %(age)s: "
                    "%(runs)s run awaiting dispatch.",
                    "The broker has accepted no messages for %(age)s: "
                    "%(runs)s runs awaiting dispatch.",
                    facts.on_agendas,
                    age=age_text(facts.now - overdue.since),
                    runs=bounded_number(facts.on_agendas),
                ),
                facts.broker_error,
            ),
            TranslatableText(
                _(
                    "Check that the broker is running, reachable from the nodes and not full, and "
                    "check the nodes' logs."
                )
            ),
            overdue.since,
            {"runs": facts.on_agendas},
        )


def _overdue_run_issue(facts: SystemFacts) -> Iterator[Issue]:
    overdue = facts.overdue_runs
    if (number := overdue.number - facts.on_agendas) > 0 and overdue.since:
        yield Issue(
            Problem.RUN_OVERDUE,
            Severity.ERROR,
            ngettext(
                "%(runs)s due run hasn't been dispatched for %(age)s.",
                "%(runs)s due runs haven't been dispatched, the oldest for %(age)s.",
                number,
                runs=bounded_number(number),
                age=age_text(facts.now - overdue.since),
            ),
            TranslatableText(FIND_UNLED_SHARDS),
            overdue.since,
            {"runs": number},
        )


def _overdue_cursor_issue(facts: SystemFacts) -> Iterator[Issue]:
    if (cursors := facts.overdue_cursors) and cursors.since:
        yield Issue(
            Problem.CURSOR_OVERDUE,
            Severity.ERROR,
            ngettext(
                "%(jobs)s job has been overdue for %(age)s, and no node schedules it.",
                "%(jobs)s jobs are overdue, the oldest for %(age)s, and no node schedules them.",
                cursors.number,
                jobs=bounded_number(cursors.number),
                age=age_text(facts.now - cursors.since),
            ),
            TranslatableText(FIND_UNLED_SHARDS),
            cursors.since,
            {"jobs": cursors.number},
        )


# --- nodes that differ ----------------------------------------------------------------------------


def configuration_issues(facts: SystemFacts) -> Iterator[Issue]:
    for issue in issues_of_lists(facts, _IMPAIRED):
        error = facts.lock_error if issue.problem is Problem.NODE_DEGRADED else ""
        yield replace(issue, summary=_with_error(issue.summary, error))
    if facts.without_broker and not _explained_by_no_broker(facts):
        yield _without_broker(facts)
    if facts.clock_doubted_by:
        yield _clock_in_doubt(facts)
    if len(facts.shard_counts) > 1:
        counts = ", ".join(map(str, facts.shard_counts))
        yield _node_warning(
            Problem.SHARDS_DIFFER,
            TranslatableText(
                _("DCRON_SHARDS differs between processes (%(counts)s), so nodes duplicate work."),
                counts=counts,
            ),
            TranslatableText(_("Set the same DCRON_SHARDS in all processes. No run starts twice.")),
        )
    if facts.namespaces_overlap:
        yield _node_warning(
            Problem.NAMESPACES_OVERLAP,
            TranslatableText(
                _("Some nodes serve all namespaces and others only one, so nodes duplicate work.")
            ),
            TranslatableText(
                _("Start all nodes with --namespace, or all without it. No run starts twice.")
            ),
        )
    if len(facts.versions) > 1:
        yield _node_warning(
            Problem.VERSIONS_DIFFER,
            TranslatableText(
                _("The nodes run different versions of django-dcron: %(versions)s."),
                versions=", ".join(facts.versions),
            ),
            TranslatableText(_("Install the same version for all nodes and restart them.")),
        )


def _explained_by_no_broker(facts: SystemFacts) -> bool:
    """Return whether no live node can use the broker, which ``NO_BROKER`` reports already."""
    return bool(facts.on_agendas) and facts.without_broker.number == facts.live_nodes


def _without_broker(facts: SystemFacts) -> Issue:
    age = facts.now - (facts.without_broker_since or facts.now)
    if facts.without_broker.number < facts.live_nodes:
        remedy = TranslatableText(
            _(
                "Check the network of these nodes. After DCRON_LEASE, the other nodes dispatch "
                "the runs."
            )
        )
    else:
        remedy = TranslatableText(
            _("Check that the broker is running and not full. Runs wait until it accepts messages.")
        )
    issue = _node_warning(
        Problem.BROKER_UNREACHABLE,
        _with_error(
            TranslatableText(
                _("Nodes that can't use the broker: %(nodes)s. Longest outage: %(age)s."),
                nodes=facts.without_broker.listed,
                age=age_text(age),
            ),
            facts.broker_error,
        ),
        remedy,
        facts.without_broker,
    )
    return replace(issue, since=facts.without_broker_since)


def _clock_in_doubt(facts: SystemFacts) -> Issue:
    if facts.clock_step > timedelta():
        template = _(
            "The database clock jumped forward by %(step)s. Nodes still on the old time: %(nodes)s."
        )
    else:
        template = _(
            "The database clock jumped back by %(step)s. Nodes still on the old time: %(nodes)s."
        )
    return _node_warning(
        Problem.CLOCK_IN_DOUBT,
        TranslatableText(
            template, step=age_text(abs(facts.clock_step)), nodes=facts.clock_doubted_by.listed
        ),
        TranslatableText(
            _("Check NTP on the database server. Nodes adopt the new time if it lasts.")
        ),
        facts.clock_doubted_by,
    )


def _with_error(summary: TranslatableText, error: str) -> TranslatableText:
    """Append the error if it is known and the reader may see it."""
    if not error:
        return summary
    return TranslatableText(
        _("%(summary)s Error: %(error)s"), summary=summary, error=with_full_stop(error)
    )


def _node_warning(
    problem: Problem,
    summary: TranslatableText,
    remedy: TranslatableText,
    nodes: NamedCount = NOTHING_NAMED,
) -> Issue:
    figures = {"nodes": nodes.number} if nodes else {}
    return Issue(problem, Severity.WARNING, summary, remedy, None, figures, nodes)
