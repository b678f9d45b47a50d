"""The health verdict is a pure function of facts, each checked alone and with others."""

import re
import shlex
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest

from django_dcron.policies.health.facts import (
    FreezeFacts,
    LongRun,
    NamedCount,
    QueueFacts,
    SystemFacts,
    UserPauses,
    WaitingCount,
    WaitingRuns,
    WorkerFacts,
)
from django_dcron.policies.health.problems import Issue, Problem, Severity, age_text
from django_dcron.policies.health.verdict import SystemStatus, Verdict, assess
from django_dcron.utils.messages import CountedText, TranslatableText

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
REDELIVER_AFTER = timedelta(seconds=60)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)

ERROR, WARNING = Severity.ERROR, Severity.WARNING
P = Problem


def ago(span: timedelta) -> datetime:
    return NOW - span


def facts(**given: Any) -> SystemFacts:
    """Return the facts of a healthy system, except for those in ``given``."""
    healthy: dict[str, Any] = {
        "now": NOW,
        "redeliver_after": REDELIVER_AFTER,
        "live_nodes": 2,
        "last_heartbeat": ago(SECOND),
        "versions": ("1",),
        "shard_counts": (64,),
        "enabled_jobs": 3,
        "last_start": ago(SECOND),
        "has_outcome": True,
        "workers": (WorkerFacts("w1", ("celery",), executes=True),),
    }
    return SystemFacts(**healthy | given)


def found(**given: Any) -> list[tuple[Problem, Severity]]:
    return [(issue.problem, issue.severity) for issue in assess(facts(**given)).issues]


def only(**given: Any) -> Issue:
    (issue,) = assess(facts(**given)).issues
    return issue


def queue(
    name: str = "celery", number: int = 3, waits: timedelta = 5 * MINUTE, last: Any = None
) -> QueueFacts:
    return QueueFacts(name, WaitingCount(number, ago(waits)), last)


def worker(name: str = "w1", *queues: str, executes: bool = True, unknown: int = 0) -> WorkerFacts:
    return WorkerFacts(name, queues or ("celery",), executes, unknown)


def test_healthy_system_has_no_issues() -> None:
    verdict = assess(facts())

    assert verdict.issues == ()
    assert verdict.status is SystemStatus.OK
    assert verdict.summary.values == {"nodes": 2}


def test_healthy_system_without_an_outcome_does_not_claim_that_runs_succeed() -> None:
    for shadows in (0, 1):
        verdict = assess(facts(has_outcome=False, enabled_shadows=shadows))
        assert verdict.status is SystemStatus.OK
        assert "Healthy" not in str(verdict.summary)


def test_healthy_system_with_shadows_does_not_claim_that_runs_succeed() -> None:
    verdict = assess(facts(enabled_jobs=44, enabled_shadows=43))
    assert verdict.status is SystemStatus.OK
    assert values(verdict.summary) == {"jobs": "44", "shadows": "43"}
    assert "succeed" not in str(verdict.summary)


def test_healthy_system_names_failures() -> None:
    given = facts(ran_lately=3, failed_lately=NamedCount(1, ("report",)), failures_lately=1)
    verdict, hidden = assess(given), assess(given.visible(jobs=False, nodes=False))

    assert verdict.status is SystemStatus.OK
    assert verdict.summary.values == {"jobs": "report"}
    assert hidden.summary.values == {"jobs": "1"}


@pytest.mark.parametrize(
    ("queued", "since", "last_start", "text"),
    [
        (0, None, ago(MINUTE), "Healthy: runs start"),
        (1, ago(MINUTE), ago(5 * SECOND), "Healthy: runs start"),
        (1, ago(5 * SECOND), ago(1440 * MINUTE), "Healthy: runs start"),
        (1, ago(20 * SECOND), ago(40 * SECOND), "1 run is queued, and the last run started 40 s"),
        (19, ago(MINUTE), ago(57 * SECOND), "19 runs are queued, and the last run started 55 s"),
    ],
)
def test_queue_that_waits_for_busy_workers_is_named_without_a_problem(
    queued: int, since: Any, last_start: Any, text: str
) -> None:
    given = facts(queued=queued, queued_since=since, last_start=last_start, running=1)
    verdict = assess(given)
    assert verdict.status is SystemStatus.OK
    assert text in str(verdict.summary)


@pytest.mark.parametrize(
    ("waits", "started", "idle"),
    [
        (14 * SECOND, MINUTE, None),
        (MINUTE, 14 * SECOND, None),
        (15 * SECOND, MINUTE, "15 s"),
        (MINUTE, 15 * SECOND, "15 s"),
        (50 * SECOND, 300 * MINUTE, "50 s"),
        (50 * SECOND, None, "50 s"),
    ],
)
@pytest.mark.parametrize("workers", [None, (worker(),)])
def test_queue_without_any_start_or_running_run_is_a_warning(
    waits: timedelta, started: timedelta | None, idle: str | None, workers: Any
) -> None:
    """Without workers, the banner isn't green until ``redeliver_after``."""
    given = facts(
        queued=43,
        queued_since=ago(waits),
        last_start=started and ago(started),
        workers=workers,
    )
    verdict = assess(given)
    if idle is None:
        assert verdict.issues == ()
        return
    (issue,) = verdict.issues
    assert (issue.problem, issue.severity) == (P.QUEUE_STALLED, WARNING)
    assert values(issue.summary) == {"age": idle, "queued": "43"}
    assert issue.figures == {"queued": 43}
    assert issue.since == ago(min(waits, started or waits))
    assert verdict.status is SystemStatus.DEGRADED


STALLED: dict[str, Any] = {
    "queued": 3,
    "queued_since": ago(5 * MINUTE),
    "last_start": ago(5 * MINUTE),
}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"running": 1}, []),
        ({"namespace": "shop"}, []),
        (
            {"without_broker": NamedCount(1), "live_nodes": 2},
            [(P.QUEUE_STALLED, WARNING), (P.BROKER_UNREACHABLE, WARNING)],
        ),
        ({"without_broker": NamedCount(1), "live_nodes": 1}, [(P.BROKER_UNREACHABLE, WARNING)]),
        ({"workers": ()}, [(P.NO_WORKER, WARNING)]),
        ({"workers": None, "queues": (queue(),)}, [(P.NO_WORKER, ERROR)]),
        ({"queues": (queue("other"),)}, [(P.QUEUE_UNSERVED, ERROR)]),
        ({"queues": (queue(),)}, [(P.WORKERS_BEHIND, ERROR)]),
        ({"database_read_only": True}, [(P.DATABASE_READ_ONLY, ERROR)]),
        ({"live_nodes": 0, "dispatcher": "thread"}, [(P.NO_LIVE_NODE, ERROR)]),
        ({"live_nodes": 0}, [(P.NO_LIVE_NODE, ERROR), (P.QUEUE_STALLED, WARNING)]),
        (
            {"stuck": WaitingCount(1, ago(MINUTE))},
            [(P.RUN_STUCK, ERROR), (P.QUEUE_STALLED, WARNING)],
        ),
    ],
)
def test_stalled_queue_is_not_reported_with_its_cause(given: Any, expected: Any) -> None:
    assert found(**STALLED | given) == expected


def test_remedy_for_stalled_queue_depends_on_the_dispatcher() -> None:
    assert "workers are running" in str(only(**STALLED).remedy)
    assert "DCRON_THREADS" in str(only(**STALLED, dispatcher="thread", workers=None).remedy)


def test_missed_occurrences_are_given_with_their_period() -> None:
    """They may have another period than the age of the oldest run."""
    given = {"queues": (queue(last=LATELY),), "missed": 12}
    assert values(only(**given).summary)["period"] == "5 min", "the age of the oldest run"
    since = ago(100 * MINUTE)
    assert values(only(**given, missed_since=since).summary)["period"] == "100 min"
    given = {"queues": (queue(),), "missed": 12, "workers": (), "last_start": LONG_AGO}
    assert values(only(**given, missed_since=since).summary)["period"] == "100 min"


@pytest.mark.parametrize("autostart", [False, True])
def test_remedy_for_missing_nodes_depends_on_autostart(autostart: bool) -> None:
    (issue,) = assess(facts(live_nodes=0, autostart=autostart)).issues

    assert ("DCRON_AUTOSTART" in str(issue.remedy)) is autostart


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        # the database
        ({"database_read_only": True}, [(P.DATABASE_READ_ONLY, ERROR)]),
        # nodes
        ({"live_nodes": 0}, [(P.NO_LIVE_NODE, ERROR)]),
        ({"live_nodes": 0, "last_heartbeat": None}, [(P.NO_LIVE_NODE, ERROR)]),
        ({"live_nodes": 0, "enabled_jobs": 0}, []),
        ({"live_nodes": 0, "enabled_jobs": 0, "queued": 1}, [(P.NO_LIVE_NODE, ERROR)]),
        ({"stalled": NamedCount(1, ("a",))}, [(P.NODE_STALLED, WARNING)]),
        ({"stalled": NamedCount(1, ("a",)), "stalled_namespaces": 1}, [(P.NODE_STALLED, ERROR)]),
        (
            {"stalled": NamedCount(1), "overdue_cursors": WaitingCount(1, ago(MINUTE))},
            [(P.NODE_STALLED, ERROR)],
        ),
        ({"unserved": NamedCount(1, ("shop",))}, [(P.NAMESPACE_UNSERVED, ERROR)]),
        # from the node to the queue
        (
            {"overdue_runs": WaitingCount(4, ago(MINUTE)), "on_agendas": 4},
            [(P.NO_BROKER, ERROR)],
        ),
        ({"overdue_runs": WaitingCount(4, ago(MINUTE))}, [(P.RUN_OVERDUE, ERROR)]),
        (
            {"overdue_runs": WaitingCount(4, ago(MINUTE)), "on_agendas": 1},
            [(P.NO_BROKER, ERROR), (P.RUN_OVERDUE, ERROR)],
        ),
        ({"overdue_cursors": WaitingCount(1, ago(MINUTE))}, [(P.CURSOR_OVERDUE, ERROR)]),
        ({"stuck": WaitingCount(1, ago(MINUTE))}, [(P.RUN_STUCK, ERROR)]),
        ({"stuck": WaitingCount(1, ago(MINUTE)), "may_still_rescue": True}, []),
        # outcomes of runs
        (
            {"ran_lately": 2, "failed_lately": NamedCount(2), "failures_lately": 3},
            [(P.EVERY_RUN_FAILS, ERROR)],
        ),
        ({"ran_lately": 2, "failed_lately": NamedCount(2), "failures_lately": 2}, []),
        ({"ran_lately": 3, "failed_lately": NamedCount(2), "failures_lately": 9}, []),
        (
            {
                "ran_lately": 3,
                "failed_lately": NamedCount(2),
                "failures_lately": 9,
                "keep_failing": NamedCount(2),
            },
            [(P.JOBS_FAILING, WARNING)],
        ),
        (
            {
                "ran_lately": 1,
                "failed_lately": NamedCount(1),
                "failures_lately": 9,
                "keep_failing": NamedCount(1),
            },
            [(P.EVERY_RUN_FAILS, ERROR)],
        ),
        ({"quarantined": NamedCount(1)}, [(P.QUARANTINED, ERROR)]),
        ({"auto_paused": NamedCount(1)}, [(P.JOB_AUTO_PAUSED, WARNING)]),
        ({"long_runs": (LongRun("j", 60 * MINUTE, MINUTE),)}, [(P.RUN_OVERLONG, WARNING)]),
        # nodes that differ
        ({"degraded": NamedCount(1)}, [(P.NODE_DEGRADED, WARNING)]),
        ({"without_broker": NamedCount(1)}, [(P.BROKER_UNREACHABLE, WARNING)]),
        ({"without_broker": NamedCount(2)}, [(P.BROKER_UNREACHABLE, WARNING)]),
        ({"clock_doubted_by": NamedCount(1)}, [(P.CLOCK_IN_DOUBT, WARNING)]),
        ({"skewed": NamedCount(1)}, [(P.NODE_SKEWED, WARNING)]),
        ({"shard_counts": (16, 64)}, [(P.SHARDS_DIFFER, WARNING)]),
        ({"namespaces_overlap": True}, [(P.NAMESPACES_OVERLAP, WARNING)]),
        ({"versions": ("1", "2")}, [(P.VERSIONS_DIFFER, WARNING)]),
    ],
)
def test_single_fact_leads_to_its_problem(
    given: dict[str, Any], expected: list[tuple[Problem, Severity]]
) -> None:
    assert found(**given) == expected


LONG_AGO = ago(5 * MINUTE)
LATELY = ago(SECOND)


@pytest.mark.parametrize(
    ("workers", "queues", "last_start", "expected"),
    [
        # No worker was asked, because the dispatcher isn't Celery or no node is live. Only the
        # starts count.
        (None, [queue()], None, [(P.NO_WORKER, ERROR)]),
        (None, [queue()], LONG_AGO, [(P.NO_WORKER, ERROR)]),
        (None, [queue()], LATELY, [(P.QUEUE_UNSERVED, ERROR)]),
        (None, [queue(last=LATELY)], LATELY, [(P.WORKERS_BEHIND, WARNING)]),
        (
            None,
            [queue(), queue("b", last=LATELY)],
            LATELY,
            [(P.QUEUE_UNSERVED, ERROR), (P.WORKERS_BEHIND, WARNING)],
        ),
        # No worker answers.
        ((), [queue()], LONG_AGO, [(P.NO_WORKER, ERROR)]),
        # The broker has no remote control.
        ((), [queue(last=LATELY)], LATELY, [(P.WORKERS_BEHIND, WARNING)]),
        ((), [], LATELY, []),
        ((), [], LONG_AGO, [(P.NO_WORKER, WARNING)]),
        ((), [], None, [(P.NO_WORKER, WARNING)]),
        # A worker answers.
        ((worker(),), [], LONG_AGO, []),
        ((worker(),), [queue("other")], LATELY, [(P.QUEUE_UNSERVED, ERROR)]),
        ((worker(),), [queue("other")], LONG_AGO, [(P.QUEUE_UNSERVED, ERROR)]),
        ((worker(),), [queue()], LONG_AGO, [(P.WORKERS_BEHIND, ERROR)]),
        ((worker(),), [queue(last=LATELY)], LATELY, [(P.WORKERS_BEHIND, WARNING)]),
        # The name of the queue is unknown.
        ((worker(),), [queue("")], LONG_AGO, [(P.WORKERS_BEHIND, ERROR)]),
        # The worker can't execute this project's runs.
        ((worker(executes=False),), [queue()], LONG_AGO, [(P.TASK_UNKNOWN_TO_WORKER, ERROR)]),
        ((worker(executes=False),), [], LONG_AGO, []),
        (
            (worker(executes=False), worker("w2")),
            [queue(last=LATELY)],
            LATELY,
            [(P.TASK_UNKNOWN_TO_WORKER, ERROR), (P.WORKERS_BEHIND, WARNING)],
        ),
        # A worker of another project.
        ((worker("w1", "mine", executes=False), worker("w2")), [], LATELY, []),
        ((worker(unknown=2),), [], LATELY, [(P.RUN_UNKNOWN_TO_WORKER, ERROR)]),
        ((worker(unknown=2),), [queue()], LONG_AGO, [(P.RUN_UNKNOWN_TO_WORKER, ERROR)]),
        (
            (worker(unknown=2), worker("w2")),
            [queue(last=LATELY)],
            LATELY,
            [(P.RUN_UNKNOWN_TO_WORKER, ERROR), (P.WORKERS_BEHIND, WARNING)],
        ),
    ],
)
def test_worker_and_queue_facts_lead_to_the_expected_problems(
    workers: Any, queues: Any, last_start: Any, expected: Any
) -> None:
    assert found(workers=workers, queues=tuple(queues), last_start=last_start) == expected


def test_worker_without_the_task_is_reported_on_recently_used_queues() -> None:
    workers = (worker("w1", executes=False), worker("w2"))

    assert found(workers=workers, recent_queues=("celery",)) == [(P.TASK_UNKNOWN_TO_WORKER, ERROR)]
    assert found(workers=workers, recent_queues=("other",)) == []


@pytest.mark.parametrize(
    ("workers", "last_start", "expected"),
    [
        (None, LONG_AGO, [(P.NO_WORKER, ERROR)]),
        ((), None, [(P.NO_WORKER, ERROR)]),
        ((worker(),), LONG_AGO, [(P.WORKERS_BEHIND, ERROR)]),
        (None, LATELY, []),
    ],
)
def test_missed_runs_that_never_started_reveal_missing_workers(
    workers: Any, last_start: Any, expected: Any
) -> None:
    """A policy may end late runs before the check, so that no run is queued or running."""
    never_started = WaitingCount(7, ago(4 * MINUTE))

    assert found(workers=workers, last_start=last_start, never_started=never_started) == expected


@pytest.mark.parametrize(("running", "last_start"), [(0, LONG_AGO), (1, LONG_AGO), (0, LATELY)])
def test_idle_workers_are_not_called_too_slow(running: int, last_start: datetime) -> None:
    """They may have discarded the messages. More workers wouldn't help."""
    issue = only(
        workers=(worker(),),
        queues=(queue(last=last_start),),
        running=running,
        last_start=last_start,
    )
    says_idle = "start no runs" in str(issue.summary)
    assert issue.problem is P.WORKERS_BEHIND
    assert says_idle is (not running and last_start == LONG_AGO)
    assert ("keep up" in str(issue.summary)) is bool(running)


def test_busy_workers_are_named_by_queue_and_job() -> None:
    waits: dict[str, Any] = {"workers": (worker(),), "queues": (queue(last=LATELY),), "running": 8}
    busy = facts(**waits, last_start=LATELY, busiest=(("flood", 7), ("report", 1)))
    (issue,) = assess(busy).issues
    assert issue.named.names == ("celery",)
    assert "queue celery can't keep up" in str(issue.summary)
    assert str(issue.remedy).startswith("Running runs by job: flood (7), report (1). Consider")
    assert "(manage.py dcron pause flood)" in str(issue.remedy)
    shared = facts(**waits, last_start=LATELY, busiest=(("flood", 4), ("report", 4)))
    assert "dcron pause" not in str(assess(shared).issues)
    (hidden,) = assess(busy.visible(jobs=False, nodes=True)).issues
    assert (hidden.named.names, "flood" in str(hidden)) == ((), False)


def test_overtaken_runs_blame_neither_the_workers_nor_a_job() -> None:
    overtaken = replace(queue(last=LATELY), overtaken=True)
    waits: dict[str, Any] = {"workers": (worker(),), "last_start": LATELY}
    for running, busiest in ((0, ()), (1, (("long", 1),))):
        issue = only(queues=(overtaken,), running=running, busiest=busiest, **waits)
        assert (issue.problem, issue.severity) == (P.WORKERS_BEHIND, WARNING)
        assert "probably lost" in str(issue.remedy)
    issue = only(queues=(overtaken, queue(last=LATELY)), running=1, **waits)
    assert "probably lost" not in str(issue.remedy)


def test_job_with_a_single_run_need_not_be_paused() -> None:
    waits: dict[str, Any] = {"workers": (worker(),), "queues": (queue(last=LATELY),)}
    issue = only(**waits, last_start=LATELY, running=1, busiest=(("long", 1),))
    assert "dcron pause" not in str(issue.remedy)


def test_unanswered_worker_ping_is_ignored_if_busy_or_idle() -> None:
    assert found(workers=(), last_start=LONG_AGO, running=1) == []
    assert found(workers=(), last_start=LONG_AGO, enabled_jobs=0) == []
    assert found(workers=None, last_start=None) == []


def test_queue_is_unserved_if_workers_are_silent_while_a_run_is_running() -> None:
    waits: dict[str, Any] = {"workers": (), "last_start": LONG_AGO, "queues": (queue(),)}

    assert found(**waits, running=1) == [(P.QUEUE_UNSERVED, ERROR)]
    assert found(**waits, running=0) == [(P.NO_WORKER, ERROR)]


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({}, ("mail", "reports")),
        ({"workers": (worker("w1", "mail"), worker("w2", "other"))}, ("reports",)),
        ({"workers": (worker("w1", "mail", "reports"),)}, ()),
        ({"workers": None}, ()),
        ({"running": 1}, ()),
    ],
    ids=str,
)
def test_queue_of_a_scheduled_job_without_a_worker_is_a_warning(
    given: dict[str, Any], names: tuple[str, ...]
) -> None:
    before = facts(**{"job_queues": ("mail", "reports"), "last_start": LONG_AGO} | given)
    issues = assess(before).issues
    assert [(issue.problem, issue.severity) for issue in issues] == (
        [(P.QUEUE_UNSERVED, WARNING)] if names else []
    )
    for issue in issues:
        assert issue.named == NamedCount(len(names), names)
        assert ", ".join(names) in str(issue.remedy)
    hidden = " ".join(map(str, assess(before.visible(jobs=False, nodes=True)).issues))
    assert "mail" not in hidden
    assert "reports" not in hidden


def test_queue_with_waiting_runs_is_an_error_and_no_warning() -> None:
    given = {"job_queues": ("mail", "reports"), "queues": (queue("mail"),)}
    assert only(**given).severity is ERROR


def test_thread_dispatcher_never_reports_missing_workers() -> None:
    given: dict[str, Any] = {"dispatcher": "thread", "workers": None, "last_start": LONG_AGO}

    assert found(**given, queues=(queue("q"),)) == [(P.WORKERS_BEHIND, ERROR)]
    assert found(**given, never_started=WaitingCount(1, LONG_AGO)) == [(P.WORKERS_BEHIND, ERROR)]


def test_root_cause_hides_the_problems_that_it_explains() -> None:
    due = {
        "overdue_runs": WaitingCount(3, ago(MINUTE)),
        "overdue_cursors": WaitingCount(2, ago(MINUTE)),
    }
    late = {"queues": (queue(),), "last_start": LONG_AGO, "workers": None}

    assert found(
        database_read_only=True, live_nodes=0, stuck=WaitingCount(1, LONG_AGO), **due, **late
    ) == [(P.DATABASE_READ_ONLY, ERROR)]
    assert found(live_nodes=0, stuck=WaitingCount(1, LONG_AGO), **due) == [(P.NO_LIVE_NODE, ERROR)]
    assert found(stalled=NamedCount(1), stalled_namespaces=1, **due) == [(P.NODE_STALLED, ERROR)]
    assert found(unserved=NamedCount(1), **due) == [(P.NAMESPACE_UNSERVED, ERROR)]
    assert found(live_nodes=0, **due, **late) == [(P.NO_LIVE_NODE, ERROR), (P.NO_WORKER, ERROR)]


def test_issues_are_ordered_by_severity_and_urgency() -> None:
    given: dict[str, Any] = {
        "degraded": NamedCount(1),
        "keep_failing": NamedCount(1),
        "quarantined": NamedCount(1),
        "unserved": NamedCount(1),
    }
    verdict = assess(facts(**given))

    assert [issue.problem for issue in verdict.issues] == [
        P.NAMESPACE_UNSERVED,
        P.QUARANTINED,
        P.NODE_DEGRADED,
        P.JOBS_FAILING,
    ]
    assert verdict.status is SystemStatus.UNFIT
    assert str(verdict.summary) == str(verdict.issues[0].summary)
    assert assess(facts(degraded=NamedCount(1))).status is SystemStatus.DEGRADED


def test_no_worker_issue_text_has_age_counts_and_remedy() -> None:
    """The sentence names the missing worker, the time, the number of runs and the remedy."""
    issue = only(
        workers=(),
        last_start=ago(24 * MINUTE),
        queued=181,
        missed=1079,
        queues=(queue(waits=24 * MINUTE),),
    )

    assert str(issue) == (
        "No worker has picked up a run for 24 min: 181 queued, 1,079 missed in the last "
        "24 min. Start a Celery worker for queue celery."
    )
    assert issue.figures == {"queued": 181, "missed": 1079}
    assert issue.since == ago(24 * MINUTE)


@pytest.mark.parametrize(
    ("queued", "missed", "counts"),
    [
        (27, 3, "27 queued, {}3 missed in the last 2 min"),
        (27, 0, "27 queued{}"),
        (0, 3, "3 missed in the last 2 min"),
    ],
)
def test_summaries_about_workers_omit_zeros(queued: int, missed: int, counts: str) -> None:
    given: dict[str, Any] = {
        "workers": (),
        "queued": queued,
        "missed": missed,
        "missed_since": ago(2 * MINUTE),
        "queues": (queue(waits=MINUTE + 15 * SECOND),),
    }
    summary = str(only(**given, last_start=ago(2 * MINUTE)).summary)
    assert summary.partition(": ")[2] == counts.format("") + "."
    summary = str(only(**given, dispatcher="thread", last_start=ago(2 * MINUTE)).summary)
    age = "the oldest for 75 s"
    expected = counts.format(f"{age}, " if missed else f", {age}")
    assert summary.partition(": ")[2] == f"{expected}."


def test_no_live_node_summary_has_age_and_overdue_counts() -> None:
    summary = only(live_nodes=0, last_heartbeat=ago(21 * MINUTE)).summary
    assert values(summary) == {"age": "21 min"}
    due = {"overdue_cursors": WaitingCount(3, LONG_AGO), "overdue_runs": WaitingCount(2, LONG_AGO)}
    summary = only(live_nodes=0, last_heartbeat=ago(21 * MINUTE), **due).summary
    assert values(summary) == {"age": "21 min", "jobs": "3", "runs": "2"}
    for waiting in due:
        summary = only(live_nodes=0, last_heartbeat=ago(21 * MINUTE), **{waiting: due[waiting]})
        assert "0" not in str(summary.summary), "zero runs look like a contradiction"


def test_no_worker_age_is_measured_from_the_oldest_waiting_run() -> None:
    """For example, no run was due all night."""
    issue = only(workers=(), last_start=ago(timedelta(hours=9)), queues=(queue(waits=2 * MINUTE),))
    assert issue.since == ago(2 * MINUTE)
    missed = only(workers=None, last_start=None, never_started=WaitingCount(2, ago(3 * MINUTE)))
    assert missed.since == ago(3 * MINUTE)


@pytest.mark.parametrize(
    ("dispatcher", "name", "remedy"),
    [
        ("celery", "celery", "Start a Celery worker for queue celery."),
        ("celery", "", "Start a Celery worker."),
        ("tasks", "mail", "Start a Django tasks worker for queue mail."),
        ("tasks", "", "Start a Django tasks worker."),
        ("shop.Dispatcher", "mail", "Start a worker for queue mail."),
        ("shop.Dispatcher", "", "Start a worker."),
    ],
)
def test_remedy_names_the_worker_type_and_queue(dispatcher: str, name: str, remedy: str) -> None:
    issue = only(dispatcher=dispatcher, workers=None, last_start=None, queues=(queue(name),))
    assert str(issue.remedy) == remedy


def test_remedy_names_several_queues() -> None:
    queues = (queue("mail"), queue("celery"))
    issue = only(dispatcher="celery", workers=None, last_start=None, queues=queues)
    assert str(issue.remedy) == "Start a Celery worker for queues celery, mail."


def test_remedy_without_any_worker_also_names_queues_of_the_latest_runs() -> None:
    """Runs of other queues wait, too, but not long enough for a problem of their own."""
    without_workers: dict[str, Any] = {"workers": None, "last_start": None}
    issue = only(
        **without_workers, queues=(queue("mail"),), queues_of_latest_queued=("mail", "celery", "")
    )
    assert str(issue.remedy) == "Start a Celery worker for queues celery, mail."

    many = tuple(f"queue{number:02}" for number in range(30))
    issue = only(**without_workers, queues=(queue("z"),), queues_of_latest_queued=many)
    assert str(issue.remedy).endswith("queue07, queue08, z."), "at most ten"
    all_unserved = tuple(map(queue, many))
    issue = only(**without_workers, queues=all_unserved)
    assert str(issue.remedy).endswith("queue28, queue29.")

    others = {"workers": (worker("w1", "celery"),), "queues": (queue("mail"),)}
    issue = only(**others, queues_of_latest_queued=("mail", "celery"))
    assert issue.problem is P.QUEUE_UNSERVED
    assert str(issue.remedy).startswith("Start a Celery worker for queue mail, or restart one")
    assert "replied" in str(issue.summary)
    assert "replied" not in str(only(**others | {"workers": (), "running": 1}).summary)


@pytest.mark.parametrize(("workers", "is_named"), [(None, False), ((), True), ((worker(),), False)])
def test_remedy_of_queued_runs_says_if_no_worker_has_replied(workers: Any, is_named: bool) -> None:
    idle = {"queued": 3, "queued_since": ago(MINUTE), "last_start": ago(MINUTE)}
    issue = only(**idle, workers=workers, queues_of_latest_queued=("mail",))
    assert issue.problem is P.QUEUE_STALLED
    assert "mail" in str(issue.remedy)
    assert ("replied" in str(issue.remedy)) is is_named


def test_remedy_for_unknown_task_is_autodiscover_tasks() -> None:
    issue = only(workers=(worker(executes=False),), queues=(queue(),))
    assert "app.autodiscover_tasks()" in str(issue.remedy)


SECRETS = ("secret-node", "secret-worker", "secret-space", "secret-job", "secret-queue")


def facts_with_names(**given: Any) -> SystemFacts:
    def named(name: str) -> NamedCount:
        return NamedCount(1, (name,))

    return facts(
        stalled=named("secret-node"),
        without_shards=named("secret-node"),
        degraded=named("secret-node"),
        skewed=named("secret-node"),
        lock_error="secret-node failed",
        broker_error="secret-node failed",
        unserved=named("secret-space"),
        quarantined=named("secret-job"),
        keep_failing=named("secret-job"),
        auto_paused=named("secret-job"),
        long_runs=(LongRun("secret-job", 60 * MINUTE, MINUTE),),
        waiting_runs=(WaitingRuns("secret-job", 3, LONG_AGO, MINUTE),),
        user_pauses=(UserPauses(3, "secret-job", NOW),),
        freezes=(FreezeFacts("secret-space", "deploy", "ann", NOW, None),),
        **{
            "workers": (
                worker("secret-worker", "secret-queue", unknown=1),
                worker("secret-worker", "secret-queue", executes=False),
            ),
            "queues": (queue("secret-queue"), queue("secret-queue-2")),
            "job_queues": ("secret-queue-3",),
            "last_start": LONG_AGO,
        }
        | given,
    )


@pytest.mark.parametrize("given", [{}, {"workers": None}, {"workers": (), "last_start": LATELY}])
@pytest.mark.parametrize(("jobs", "nodes"), [*product([True, False], repeat=2)])
def test_names_are_visible_only_with_permission(
    given: dict[str, Any], jobs: bool, nodes: bool
) -> None:
    everything = facts_with_names(**given)
    verdict = assess(everything.visible(jobs=jobs, nodes=nodes))

    text = " ".join([*map(str, verdict.issues), *(str(issue.named) for issue in verdict.issues)])

    assert ("secret-job" in text) == jobs
    assert ("secret-queue" in text) == (
        jobs and "secret-queue" in " ".join(map(str, assess(everything).issues))
    )
    assert ("secret-node" in text) == ("secret-space" in text) == nodes
    assert not (not nodes and "secret-worker" in text)
    assert [issue.problem for issue in verdict.issues] == [
        issue.problem for issue in assess(everything).issues
    ]
    if jobs and nodes and not given:
        assert all(secret in text for secret in SECRETS)


def test_visible_facts_differ_only_in_names() -> None:
    everything = facts_with_names()
    jobs_hidden: dict[str, Any] = {
        "quarantined": NamedCount(1),
        "keep_failing": NamedCount(1),
        "auto_paused": NamedCount(1),
        "long_runs": (LongRun("", 60 * MINUTE, MINUTE),),
        "waiting_runs": (WaitingRuns("", 3, LONG_AGO, MINUTE),),
        "user_pauses": (UserPauses(3, "", NOW),),
        "freezes": (FreezeFacts("", "", "", NOW, None),),
        "shows_queues": False,
    }
    nodes_hidden: dict[str, Any] = {
        "stalled": NamedCount(1),
        "without_shards": NamedCount(1),
        "degraded": NamedCount(1),
        "skewed": NamedCount(1),
        "lock_error": "",
        "broker_error": "",
        "unserved": NamedCount(1),
        "shows_workers": False,
    }

    assert everything.visible(jobs=True, nodes=True) == everything
    assert everything.visible(jobs=False, nodes=True) == replace(everything, **jobs_hidden)
    assert everything.visible(jobs=True, nodes=False) == replace(everything, **nodes_hidden)
    assert everything.visible(jobs=False, nodes=False) == replace(
        everything, **(jobs_hidden | nodes_hidden)
    )


def test_long_lists_and_large_counts_are_abbreviated() -> None:
    assert NamedCount(3, ("a", "b")).listed == "a, b, ..."
    assert NamedCount(2, ("a", "b")).listed == "a, b"
    assert NamedCount(2).listed == "2"
    issue = only(workers=(), last_start=None, queued=10_001, queues=(queue(),))
    assert "more than 10,000 queued" in str(issue)
    issue = only(workers=(), last_start=None, queued=10_000, queues=(queue(),))
    assert values(issue.summary)["queued"] == "10,000"
    assert NamedCount(2, ("a",)).unnamed == NamedCount(2)


@pytest.mark.parametrize(
    ("age", "words"),
    [
        (-SECOND, "0 s"),
        (4 * SECOND, "4 s"),
        (17 * SECOND, "15 s"),
        (119 * SECOND, "115 s"),
        (2 * MINUTE, "2 min"),
        (119 * MINUTE, "119 min"),
        (timedelta(hours=2), "2 h"),
        (timedelta(hours=47), "47 h"),
        (timedelta(days=2), "2 days"),
        (timedelta(days=3, hours=23), "3 days"),
    ],
)
def test_age_text_is_rounded(age: timedelta, words: str) -> None:
    assert str(age_text(age)) == words


@pytest.mark.parametrize(
    ("age", "number"),
    [(9.9 * SECOND, 5), (2.9 * MINUTE, 2), (timedelta(hours=2.9), 2), (timedelta(days=2.9), 2)],
)
def test_age_text_rounds_down_to_whole_numbers(age: timedelta, number: int) -> None:
    assert age_text(age).values == {"number": number}


def test_any_combination_of_facts_gives_unique_complete_issues() -> None:
    """Any combination of facts yields each problem once, and each problem has two sentences."""
    odd: dict[str, list[Any]] = {
        "database_read_only": [True, False],
        "live_nodes": [0, 1],
        "workers": [None, (), (worker(executes=False),), (worker(unknown=1),), (worker(),)],
        "queues": [(), (queue(),), (queue(""), queue("b", last=LATELY))],
        "last_start": [None, LATELY, LONG_AGO],
        "never_started": [WaitingCount(), WaitingCount(1, LONG_AGO)],
        "overdue_runs": [WaitingCount(), WaitingCount(2, LONG_AGO)],
        "stalled": [NamedCount(), NamedCount(1, ("a",))],
        "enabled_jobs": [0, 1],
    }
    base = facts()
    for values in product(*odd.values()):
        verdict = assess(replace(base, **dict(zip(odd, values, strict=True))))
        problems = [issue.problem for issue in verdict.issues]
        assert len(set(problems)) == len(problems)
        assert all(
            str(issue.summary).endswith(".") and str(issue.remedy).endswith(".")
            for issue in verdict.issues
        )
        assert bool(problems) == (verdict.status is not SystemStatus.OK)
        nobody_starts = verdict.facts.queues and verdict.facts.last_start is None
        assert problems or not nobody_starts, "runs wait, but no problem is reported"


# --- each problem in full -----------------------------------------------------------------------


def values(text: TranslatableText) -> dict[str, str]:
    """Return the values in a text and in its parts. A counted text yields its number."""
    found: dict[str, str] = {}
    for name, value in text.values.items():
        if name == "remedy" and isinstance(value, TranslatableText):
            found |= values(value)
        elif isinstance(value, CountedText):
            found[name] = str(value.values["number"])
        elif name in ("counts", *COUNTS) and isinstance(value, TranslatableText) and value.values:
            found |= values(value)
        else:
            found[name] = str(value)
    return found


COUNTS = ("queued", "missed")
"""Values that may be texts with these values themselves."""


WAITED = "4 min"
WAITING_SINCE = ago(4 * MINUTE)
NAMES = NamedCount(3, ("a", "b"))
LISTED = "a, b, ..."
WITH_UNKNOWN_RUNS = (worker("w1", unknown=2), worker("w2", unknown=5), worker("w3"))
WITHOUT_TASK = (worker("w1", executes=False), worker("w2", executes=False), worker("w3"))


@pytest.mark.parametrize(
    ("given", "expected", "summary", "remedy"),
    [
        (
            {"database_read_only": True},
            (P.DATABASE_READ_ONLY, ERROR, ago(SECOND), {}, NamedCount()),
            {},
            {},
        ),
        (
            {"live_nodes": 0, "last_heartbeat": None},
            (P.NO_LIVE_NODE, ERROR, None, {"jobs": 0, "runs": 0}, NamedCount()),
            {},
            {},
        ),
        (
            {"live_nodes": 0, "last_heartbeat": WAITING_SINCE},
            (P.NO_LIVE_NODE, ERROR, WAITING_SINCE, {"jobs": 0, "runs": 0}, NamedCount()),
            {"age": WAITED},
            {},
        ),
        (
            {
                "live_nodes": 0,
                "last_heartbeat": WAITING_SINCE,
                "overdue_cursors": WaitingCount(3, LONG_AGO),
            },
            (P.NO_LIVE_NODE, ERROR, WAITING_SINCE, {"jobs": 3, "runs": 0}, NamedCount()),
            {"age": WAITED, "waiting": "3"},
            {},
        ),
        (
            {
                "live_nodes": 0,
                "last_heartbeat": WAITING_SINCE,
                "overdue_runs": WaitingCount(2, LONG_AGO),
            },
            (P.NO_LIVE_NODE, ERROR, WAITING_SINCE, {"jobs": 0, "runs": 2}, NamedCount()),
            {"age": WAITED, "waiting": "2"},
            {},
        ),
        (
            {"stalled": NAMES, "stalled_since": WAITING_SINCE},
            (P.NODE_STALLED, WARNING, WAITING_SINCE, {"nodes": 3}, NAMES),
            {"nodes": LISTED},
            {},
        ),
        (
            {"unserved": NAMES},
            (P.NAMESPACE_UNSERVED, ERROR, None, {"namespaces": 3}, NAMES),
            {"namespaces": LISTED},
            {},
        ),
        (
            {"overdue_runs": WaitingCount(4, WAITING_SINCE), "on_agendas": 4},
            (P.NO_BROKER, ERROR, WAITING_SINCE, {"runs": 4}, NamedCount()),
            {"age": WAITED, "runs": "4"},
            {},
        ),
        (
            {"overdue_runs": WaitingCount(1, WAITING_SINCE)},
            (P.RUN_OVERDUE, ERROR, WAITING_SINCE, {"runs": 1}, NamedCount()),
            {"age": WAITED, "runs": "1"},
            {},
        ),
        (
            {"overdue_cursors": WaitingCount(4, WAITING_SINCE)},
            (P.CURSOR_OVERDUE, ERROR, WAITING_SINCE, {"jobs": 4}, NamedCount()),
            {"age": WAITED, "jobs": "4"},
            {},
        ),
        (
            {"workers": WITH_UNKNOWN_RUNS},
            (
                P.RUN_UNKNOWN_TO_WORKER,
                ERROR,
                None,
                {"workers": 2, "runs": 7},
                NamedCount(2, ("w1", "w2")),
            ),
            {"runs": "7", "workers": "w1, w2"},
            {},
        ),
        (
            {"workers": WITH_UNKNOWN_RUNS, "shows_workers": False},
            (P.RUN_UNKNOWN_TO_WORKER, ERROR, None, {"workers": 2, "runs": 7}, NamedCount(2)),
            {"runs": "7", "workers": "2"},
            {},
        ),
        (
            {"workers": WITHOUT_TASK, "recent_queues": ("celery",)},
            (P.TASK_UNKNOWN_TO_WORKER, ERROR, None, {"workers": 2}, NamedCount(2, ("w1", "w2"))),
            {"workers": "w1, w2"},
            {},
        ),
        (
            {"workers": WITHOUT_TASK, "recent_queues": ("celery",), "shows_workers": False},
            (P.TASK_UNKNOWN_TO_WORKER, ERROR, None, {"workers": 2}, NamedCount(2)),
            {"workers": "2"},
            {},
        ),
        (
            {"workers": (), "last_start": LONG_AGO},
            (P.NO_WORKER, WARNING, LONG_AGO, {}, NamedCount()),
            {},
            {},
        ),
        (
            {
                "workers": None,
                "last_start": None,
                "queued": 8,
                "missed": 9,
                "queues": (queue("b"), queue("a", waits=4 * MINUTE)),
            },
            (P.NO_WORKER, ERROR, LONG_AGO, {"queued": 8, "missed": 9}, NamedCount()),
            {"age": "5 min", "queued": "8", "missed": "9", "period": "5 min"},
            {"queues": "a, b"},
        ),
        (
            {
                "queued": 8,
                "missed": 9,
                "queues": (queue("b", 3), queue("a", 4, waits=4 * MINUTE)),
            },
            (
                P.QUEUE_UNSERVED,
                ERROR,
                LONG_AGO,
                {"queues": 2, "queued": 7},
                NamedCount(2, ("a", "b")),
            ),
            {"age": "5 min", "queues": "a, b", "queued": "7"},
            {"queues": "a, b"},
        ),
        (
            {"queues": (queue("b", 3), queue("a", 4)), "shows_queues": False},
            (P.QUEUE_UNSERVED, ERROR, LONG_AGO, {"queues": 2, "queued": 7}, NamedCount(2)),
            {"age": "5 min", "queues": "2", "queued": "7"},
            {},
        ),
        (
            {"queued": 8, "missed": 9, "queues": (queue(last=LATELY),)},
            (
                P.WORKERS_BEHIND,
                WARNING,
                LONG_AGO,
                {"queued": 8, "missed": 9},
                NamedCount(1, ("celery",)),
            ),
            {"age": "5 min", "queued": "8", "missed": "9", "period": "5 min"},
            {},
        ),
        (
            {"last_start": LONG_AGO, "missed": 9, "never_started": WaitingCount(7, WAITING_SINCE)},
            (P.WORKERS_BEHIND, ERROR, WAITING_SINCE, {"queued": 0, "missed": 9}, NamedCount()),
            {"missed": "9", "period": WAITED},
            {},
        ),
        (
            {"stuck": WaitingCount(3, WAITING_SINCE)},
            (P.RUN_STUCK, ERROR, WAITING_SINCE, {"runs": 3}, NamedCount()),
            {"runs": "3"},
            {},
        ),
        (
            {"ran_lately": 2, "failed_lately": NamedCount(2), "failures_lately": 9},
            (P.EVERY_RUN_FAILS, ERROR, None, {"jobs": 2, "failures": 9}, NamedCount()),
            {"jobs": "2"},
            {},
        ),
        (
            {
                "ran_lately": 5,
                "muted_lately": 2,
                "failed_lately": NamedCount(5),
                "failures_lately": 9,
                "keep_failing": NAMES,
            },
            (P.EVERY_RUN_FAILS, ERROR, None, {"jobs": 3, "failures": 9}, NAMES),
            {"jobs": "3"},
            {"names": LISTED},
        ),
        (
            {"unknown_targets": NAMES, "host": "web-1", "pid": 123},
            (P.UNKNOWN_TARGET, WARNING, None, {"targets": 3}, NAMES),
            {"targets": LISTED, "host": "web-1", "pid": "123"},
            {},
        ),
        (
            {"unknown_targets": NamedCount(3), "lacks_task_modules": True},
            (P.UNKNOWN_TARGET, WARNING, None, {"targets": 3}, NamedCount(3)),
            {"targets": "3"},
            {},
        ),
        (
            {"keep_failing": NAMES},
            (P.JOBS_FAILING, WARNING, None, {"jobs": 3}, NAMES),
            {"jobs": LISTED},
            {},
        ),
        (
            {"quarantined": NAMES},
            (P.QUARANTINED, ERROR, None, {"jobs": 3}, NAMES),
            {"jobs": LISTED},
            {},
        ),
        (
            {"auto_paused": NAMES},
            (P.JOB_AUTO_PAUSED, WARNING, None, {"jobs": 3}, NAMES),
            {"jobs": LISTED},
            {},
        ),
        (
            {
                "jobs": 9,
                "enabled_jobs": 0,
                "user_pauses": (
                    UserPauses(5, "it's quiet (ann)", ago(9 * MINUTE)),
                    UserPauses(3, "by bob", ago(10 * MINUTE)),
                ),
            },
            (
                P.ALL_JOBS_PAUSED,
                WARNING,
                ago(10 * MINUTE),
                {"jobs": 9, "paused": 8},
                NamedCount(),
            ),
            {"jobs": "9", "paused": "8", "age": "10 min", "reason": "it's quiet (ann)"},
            {"command": shlex.join(["resume", "--reason", "it's quiet (ann)"])},
        ),
        (
            {
                "jobs": 1,
                "enabled_jobs": 0,
                "user_pauses": (UserPauses(1, "", ago(MINUTE)),),
            },
            (P.ALL_JOBS_PAUSED, WARNING, ago(MINUTE), {"jobs": 1, "paused": 1}, NamedCount()),
            {"jobs": "1", "paused": "1", "age": "60 s"},
            {},
        ),
        (
            {"waiting_runs": (WaitingRuns("it's slow", 12, ago(9 * MINUTE), MINUTE),)},
            (
                P.JOB_BACKLOG,
                WARNING,
                ago(9 * MINUTE),
                {"jobs": 1, "runs": 12},
                NamedCount.of(["it's slow"]),
            ),
            {"runs": "12", "job": "it's slow", "age": "9 min"},
            {"command": shlex.join(["cancel", "it's slow", "--state", "waiting"])},
        ),
        (
            {
                "waiting_runs": (
                    WaitingRuns("a", 12, ago(3 * MINUTE), MINUTE),
                    WaitingRuns("b", 3, ago(9 * MINUTE), MINUTE),
                    WaitingRuns("few", 2, ago(9 * MINUTE), MINUTE),
                    WaitingRuns("new", 9, ago(2 * MINUTE), MINUTE),
                    WaitingRuns("patient", 9, ago(60 * MINUTE), 60 * MINUTE),
                )
            },
            (
                P.JOB_BACKLOG,
                WARNING,
                ago(9 * MINUTE),
                {"jobs": 2, "runs": 15},
                NamedCount(2, ("a", "b")),
            ),
            {"jobs": "a, b", "runs": "15", "age": "9 min"},
            {},
        ),
        (
            {
                "freezes": (
                    FreezeFacts("", "deploy (ann)", "ann", ago(90 * MINUTE), None),
                    FreezeFacts("shop", "incident", "bob", ago(60 * MINUTE), None),
                    FreezeFacts("crm", "moving", "bob", ago(59 * MINUTE), None),
                    FreezeFacts("old", "test", "bob", ago(999 * MINUTE), NOW + MINUTE),
                ),
            },
            (P.FREEZE_WITHOUT_END, WARNING, ago(90 * MINUTE), {"freezes": 2}, NamedCount()),
            {"age": "90 min", "reason": "deploy (ann)"},
            {},
        ),
        (
            {
                "long_runs": (
                    LongRun("a", 7 * MINUTE, 3 * MINUTE),
                    LongRun("b", 9 * MINUTE, 2 * MINUTE),
                    LongRun("a", 8 * MINUTE, 3 * MINUTE),
                )
            },
            (P.RUN_OVERLONG, WARNING, ago(9 * MINUTE), {"runs": 3}, NAMES),
            {"runs": LISTED, "lasts": "9 min", "usual": "2 min"},
            {},
        ),
        (
            {"long_runs": (LongRun("", 9 * MINUTE, 2 * MINUTE),)},
            (P.RUN_OVERLONG, WARNING, ago(9 * MINUTE), {"runs": 1}, NamedCount(1)),
            {"runs": "1", "lasts": "9 min", "usual": "2 min"},
            {},
        ),
        (
            {"long_runs": (LongRun("a", 8 * MINUTE, MINUTE), LongRun("b", 9 * MINUTE, None))},
            (P.RUN_OVERLONG, WARNING, ago(9 * MINUTE), {"runs": 2}, NamedCount(2, ("a", "b"))),
            {"runs": "a, b", "lasts": "9 min"},
            {},
        ),
        (
            {"without_shards": NAMES},
            (P.NO_SHARD_LED, WARNING, None, {"nodes": 3}, NAMES),
            {"nodes": LISTED},
            {},
        ),
        (
            {"degraded": NAMES},
            (P.NODE_DEGRADED, WARNING, None, {"nodes": 3}, NAMES),
            {"nodes": LISTED},
            {},
        ),
        (
            {"live_nodes": 4, "without_broker": NAMES, "without_broker_since": WAITING_SINCE},
            (P.BROKER_UNREACHABLE, WARNING, WAITING_SINCE, {"nodes": 3}, NAMES),
            {"nodes": LISTED, "age": WAITED},
            {},
        ),
        (
            {"clock_doubted_by": NAMES, "clock_step": -6 * SECOND},
            (P.CLOCK_IN_DOUBT, WARNING, None, {"nodes": 3}, NAMES),
            {"nodes": LISTED, "step": "5 s"},
            {},
        ),
        (
            {"skewed": NAMES},
            (P.NODE_SKEWED, WARNING, None, {"nodes": 3}, NAMES),
            {"nodes": LISTED},
            {},
        ),
        (
            {"shard_counts": (16, 64)},
            (P.SHARDS_DIFFER, WARNING, None, {}, NamedCount()),
            {"counts": "16, 64"},
            {},
        ),
        (
            {"namespaces_overlap": True},
            (P.NAMESPACES_OVERLAP, WARNING, None, {}, NamedCount()),
            {},
            {},
        ),
        (
            {"versions": ("1", "2")},
            (P.VERSIONS_DIFFER, WARNING, None, {}, NamedCount()),
            {"versions": "1, 2"},
            {},
        ),
    ],
)
def test_issue_has_figures_names_summary_and_remedy(
    given: dict[str, Any],
    expected: tuple[Any, ...],
    summary: dict[str, str],
    remedy: dict[str, str],
) -> None:
    issue = only(**given)

    assert (issue.problem, issue.severity, issue.since, issue.figures, issue.named) == expected
    assert (values(issue.summary), values(issue.remedy)) == (summary, remedy)
    assert "%(" not in str(issue)


def test_overdue_runs_are_split_by_whether_they_are_on_an_agenda() -> None:
    broker, rest = assess(
        facts(overdue_runs=WaitingCount(40_000, WAITING_SINCE), on_agendas=15_000)
    ).issues

    assert (broker.problem, broker.figures) == (P.NO_BROKER, {"runs": 15_000})
    assert (rest.problem, rest.figures) == (P.RUN_OVERDUE, {"runs": 25_000})
    assert values(rest.summary) == {"age": WAITED, "runs": "more than 10,000"}


def test_no_broker_hides_broker_unreachable_unless_another_node_reaches_it() -> None:
    wait: dict[str, Any] = {"overdue_runs": WaitingCount(4, WAITING_SINCE), "on_agendas": 4}

    assert found(**wait, without_broker=NamedCount(2)) == [(P.NO_BROKER, ERROR)]
    assert found(**wait, without_broker=NamedCount(1)) == [
        (P.NO_BROKER, ERROR),
        (P.BROKER_UNREACHABLE, WARNING),
    ]


@pytest.mark.parametrize(
    "given",
    [
        {"degraded": NamedCount(1), "lock_error": "out of memory"},
        {"without_broker": NamedCount(1), "broker_error": "out of memory"},
        {
            "overdue_runs": WaitingCount(4, WAITING_SINCE),
            "on_agendas": 4,
            "without_broker": NamedCount(2),
            "broker_error": "out of memory",
        },
    ],
)
def test_error_of_a_node_is_shown_to_those_who_may_see_nodes(given: dict[str, Any]) -> None:
    def summary(*, nodes: bool) -> str:
        return str(assess(facts(**given).visible(jobs=True, nodes=nodes)).issues[0].summary)

    assert "Error: out of memory." in summary(nodes=True)
    assert "out of memory" not in summary(nodes=False)


def test_broker_remedy_depends_on_whether_another_node_reaches_it() -> None:
    some, all_of_them = (only(without_broker=NamedCount(number)).remedy for number in (1, 2))

    assert some.template != all_of_them.template


def test_clock_in_doubt_summary_names_direction_of_the_jump() -> None:
    ahead, back = (
        only(clock_doubted_by=NamedCount(1), clock_step=step * SECOND).summary.template
        for step in (6, -6)
    )

    assert ahead != back


@pytest.mark.parametrize(
    "given",
    [
        {"live_nodes": 0, "overdue_cursors": WaitingCount(1, WAITING_SINCE)},
        {"live_nodes": 0, "overdue_runs": WaitingCount(1, WAITING_SINCE)},
        {"overdue_runs": WaitingCount(1, WAITING_SINCE), "on_agendas": 1},
        {"workers": (worker("w1", unknown=1),)},
    ],
    ids=str,
)
def test_summary_uses_the_singular_for_one_item(given: dict[str, Any]) -> None:
    assert not re.search(r"\b1 (due )?(jobs|runs)\b", str(only(**given)))


def test_overdue_work_without_a_time_is_ignored() -> None:
    assert found(overdue_runs=WaitingCount(4), on_agendas=3) == []
    assert found(overdue_cursors=WaitingCount(4)) == []
    assert found(overdue_cursors=WaitingCount(0, WAITING_SINCE)) == []


def test_queue_of_unknown_age_has_age_zero() -> None:
    issue = only(workers=None, last_start=None, queues=(QueueFacts("celery", WaitingCount(3)),))

    assert (issue.problem, issue.since) == (P.NO_WORKER, NOW)
    assert values(issue.summary)["age"] == "0 s"


def test_stalled_nodes_are_an_error_only_if_work_waits() -> None:
    stalled: dict[str, Any] = {"stalled": NamedCount(1)}

    assert found(**stalled, overdue_runs=WaitingCount(1, WAITING_SINCE)) == [
        (P.NODE_STALLED, ERROR)
    ]
    assert found(**stalled, enabled_jobs=0) == []


def test_start_is_recent_within_the_redelivery_interval() -> None:
    waits: dict[str, Any] = {"workers": None, "queues": (queue(),)}

    assert found(**waits, last_start=ago(REDELIVER_AFTER)) == [(P.QUEUE_UNSERVED, ERROR)]
    assert found(**waits, last_start=ago(REDELIVER_AFTER + SECOND)) == [(P.NO_WORKER, ERROR)]


def test_workers_behind_is_a_warning_if_they_start_runs_of_any_queue() -> None:
    workers = (worker("w1", "a", "b"),)

    assert found(workers=workers, queues=(queue("a"), queue("b", last=LATELY))) == [
        (P.WORKERS_BEHIND, WARNING)
    ]
    assert found(workers=workers, queues=(queue("a"), queue("b"))) == [(P.WORKERS_BEHIND, ERROR)]


def test_queued_and_missed_runs_give_one_issue() -> None:
    missed = WaitingCount(7, ago(9 * MINUTE))
    issue = only(last_start=LONG_AGO, queues=(queue(),), never_started=missed)

    assert (issue.problem, issue.since) == (P.WORKERS_BEHIND, missed.since)


def test_silent_workers_are_ignored_without_live_nodes() -> None:
    assert found(workers=(), last_start=LONG_AGO, live_nodes=0) == [(P.NO_LIVE_NODE, ERROR)]


def test_failures_of_jobs_that_did_not_run_lately_are_ignored() -> None:
    assert found(ran_lately=0, failed_lately=NamedCount(0), failures_lately=9) == []


def test_remedy_for_unknown_targets_depends_on_the_import_of_task_modules() -> None:
    def remedy(failed: bool) -> str:
        return str(only(unknown_targets=NamedCount(1), lacks_task_modules=failed).remedy)

    assert "can't be imported" in remedy(True)
    assert remedy(False).startswith("Restart the process if it runs older code.")


def test_remedy_for_unknown_targets_names_a_similar_target_last() -> None:
    """In a deploy, web processes are restarted last: the similar target may be an old name."""
    given = facts(unknown_targets=NamedCount(1, ("b.old",)), similar_targets=("b.new",))
    (issue,) = assess(given).issues
    assert str(issue.remedy).startswith("Restart the process if it runs older code.")
    assert str(issue.remedy).endswith("Did you mean 'b.new'?")
    (hidden,) = assess(given.visible(jobs=False, nodes=True)).issues
    assert "b.new" not in str(hidden.remedy)


def test_unknown_targets_name_a_web_process_only_if_it_is_known_to_be_one() -> None:
    def summary(serves_requests: bool) -> str:
        process = {"host": "web-1", "pid": 1234567, "serves_requests": serves_requests}
        return str(only(unknown_targets=NamedCount(1), **process).summary)

    assert ("web process" in summary(True), "web process" in summary(False)) == (True, False)
    assert all("PID 1234567 on host web-1" in summary(known) for known in (True, False))


def test_workers_behind_remedy_depends_on_the_dispatcher() -> None:
    def remedy(dispatcher: str) -> str:
        issue = only(dispatcher=dispatcher, workers=None, queues=(queue(last=LATELY),))
        assert issue.problem is P.WORKERS_BEHIND
        return str(issue.remedy)

    assert "DCRON_THREADS" in remedy("thread")
    assert "DCRON_THREADS" not in remedy("celery")


class Marked:
    """A language whose translations are recognizable."""

    def gettext(self, message: str, /) -> str:
        return f"<{message}>"

    def pgettext(self, context: str, message: str, /) -> str:
        raise NotImplementedError

    def ngettext(self, singular: str, plural: str, number: int, /) -> str:
        raise NotImplementedError


def test_issue_translates_summary_and_remedy() -> None:
    issue = Issue(P.NO_WORKER, ERROR, TranslatableText("Summary."), TranslatableText("Remedy."))

    assert issue.translate(Marked()) == "<Summary.> <Remedy.>"
    assert str(issue) == "Summary. Remedy."
    assert (issue.since, issue.figures, issue.named) == (None, {}, NamedCount())


def test_healthy_verdict_counts_nodes_only_if_jobs_are_enabled() -> None:
    idle, busy = assess(facts(enabled_jobs=0)), assess(facts())

    assert idle.summary.values == {}
    assert busy.summary.values == {"nodes": 2}
    assert str(idle.summary) != str(busy.summary)
    assert busy == Verdict(facts(), ())
    assert busy.problems == frozenset()
    assert assess(facts(degraded=NamedCount(1), skewed=NamedCount(1))).problems == {
        P.NODE_DEGRADED,
        P.NODE_SKEWED,
    }


@pytest.mark.parametrize(
    "work", [{"enabled_jobs": 1}, {"overdue_runs": WaitingCount(1)}, {"queued": 1}], ids=str
)
def test_has_work_is_true_if_jobs_or_runs_exist(work: dict[str, Any]) -> None:
    assert SystemFacts(NOW, REDELIVER_AFTER, **work).has_work
    assert not SystemFacts(NOW, REDELIVER_AFTER).has_work


def test_error_that_every_run_fails_says_if_muted_incidents_are_not_counted() -> None:
    failing = {"failed_lately": NamedCount(3), "failures_lately": 9}
    for muted in (0, 1):
        verdict = assess(facts(ran_lately=3, muted_lately=muted, **failing))
        (issue,) = verdict.issues
        assert issue.problem is P.EVERY_RUN_FAILS
        assert ("muted" in str(issue.summary)) is bool(muted)


def test_backlog_names_no_job_without_permission() -> None:
    everything = facts(waiting_runs=(WaitingRuns("secret", 12, ago(9 * MINUTE), MINUTE),))
    (shown,) = assess(everything.visible(jobs=False, nodes=True)).issues
    assert "secret" not in f"{shown} {shown.named}"
    assert shown.figures == {"jobs": 1, "runs": 12}


@pytest.mark.parametrize(
    "other",
    [
        {"freezes": (FreezeFacts("", "deploy", "ann", NOW, None),)},
        {"quarantined": NamedCount(1, ("q",))},
    ],
)
def test_backlog_is_not_reported_beside_a_freeze_or_an_error(other: dict[str, Any]) -> None:
    waiting = (WaitingRuns("a", 12, ago(9 * MINUTE), MINUTE),)
    assert P.JOB_BACKLOG in assess(facts(waiting_runs=waiting)).problems
    assert P.JOB_BACKLOG not in assess(facts(waiting_runs=waiting, **other)).problems


def test_freeze_is_not_reported_as_a_problem() -> None:
    freeze = FreezeFacts("", "deploy", "ann", NOW, None)
    verdict = assess(facts(freezes=(freeze,)))
    assert verdict.status is SystemStatus.OK
    assert verdict.summary.values == {"freezes": 1}


def test_facts_default_to_a_system_without_work() -> None:
    bare = SystemFacts(NOW, REDELIVER_AFTER)
    no_number = (
        "live_nodes dead_nodes jobs enabled_jobs stalled_namespaces on_agendas queued running "
        "missed enabled_shadows ran_lately muted_lately failures_lately"
    )
    no_names = (
        "stalled without_shards degraded without_broker clock_doubted_by skewed unserved "
        "quarantined keep_failing auto_paused unknown_targets failed_lately"
    )

    assert {each.name: getattr(bare, each.name) for each in fields(bare)} == {
        "now": NOW,
        "redeliver_after": REDELIVER_AFTER,
        "namespace": "",
        "dispatcher": "celery",
        "autostart": False,
        "database_read_only": False,
        "may_still_rescue": False,
        "last_heartbeat": None,
        "stalled_since": None,
        "without_broker_since": None,
        "lock_error": "",
        "broker_error": "",
        "clock_step": timedelta(0),
        "namespaces_overlap": False,
        "lacks_task_modules": False,
        "host": "",
        "pid": 0,
        "serves_requests": False,
        "workers": None,
        "last_start": None,
        "has_outcome": False,
        "queued_since": None,
        "missed_since": None,
        "long_runs": (),
        "similar_targets": (),
        "user_pauses": (),
        "waiting_runs": (),
        "freezes": (),
        "queues": (),
        "busiest": (),
        "queues_of_latest_queued": (),
        "job_queues": (),
        "recent_queues": (),
        "versions": (),
        "shard_counts": (),
        "shows_queues": True,
        "shows_workers": True,
        **dict.fromkeys(no_number.split(), 0),
        **dict.fromkeys(no_names.split(), NamedCount(0, ())),
        **dict.fromkeys(
            ["overdue_cursors", "overdue_runs", "never_started", "stuck"], WaitingCount(0, None)
        ),
    }
    assert QueueFacts("q", WaitingCount()).last_start is None
    assert not QueueFacts("q", WaitingCount()).overtaken
    assert WorkerFacts("w", (), executes=True).unknown_runs == 0
