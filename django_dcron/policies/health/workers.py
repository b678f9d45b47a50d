"""Problems between the queue and the worker: no worker, a wrong one, or too few."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from django_dcron.policies.health.facts import (
    NamedCount,
    QueueFacts,
    SystemFacts,
    WaitingCount,
    WorkerFacts,
)
from django_dcron.policies.health.problems import (
    FIND_UNLED_SHARDS,
    Issue,
    Problem,
    Severity,
    age_text,
    bounded_number,
)
from django_dcron.policies.health.worker_remedies import (
    CHECK_WORKERS,
    check_workers,
    raise_capacity,
    start_a_worker,
    start_a_worker_unless_busy,
)
from django_dcron.utils.messages import TranslatableText, ngettext
from django_dcron.utils.messages import gettext_noop as _

IDLE_QUEUE_AFTER = timedelta(seconds=15)
"""After this time without a start, the verdict mentions the queued runs."""


def worker_issues(facts: SystemFacts) -> Iterator[Issue]:
    if facts.database_read_only:
        return
    issues = [*_unsuitable_workers(facts), *_unstarted_runs(facts)]
    yield from issues
    if not issues and _is_queue_stalled(facts):
        yield _queue_stalled(facts)
    if facts.stuck and facts.live_nodes and not facts.may_still_rescue:
        yield _run_stuck(facts)


def issues_of_queue(name: str, due_at: datetime, facts: SystemFacts) -> Iterator[Issue]:
    """Yield why no worker starts a run of the queue, according to the workers' replies."""
    if not facts.workers or not name:
        return
    consumers = tuple(worker for worker in facts.workers if name in worker.queues)
    queue = QueueFacts(name, WaitingCount(1, due_at))
    if not consumers and not facts.running:  # a busy worker may not reply
        yield _queue_unserved(facts, [queue])
    elif _has_only_unsuitable_workers(queue, facts):
        yield from _unsuitable_workers(replace(facts, workers=consumers, queues=(queue,)))


def _unstarted_runs(facts: SystemFacts) -> Iterator[Issue]:
    """Yield issues about runs that no worker has started within ``redeliver_after``."""
    unexplained = [
        queue for queue in facts.queues if not _has_only_unsuitable_workers(queue, facts)
    ]
    unserved = [queue for queue in unexplained if _is_unserved(queue, facts)]
    behind = [queue for queue in unexplained if queue not in unserved]
    if unserved and _no_worker_at_all(facts):
        yield _no_worker(facts, unserved)
    elif unserved:
        yield _queue_unserved(facts, unserved)
    else:
        yield from _queues_without_consumer(facts)
    if behind:
        yield _workers_behind(facts, behind)
    if not facts.queues and facts.never_started and _is_long_ago(facts.last_start, facts):
        yield _no_worker(facts, ()) if _no_worker_at_all(facts) else _workers_behind(facts, ())
    elif not facts.queues and _no_worker_replies(facts):
        yield Issue(
            Problem.NO_WORKER,
            Severity.WARNING,
            TranslatableText(_("No Celery worker is responding to the nodes.")),
            start_a_worker(facts, ()),
            facts.last_start,
        )


def _queues_without_consumer(facts: SystemFacts) -> Iterator[Issue]:
    """Warn of queues of scheduled jobs that no worker consumes, before a run waits there.

    A busy worker may not reply, so there is no warning while a run is running. Workers that only
    consume other queues may belong to another site with the same broker.
    """
    if facts.running or not facts.workers:
        return
    consumed = {queue for worker in facts.workers for queue in worker.queues}
    if missing := tuple(name for name in facts.job_queues if name not in consumed):
        named = NamedCount(len(missing), missing if facts.shows_queues else ())
        yield Issue(
            Problem.QUEUE_UNSERVED,
            Severity.WARNING,
            TranslatableText(
                _("No worker that replied consumes these queues of scheduled jobs: %(queues)s."),
                queues=named.listed,
            ),
            start_a_worker_unless_busy(facts, missing),
            None,
            {"queues": named.number, "queued": 0},
            named,
        )


def _unsuitable_workers(facts: SystemFacts) -> Iterator[Issue]:
    """Yield issues about workers that take runs from the jobs' queues but can't execute them."""
    if foreign := [worker for worker in facts.workers or () if worker.unknown_runs]:
        named = _workers_named(foreign, facts)
        runs = sum(worker.unknown_runs for worker in foreign)
        yield Issue(
            Problem.RUN_UNKNOWN_TO_WORKER,
            Severity.ERROR,
            ngettext(
                "Workers connected to another database took %(runs)s run from the queue: "
                "%(workers)s.",
                "Workers connected to another database took %(runs)s runs from the queue: "
                "%(workers)s.",
                runs,
                runs=runs,
                workers=named.listed,
            ),
            TranslatableText(
                _("Connect these workers to this database, or give them another broker or queue.")
            ),
            None,
            {"workers": named.number, "runs": runs},
            named,
        )
    if without_task := _workers_without_task(facts):
        named = _workers_named(without_task, facts)
        yield Issue(
            Problem.TASK_UNKNOWN_TO_WORKER,
            Severity.ERROR,
            TranslatableText(
                _(
                    "Workers that discard runs because the task django_dcron.execute isn't "
                    "registered: %(workers)s."
                ),
                workers=named.listed,
            ),
            TranslatableText(
                _(
                    "Restart the workers. If this doesn't help, call app.autodiscover_tasks() in "
                    "their Celery app."
                )
            ),
            None,
            {"workers": named.number},
            named,
        )


def _workers_without_task(facts: SystemFacts) -> list[WorkerFacts]:
    """Return workers that consume one of the jobs' queues without django-dcron's task.

    Workers of other queues may belong to another project.
    """
    queues_of_jobs = {queue.name for queue in facts.queues} | set(facts.recent_queues)
    return [
        worker
        for worker in facts.workers or ()
        if not worker.executes and queues_of_jobs & {*worker.queues}
    ]


def _workers_named(workers: Sequence[WorkerFacts], facts: SystemFacts) -> NamedCount:
    names = tuple(worker.name for worker in workers) if facts.shows_workers else ()
    return NamedCount(len(workers), names)


def _has_only_unsuitable_workers(queue: QueueFacts, facts: SystemFacts) -> bool:
    """Return whether the queue is consumed, but only by workers that can't execute the runs."""
    consumers = [worker for worker in facts.workers or () if queue.name in worker.queues]
    return bool(consumers) and not any(
        worker.executes and not worker.unknown_runs for worker in consumers
    )


def _is_unserved(queue: QueueFacts, facts: SystemFacts) -> bool:
    """Return whether no worker consumes the queue.

    The workers' replies decide, or the latest start if no worker replies.
    """
    if facts.dispatcher == "thread":
        return False
    if facts.workers:
        return bool(queue.name) and not any(queue.name in worker.queues for worker in facts.workers)
    return _is_long_ago(queue.last_start, facts)


def _no_worker_at_all(facts: SystemFacts) -> bool:
    """Return whether nothing shows a worker: no reply, no recent start and no running run.

    A busy worker may not reply.
    """
    silent = not facts.workers and not facts.running
    return facts.dispatcher != "thread" and silent and _is_long_ago(facts.last_start, facts)


def _no_worker_replies(facts: SystemFacts) -> bool:
    """Return whether no worker replied to the nodes, and no start or running run shows one."""
    idle = not facts.running and _is_long_ago(facts.last_start, facts)
    return facts.workers == () and bool(facts.enabled_jobs) and bool(facts.live_nodes) and idle


def _is_queue_stalled(facts: SystemFacts) -> bool:
    """Return whether runs are queued, none has started for a while, and none is running.

    Workers that are busy with long runs aren't a problem. Other problems report an unreachable
    broker, and missing nodes if the nodes execute the runs.
    """
    if facts.namespace or facts.running:
        return False  # the workers may be busy with runs of other namespaces
    if facts.without_broker and facts.without_broker.number == facts.live_nodes:
        return False
    if facts.dispatcher == "thread" and not facts.live_nodes:
        return False
    since = idle_since(facts)
    return since is not None and facts.now - since >= IDLE_QUEUE_AFTER


def idle_since(facts: SystemFacts) -> datetime | None:
    """Return since when runs are queued and none has started. None if no run is queued."""
    if facts.queued_since is None:
        return None
    return max(facts.queued_since, facts.last_start or facts.queued_since)


def _is_long_ago(start: datetime | None, facts: SystemFacts) -> bool:
    return start is None or facts.now - start > facts.redeliver_after


def _no_worker(facts: SystemFacts, queues: Sequence[QueueFacts]) -> Issue:
    since = _oldest(facts, queues)
    return Issue(
        Problem.NO_WORKER,
        Severity.ERROR,
        TranslatableText(
            _("No worker has picked up a run for %(age)s: %(counts)s."),
            age=age_text(facts.now - since),
            counts=_counts(facts, since, _("%(queued)s queued")),
        ),
        start_a_worker(facts, _names(queues), facts.queues_of_latest_queued),
        since,
        {"queued": facts.queued, "missed": facts.missed},
    )


def _queue_unserved(facts: SystemFacts, queues: Sequence[QueueFacts]) -> Issue:
    since = _oldest(facts, queues)
    named = _queues_named(queues, facts)
    queued = sum(queue.waiting.number for queue in queues)
    text = _(
        "No worker starts runs from these queues: %(queues)s (%(queued)s queued, the oldest for "
        "%(age)s)."
    )
    if facts.workers:
        text = _(
            "No worker that replied consumes these queues: %(queues)s (%(queued)s queued, the "
            "oldest for %(age)s)."
        )
    return Issue(
        Problem.QUEUE_UNSERVED,
        Severity.ERROR,
        TranslatableText(
            text,
            queues=named.listed,
            queued=bounded_number(queued),
            age=age_text(facts.now - since),
        ),
        start_a_worker_unless_busy(facts, _names(queues)),
        since,
        {"queues": named.number, "queued": queued},
        named,
    )


def _workers_behind(facts: SystemFacts, queues: Sequence[QueueFacts]) -> Issue:
    since = _oldest(facts, queues)
    counts = _counts(facts, since, _("%(queued)s queued, the oldest for %(age)s"))
    is_stalled = all(_is_long_ago(queue.last_start, facts) for queue in queues)
    if queues and facts.workers and not facts.running and is_stalled:
        summary = TranslatableText(_("Workers start no runs: %(counts)s."), counts=counts)
        remedy = TranslatableText(
            _(
                "If other tasks keep the workers busy, start more workers. If the workers are "
                "idle, the messages were lost, and the nodes send them again within minutes."
            )
        )
    elif not is_stalled and all(queue.overtaken for queue in queues):
        summary = TranslatableText(
            _("Workers start later runs, but not these: %(counts)s."), counts=counts
        )
        remedy = TranslatableText(
            _(
                "The messages were probably lost, and the nodes send them again. If all workers "
                "are busy, these messages may wait in one of them, or have a lower priority."
            )
        )
    elif not facts.running and facts.dispatcher != "thread":
        summary = TranslatableText(_("No run is executing: %(counts)s."), counts=counts)
        remedy = TranslatableText(CHECK_WORKERS)
    else:
        summary = _cannot_keep_up(facts, queues, counts)
        remedy = raise_capacity(facts)
    return Issue(
        Problem.WORKERS_BEHIND,
        Severity.ERROR if is_stalled else Severity.WARNING,
        summary,
        remedy,
        since,
        {"queued": facts.queued, "missed": facts.missed},
        _queues_named(queues, facts),
    )


def _cannot_keep_up(
    facts: SystemFacts, queues: Sequence[QueueFacts], counts: TranslatableText
) -> TranslatableText:
    names = _queues_named(queues, facts).names
    if not names or facts.dispatcher == "thread":
        return TranslatableText(_("Workers can't keep up: %(counts)s."), counts=counts)
    return ngettext(
        "Workers of the queue %(queues)s can't keep up: %(counts)s.",
        "Workers of the queues %(queues)s can't keep up: %(counts)s.",
        len(names),
        queues=", ".join(names),
        counts=counts,
    )


def _counts(facts: SystemFacts, since: datetime, queued_text: str) -> TranslatableText:
    """Return the numbers of queued runs (``queued_text``) and missed occurrences, without zeros."""
    queued = TranslatableText(
        queued_text, queued=bounded_number(facts.queued), age=age_text(facts.now - since)
    )
    if not facts.missed:
        return queued
    missed = TranslatableText(
        _("%(missed)s missed in the last %(period)s"),
        missed=bounded_number(facts.missed),
        period=age_text(facts.now - (facts.missed_since or since)),
    )
    both = TranslatableText(_("%(queued)s, %(missed)s"), queued=queued, missed=missed)
    return both if facts.queued else missed


def _queue_stalled(facts: SystemFacts) -> Issue:
    """Return a warning: the workers may be restarting, or busy with other tasks."""
    since = idle_since(facts) or facts.now
    return Issue(
        Problem.QUEUE_STALLED,
        Severity.WARNING,
        TranslatableText(
            _("No queued run has started for %(age)s: %(queued)s queued."),
            age=age_text(facts.now - since),
            queued=bounded_number(facts.queued),
        ),
        check_workers(facts),
        since,
        {"queued": facts.queued},
    )


def _run_stuck(facts: SystemFacts) -> Issue:
    return Issue(
        Problem.RUN_STUCK,
        Severity.ERROR,
        ngettext(
            "%(runs)s run lost its worker, and no node has rescued it.",
            "%(runs)s runs lost their worker, and no node has rescued them.",
            facts.stuck.number,
            runs=bounded_number(facts.stuck.number),
        ),
        TranslatableText(FIND_UNLED_SHARDS),
        facts.stuck.since,
        {"runs": facts.stuck.number},
    )


def _names(queues: Sequence[QueueFacts]) -> tuple[str, ...]:
    return tuple(sorted(queue.name for queue in queues if queue.name))


def _queues_named(queues: Sequence[QueueFacts], facts: SystemFacts) -> NamedCount:
    return NamedCount(len(queues), _names(queues) if facts.shows_queues else ())


def _oldest(facts: SystemFacts, queues: Sequence[QueueFacts]) -> datetime:
    """Return when the oldest run began to wait for a worker. Runs missed meanwhile count, too."""
    waiting_since = [queue.waiting.since for queue in queues] + [facts.never_started.since]
    return min((since for since in waiting_since if since is not None), default=facts.now)
