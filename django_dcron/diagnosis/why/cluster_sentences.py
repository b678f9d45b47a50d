"""Describe in words how freezes, nodes and workers affect a job."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_dcron.conf import settings
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.bounded_count import MAX_COUNTED
from django_dcron.diagnosis.cluster import how_to_start_node, leaders_of
from django_dcron.diagnosis.job_filters.queues import jobs_in_queues
from django_dcron.diagnosis.misfire_effect import misfire_effect, start_deadline_effect
from django_dcron.diagnosis.overdue import executing_runs
from django_dcron.diagnosis.system_health import read_facts
from django_dcron.diagnosis.why.explanation_data import ExplanationData
from django_dcron.diagnosis.why.sentence import Sentence
from django_dcron.diagnosis.workload import latest_worker_replies
from django_dcron.dispatch.queues import queue_name
from django_dcron.models import Attempt, Freeze, Job, Run
from django_dcron.models.run import RunQuerySet
from django_dcron.policies.health.facts import WorkerFacts
from django_dcron.policies.health.workers import IDLE_QUEUE_AFTER
from django_dcron.policies.lifecycle import State
from django_dcron.policies.misfire import MisfirePolicy
from django_dcron.runs.deliveries import redelivery_delay


def freeze_sentences(data: ExplanationData, freezes: Iterable[Freeze]) -> Iterator[Sentence]:
    """Yield who has frozen the job's namespace, since when and why."""
    for freeze in freezes:
        values = {"by": freeze.frozen_by or _("Someone"), "since": data.format_time(freeze.since)}
        if freeze.namespace:
            text = _("%(by)s froze scheduling of the namespace %(namespace)s at %(since)s.")
            yield Sentence("frozen_namespace", text, namespace=freeze.namespace, **values)
        else:
            text = _("%(by)s froze scheduling of all namespaces at %(since)s.")
            yield Sentence("frozen_all", text, **values)
        yield Sentence(
            "freeze_reason", _("Reason for the freeze: %(reason)s"), reason=freeze.reason
        )
        if freeze.until and not freeze.extent.is_in_force(data.now):
            text = _("The freeze ended at %(until)s.")
            yield Sentence("freeze_ended", text, until=data.format_time(freeze.until))
        elif freeze.until:
            text = _("The freeze ends at %(until)s.")
            yield Sentence("freeze_ends", text, until=data.format_time(freeze.until))


def after_freeze(job: Job) -> Sentence:
    """Return what becomes of an occurrence of the job's schedule after a freeze."""
    text = _("After the freeze, the misfire policy %(policy)s applies: %(effect)s")
    return Sentence("after_freeze", text, **_misfire_values(job))


def after_claim(data: ExplanationData, occurrence: datetime) -> Iterator[Sentence]:
    """Yield what becomes of a due occurrence once a node claims it."""
    text = _("Once a node claims it, the misfire policy %(policy)s applies: %(effect)s")
    yield Sentence("after_claim", text, **_misfire_values(data.job))
    later = data.nearby.after
    deadline = data.job.start_deadline
    is_latest = later is None or later > data.now
    in_time = deadline is None or data.now - occurrence <= deadline
    if data.job.misfire.policy is MisfirePolicy.RUN_LATEST and is_latest and in_time:
        text = _("This is the latest one, so it runs unless another one becomes due before that.")
        yield Sentence("runs_after_claim", text)


def _misfire_values(job: Job) -> dict[str, str]:
    effect = f"{misfire_effect(job)} {start_deadline_effect(job)}".rstrip()
    return {"policy": str(job.misfire.policy), "effect": effect}


def start_after_freeze() -> Sentence:
    """Return what becomes of a retry, or of a backfilled or chained run, after a freeze."""
    return Sentence("start_after_freeze", _("The run can start after the freeze."))


def node_sentences(data: ExplanationData) -> list[Sentence]:
    """Return sentences about the nodes, or none if the reader may not see nodes."""
    if not data.show_nodes:
        return []
    sentences = [_live_nodes_sentence(data)]
    live = data.live_nodes
    if live and all(node.broker_unreachable_since for node in live):
        text = _("No live node can use the broker. Check that the broker is running and not full.")
        sentences.append(Sentence("no_broker", text))
        if error := next((node.broker_error for node in live if node.broker_error), ""):
            text = _("Error of the broker: %(error)s")
            sentences.append(Sentence("broker_error", text, error=error))
    return sentences


def worker_sentences(data: ExplanationData, run: Run) -> list[Sentence]:
    """Return sentences about the workers that a dispatched run needs, if it needs workers."""
    queue = queue_name(data.job.target, data.job.queue)
    if settings.DISPATCHER == "thread" or not queue:
        return []
    sentences = [*_idle_queue_sentences(data, run, queue)]
    # An earlier reply may be that of a worker that ended before the run was sent.
    replies = latest_worker_replies(data.live_nodes, after=run.sent_at)
    if workers := _workers_serving(replies or (), queue):
        sentences += _redelivery_sentences(data, run, queue, workers)
    else:
        text = _("If no worker of the queue “%(queue)s” is running, start one.")
        if replies == ():
            text = _(
                "No worker has replied to the nodes since the run was sent. Start a worker of the "
                "queue “%(queue)s”, unless its workers are busy with other tasks."
            )
        sentences.append(Sentence("needs_worker", text, queue=queue))
    if _may_lack_task(data, queue):
        text = _("Restart workers that were started before django-dcron was installed.")
        sentences.append(Sentence("restart_workers", text))
    return sentences


def _idle_queue_sentences(data: ExplanationData, run: Run, queue: str) -> Iterator[Sentence]:
    """Say since when no worker has started a run from the queue, if the run has waited for long.

    The facts are those of the health verdict. They cover the runs of all jobs.
    """
    if not data.show_others or data.now - run.due_at <= settings.REDELIVER_AFTER:
        return
    found = next((each for each in read_facts(now=data.now).queues if each.name == queue), None)
    if found is None:
        return
    if found.last_start is None and found.waiting.since is not None:
        text = _("The oldest run in the queue “%(queue)s” has been due since %(since)s.")
        since = data.format_time(found.waiting.since)
        yield Sentence("queue_waits", text, queue=queue, since=since)
    elif found.last_start and data.now - found.last_start > settings.REDELIVER_AFTER:
        text = _("No worker has started a run from the queue “%(queue)s” since %(since)s.")
        since = data.format_time(found.last_start)
        yield Sentence("queue_idle", text, queue=queue, since=since)


def _redelivery_sentences(
    data: ExplanationData, run: Run, queue: str, workers: Sequence[WorkerFacts]
) -> Iterator[Sentence]:
    """Say when a node sends a queued run again that a worker should have started by now."""
    if run.state != State.QUEUED or run.queued_at is None:
        return
    at = run.queued_at + redelivery_delay(run.deliveries)
    if run.queued_at + IDLE_QUEUE_AFTER <= data.now < at:
        if busy := _busy_workers_sentence(data, workers):
            yield busy
            return
        text = _(
            "Workers of the queue “%(queue)s” answer the nodes. If they are idle, the message was "
            "lost, and a node sends the run again soon after %(at)s."
        )
        yield Sentence("sent_again", text, queue=queue, at=data.format_time(at))


def _busy_workers_sentence(
    data: ExplanationData, workers: Sequence[WorkerFacts]
) -> Sentence | None:
    """Count the runs that execute and the other queued runs, if both exist and may be counted.

    Only runs of the queues that ``workers`` consume can keep these workers busy.
    """
    if not data.show_others:
        return None
    queues = {name for worker in workers for name in worker.queues}
    runs = Run.objects.using(alias_for(Run))
    running = _count_in_queues(executing_runs(runs, data.now), queues)
    others = _count_in_queues(runs.queued().not_frozen(), queues) - 1
    if not running or others < 1:
        return None
    text = _(
        "The run waits for a free worker. Runs that are executing: %(running)d. Other runs in the "
        "queues: %(queued)d."
    )
    return Sentence("workers_busy", text, running=running, queued=others)


def _count_in_queues(runs: RunQuerySet, queues: Collection[str]) -> int:
    """Return how many runs are in one of the queues, at most ``MAX_COUNTED``."""
    jobs = jobs_in_queues(Job.objects.using(alias_for(Job)), queues)
    return runs.filter(job__in=jobs).order_by()[:MAX_COUNTED].count()


def _workers_serving(replies: Iterable[WorkerFacts], queue: str) -> list[WorkerFacts]:
    """Return the workers that can execute runs from the queue."""
    return [
        worker
        for worker in replies
        if queue in worker.queues and worker.executes and not worker.unknown_runs
    ]


def _may_lack_task(data: ExplanationData, queue: str) -> bool:
    """Return whether workers of the queue may lack django-dcron's task, so that they discard runs.

    The workers' replies decide. Without a reply, only the first attempt of all shows that the
    workers have the task.
    """
    if workers := latest_worker_replies(data.live_nodes):
        return any(queue in worker.queues and not worker.executes for worker in workers)
    return not Attempt.objects.using(alias_for(Attempt)).exists()


def _live_nodes_sentence(data: ExplanationData) -> Sentence:
    if live := len(data.live_nodes):
        leaders = leaders_of(data.job, data.live_nodes)
        if all(leader.leads_none and not leader.is_starting for leader in leaders):
            text = ngettext(
                "%(count)d live node serves the job, but doesn't lead its shard. Run “manage.py "
                "dcron doctor” to see why.",
                "%(count)d live nodes serve the job, but none leads its shard. Run “manage.py "
                "dcron doctor” to see why.",
                live,
            )
            return Sentence("no_leader", text, count=live)
        text = ngettext(
            "%(count)d live node serves the job.",
            "%(count)d live nodes serve the job.",
            live,
        )
        return Sentence("live_nodes", text, count=live)
    if not data.nodes:
        text = _("No node that serves the job is running.")
        return Sentence("no_nodes", f"{text} {how_to_start_node()}")
    last = max(data.nodes, key=lambda node: node.heartbeat_at)
    text = _("No node that serves the job is live. The last heartbeat was from %(node)s at %(at)s.")
    return Sentence("no_live_node", text, node=last.name, at=data.format_time(last.heartbeat_at))


def doctor_sentence() -> Sentence:
    text = _("Run “manage.py dcron doctor” to check all occurrences against the recorded runs.")
    return Sentence("ask_doctor", text)
