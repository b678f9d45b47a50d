"""Find the jobs that users have paused, and their most frequent reasons.

Invariants:

- The audit log decides: a user paused the job, or disabled it with an edit. A job that is finished,
  auto-paused, imported as paused, or disabled by a sync or an import has no pause of a user.
- A job that waits for a handover has none either, although a user may have handed it back. The
  handover enables it.
"""

from __future__ import annotations

from collections import defaultdict

from django_dcron.diagnosis.bounded_count import MAX_COUNTED
from django_dcron.jobs.audit.entries import LoggedPause, pauses_by_users
from django_dcron.models.job import JobQuerySet
from django_dcron.models.job_states import AUTOMATIC_PAUSES, HANDOVER_REASONS
from django_dcron.policies.health.facts import UserPauses

_NOT_BY_USERS = (*AUTOMATIC_PAUSES, *HANDOVER_REASONS)
"""Reasons of pauses that don't count, although the log may name the user of a command."""


def find_user_pauses(jobs: JobQuerySet) -> tuple[UserPauses, ...]:
    """Return the pauses by users, grouped by reason, the most frequent reason first.

    No more than ``MAX_COUNTED`` + 1 of the jobs are examined, the latest ones.
    """
    paused = jobs.filter(enabled=False).exclude(pause_reason__in=_NOT_BY_USERS)
    paused = paused.only("pause_reason").order_by("-pk")[: MAX_COUNTED + 1]
    by_reason: defaultdict[str, list[LoggedPause]] = defaultdict(list)
    for pause in pauses_by_users(paused).values():
        by_reason[pause.reason].append(pause)
    groups = (
        UserPauses(len(pauses), reason, min(pause.at for pause in pauses))
        for reason, pauses in by_reason.items()
    )
    return tuple(sorted(groups, key=lambda group: (-group.number, group.since)))
