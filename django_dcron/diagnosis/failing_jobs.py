"""Define which failing jobs are a problem, for both the health verdict and the doctor.

A failing job is enabled and has failed since its last success (``IS_FAILING``). There are three
kinds:

- It keeps failing (``KEEPS_FAILING``), which is a problem.
- All of its failures since then belong to muted incidents (``FAILS_AS_MUTED``).
- It isn't a problem yet.
"""

from __future__ import annotations

from datetime import timedelta

from django.db.models import Exists, F, OuterRef, Q

from django_dcron.models import Incident
from django_dcron.models.job_states import IS_FAILING
from django_dcron.policies.health.facts import FAILURES_UNTIL_WARNING
from django_dcron.policies.incidents import RESOLVED_BY_SUCCESS, IncidentState

SOON = timedelta(hours=1)
"""A job runs again soon if its next occurrence is within this time after its last run finished."""

_UNMUTED = Incident.objects.filter(
    Q(state__in=RESOLVED_BY_SUCCESS)
    | (~Q(state=IncidentState.MUTED) & Q(last_seen_at__gt=OuterRef("last_seen_at"))),
    job=OuterRef("job"),
)
_LATEST_IS_MUTED = Exists(
    Incident.objects.filter(~Exists(_UNMUTED), job=OuterRef("pk"), state=IncidentState.MUTED)
)
_RUNS_SELDOM = Q(cursor__next_at__gt=F("statistics__last_finished_at") + SOON) & (
    # While a run of a frequent job is executed, the next occurrence may be far from the last end.
    Q(cursor__previous_at=None) | Q(cursor__next_at__gt=F("cursor__previous_at") + SOON)
)
_NEEDS_ATTENTION = (
    Q(statistics__consecutive_failures__gte=FAILURES_UNTIL_WARNING)
    | Q(cursor__next_at=None)
    | _RUNS_SELDOM
)

FAILS_AS_MUTED = IS_FAILING & Q(_LATEST_IS_MUTED)
"""All failures since the job's last success belong to muted incidents.

The latest grouped failure does, and no incident is open or acknowledged. An incident of an earlier
failure would be, because only a success or a person resolves incidents.
"""
KEEPS_FAILING = IS_FAILING & _NEEDS_ATTENTION & ~Q(_LATEST_IS_MUTED)
