"""The states of jobs as conditions of queries. Each job is in exactly one state."""

from __future__ import annotations

from django.db.models import Q

from django_dcron.utils.messages import gettext_noop as _

_HAS_PROBLEM = Q(cursor__problem__gt="")
# ``exclude()`` would omit new jobs, which have no cursor yet.
_HAS_NO_PROBLEM = Q(cursor=None) | Q(cursor__problem="")

EXHAUSTED = _("its schedule has no further occurrence")
"""The pause reason of a finished job."""
NO_LONGER_DECLARED = "no longer declared in code"
DECLARED_DISABLED = "declared disabled in code"
DISABLED_BY_SYNC = (NO_LONGER_DECLARED, DECLARED_DISABLED)
AUTOMATIC_PAUSES = (*DISABLED_BY_SYNC, EXHAUSTED)
"""The reasons of pauses that a new schedule or the next sync may end."""
ARRIVED_PAUSED = "imported with --disabled"
HANDED_BACK = "handed back with dcron handover --back"
WAITS_FOR_HANDOVER = "waits for dcron handover, as other jobs of its source do"
HANDOVER_REASONS = (ARRIVED_PAUSED, HANDED_BACK, WAITS_FOR_HANDOVER)
"""Why a job is paused until a handover: its source still runs the work."""

IS_ENABLED = Q(enabled=True) & _HAS_NO_PROBLEM
IS_FAILING = IS_ENABLED & Q(statistics__consecutive_failures__gt=0)
"""A part of the enabled jobs: the job has failed since its last success."""
IS_FINISHED = Q(enabled=False, paused_until=None, pause_reason=EXHAUSTED)
"""The job is disabled because its schedule has no further occurrence."""
IS_PAUSED = Q(enabled=False) & ~IS_FINISHED & (_HAS_NO_PROBLEM | Q(paused_until=None))
IS_QUARANTINED = _HAS_PROBLEM & (Q(enabled=True) | Q(paused_until__isnull=False))
"""The job should have occurrences, but ``Cursor.problem`` keeps it from having any.

It may be a paused job whose pause can't end.
"""
