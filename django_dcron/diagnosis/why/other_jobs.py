"""Compare a missed or late occurrence with the runs of other jobs that fell due while it waited.

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

ON_TIME = timedelta(seconds=5)
"""A run started on time if it started at most this long after it was due."""
MAX_RUNS = 200
"""The maximum number of runs to read, the first ones of the wait."""


def other_jobs_sentences(
    data: ExplanationData, at: datetime, until: datetime
) -> Iterator[Sentence]:
    """Yield whether other jobs started on time while the occurrence waited, ``at`` to ``until``.

    The last ``ON_TIME`` of the wait is left out: a run that was due then counts as on time even if
    it started only at the end of an outage, like the occurrence.

    Yields nothing if the reader may see only some of the runs.
    """
    if not data.show_others:
        return
    last = max(at, until - ON_TIME)
    runs = Run.objects.using(alias_for(Run)).filter(
        Q(state=State.MISSED) | Q(started_at__isnull=False),
        scheduled_at__gte=at,
        scheduled_at__lte=last,
        due_at__lte=last,
        attempt=1,  # the row has only the start of the latest attempt
    )
    rows = runs.exclude(job=data.job.pk).order_by("scheduled_at", "id")
    times = list(rows.values_list("due_at", "started_at")[: MAX_RUNS + 1])
    has_more = len(times) > MAX_RUNS
    times = times[:MAX_RUNS]
    if not times:
        return
    yield from _comparison(data, times)
    if has_more:
        text = _("Only the first %(count)d of these runs were compared.")
        yield Sentence("others_limited", text, count=MAX_RUNS)


def _comparison(
    data: ExplanationData, times: list[tuple[datetime, datetime | None]]
) -> Iterator[Sentence]:
    on_time = sum(started is not None and started - due <= ON_TIME for due, started in times)
    if on_time:
        text = ngettext(
            "%(count)d run of another job was due during this wait and started on time.",
            "%(on_time)d of %(count)d runs of other jobs that were due during this wait started on "
            "time.",
            len(times),
        )
        yield Sentence("others_on_time", text, on_time=on_time, count=len(times))
        return
    text = ngettext(
        "%(count)d run of another job was due during this wait and didn't start on time either.",
        "None of the %(count)d runs of other jobs that were due during this wait started on time "
        "either.",
        len(times),
    )
    yield Sentence("others_late", text, count=len(times))
    late = [started for _due, started in times if started is not None]
    if late:
        text = _("The first of them started at %(first)s.")
        yield Sentence("first_of_others", text, first=data.format_time(min(late)))
