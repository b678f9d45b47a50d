"""Remedies for problems with workers: start one, start more, or find out what keeps them busy."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from django_dcron.policies.health.facts import SystemFacts
from django_dcron.utils.messages import TranslatableText, ngettext
from django_dcron.utils.messages import gettext_noop as _

QUEUES_LISTED = 10
"""A remedy names no further queues beyond this number, except those with the problem."""
MORE_THREADS = _(
    "Raise DCRON_THREADS (for coroutine functions DCRON_COROUTINES), start more nodes, or find out "
    "what keeps the threads busy."
)
CHECK_WORKERS = _(
    "Check that the workers are running. If other tasks keep them busy, start more workers."
)


def raise_capacity(facts: SystemFacts) -> TranslatableText:
    """Return the remedy for too few workers or threads. It names the jobs that keep them busy."""
    if facts.dispatcher == "thread":
        remedy = TranslatableText(MORE_THREADS)
    else:
        remedy = TranslatableText(
            _("Start more workers, or cancel runs: see manage.py dcron history --state running")
        )
    if not facts.busiest:
        return remedy
    jobs = ", ".join(f"{job} ({runs})" for job, runs in facts.busiest)
    busiest, number = facts.busiest[0]
    if number > 1 and 2 * number > facts.running:
        return TranslatableText(
            _(
                "Running runs by job: %(jobs)s. Consider pausing the job with most of them "
                "(manage.py dcron pause %(job)s). %(remedy)s"
            ),
            jobs=jobs,
            job=shlex.quote(busiest),
            remedy=remedy,
        )
    return TranslatableText(
        _("Running runs by job: %(jobs)s. %(remedy)s"), jobs=jobs, remedy=remedy
    )


def check_workers(facts: SystemFacts) -> TranslatableText:
    """Return the remedy for queued runs of which none starts. It names their queues."""
    if facts.dispatcher == "thread":
        return TranslatableText(MORE_THREADS)
    queues = sorted({*facts.queues_of_latest_queued} - {""}) if facts.shows_queues else []
    if facts.workers == ():
        remedy = start_a_worker_unless_busy(facts, queues[:QUEUES_LISTED])
        return TranslatableText(_("No worker has replied to the nodes. %(remedy)s"), remedy=remedy)
    if not queues:
        return TranslatableText(CHECK_WORKERS)
    return ngettext(
        "Check that a worker of the queue %(queues)s is running. If other tasks keep the workers "
        "busy, start more workers.",
        "Check that workers of the queues %(queues)s are running. If other tasks keep the workers "
        "busy, start more workers.",
        len(queues),
        queues=", ".join(queues[:QUEUES_LISTED]),
    )


def start_a_worker(
    facts: SystemFacts, queues: Sequence[str], other_queues: Iterable[str] = ()
) -> TranslatableText:
    """Return the remedy. It names all ``queues``, and ``other_queues`` if there aren't many."""
    others = sorted({*other_queues} - {*queues, ""})[: max(QUEUES_LISTED - len(queues), 0)]
    named = sorted([*queues, *others]) if facts.shows_queues else []
    values = {"queues": ", ".join(named)}
    match facts.dispatcher, bool(named):
        case "celery", True if facts.workers:
            return ngettext(
                "Start a Celery worker for queue %(queues)s, or restart one with -Q and this "
                "queue, together with the queues that it already serves.",
                "Start a Celery worker for queues %(queues)s, or restart one with -Q and these "
                "queues, together with the queues that it already serves.",
                len(named),
                **values,
            )
        case "celery", True:
            return ngettext(
                "Start a Celery worker for queue %(queues)s.",
                "Start a Celery worker for queues %(queues)s.",
                len(named),
                **values,
            )
        case "celery", False:
            return TranslatableText(_("Start a Celery worker."))
        case "tasks", True:
            return ngettext(
                "Start a Django tasks worker for queue %(queues)s.",
                "Start a Django tasks worker for queues %(queues)s.",
                len(named),
                **values,
            )
        case "tasks", False:
            return TranslatableText(_("Start a Django tasks worker."))
        case _, True:
            return ngettext(
                "Start a worker for queue %(queues)s.",
                "Start a worker for queues %(queues)s.",
                len(named),
                **values,
            )
    return TranslatableText(_("Start a worker."))


def start_a_worker_unless_busy(facts: SystemFacts, queues: Sequence[str]) -> TranslatableText:
    """Return the remedy for queues that no worker consumes, as far as the nodes know."""
    remedy = start_a_worker(facts, queues)
    if facts.workers is None:
        return remedy
    text = _("%(remedy)s A worker that is busy with other tasks may not reply to the nodes.")
    return TranslatableText(text, remedy=remedy)
