"""Count the occurrences of a resumed job that were due during its pause and have no run.

Resuming a job doesn't run them. A backfill does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.exceptions import DcronError
from django_dcron.jobs.audit.entries import LoggedPause, pauses_of
from django_dcron.jobs.backfill import backfill
from django_dcron.jobs.pausing import is_left_to_source
from django_dcron.models import Job

MOST_COUNTED = 1000


@dataclass(frozen=True, slots=True)
class PauseOccurrences:
    since: datetime
    """When the job was paused."""
    number: int
    may_be_more: bool

    def __str__(self) -> str:
        text = ngettext(
            "%(count)d occurrence was due during the pause and has no run.",
            "%(count)d occurrences were due during the pause and have no run.",
            self.number,
        )
        if self.may_be_more:
            text = _("At least %(count)d occurrences were due during the pause and have no run.")
        return text % {"count": self.number}


def counted_pauses(jobs: Iterable[Job]) -> dict[int, LoggedPause]:
    """Return the pauses whose occurrences can be counted later, by the primary key of the job.

    Call this before the jobs are resumed. The source of an imported job runs the occurrences until
    the handover, so they aren't counted.
    """
    return pauses_of(job for job in jobs if not job.enabled and not is_left_to_source(job))


def without_run(job: Job, pause: LoggedPause | None) -> PauseOccurrences | None:
    """Return how many occurrences since the pause have no run; None if none or unknown."""
    if pause is None or not job.enabled:
        return None
    now = database_now(alias_for(Job))
    try:
        planned = backfill(job, pause.at, now, limit=MOST_COUNTED, dry_run=True)
    except (DcronError, ValueError):  # the job or its pause can't be backfilled
        return None
    if not planned.occurrences:
        return None
    return PauseOccurrences(pause.at, len(planned.occurrences), planned.continue_from is not None)
