"""Compare a missed or late occurrence with the runs of other jobs at about the same time.

If none of them started on time either, workers, broker, nodes or database were unavailable. If they
did, the cause is with the job or its queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from django.db.models import Q
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.why.explanation_data import ExplanationData
from django_dcron.diagnosis.why.sentence import Sentence
from django_dcron.models import Run
from django_dcron.policies.lifecycle import State

AROUND = timedelta(minutes=1)
"""Runs that are scheduled at most this long before or after the occurrence are compared."""
ON_TIME = timedelta(seconds=5)
"""A run started on time if it started at most this long after it was due."""
MAX_RUNS = 100
"""The maximum number of runs to read before the occurrence, and after it."""


def other_jobs_sentences(data: ExplanationData, at: datetime) -> Iterator[Sentence]:
    """Yield whether other jobs started on time at about ``at``, the time of the occurrence.

    Yields nothing if the reader may see only some of the runs.
    """
    if not data.show_others:
        return
    runs = Run.objects.using(alias_for(Run)).filter(
        Q(state=State.MISSED) | Q(started_at__isnull=False),
        scheduled_at__gte=at - AROUND,
        scheduled_at__lte=at + AROUND,
        attempt=1,  # the row has only the start of the latest attempt
    )
    rows = runs.exclude(job=data.job.pk).values_list("due_at", "started_at")
    before = rows.filter(scheduled_at__lte=at).order_by("-scheduled_at", "-id")[:MAX_RUNS]
    after = rows.filter(scheduled_at__gt=at).order_by("scheduled_at", "id")[:MAX_RUNS]
    times = [*before, *after]
    if not times:
        return
    on_time = sum(started is not None and started - due <= ON_TIME for due, started in times)
    if on_time:
        text = ngettext(
            "At about that time, %(on_time)d of %(count)d run of other jobs started on time.",
            "At about that time, %(on_time)d of %(count)d runs of other jobs started on time.",
            len(times),
        )
        yield Sentence("others_on_time", text, on_time=on_time, count=len(times))
        return
    text = ngettext(
        "At about that time, %(count)d run of another job didn't start on time either.",
        "At about that time, none of the %(count)d runs of other jobs started on time either.",
        len(times),
    )
    yield Sentence("others_late", text, count=len(times))
    late = [started for _due, started in times if started is not None]
    if late:
        text = _("The first of them started at %(first)s.")
        yield Sentence("first_of_others", text, first=data.format_time(min(late)))
