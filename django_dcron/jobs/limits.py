"""Save and delete limits.

Invariants:

- A save or deletion checks the version of the limit (``named_rows``).
- A limit that a job names, or in which a run has a place, can't be deleted.
- A save locks the limit's row, and so does each start or end of a run. So each run starts under
  the limit before the change or the one after it. A node wakes the runs for which a raised limit
  has room.
"""

from __future__ import annotations

from django_dcron.exceptions import NotPossible
from django_dcron.jobs.named_rows import delete_named, save_named
from django_dcron.jobs.row_arguments import require_row
from django_dcron.models import Job, Limit, LimitPlace
from django_dcron.utils.messages import gettext_noop as _


def save_limit(limit: Limit, *, expected_version: int | None = None) -> Limit:
    """Validate and save ``limit``. ``expected_version`` and the exceptions are those of ``save``.

    Runs that have started keep their places, even if more of them execute than a lowered limit
    allows.
    """
    require_row(limit, Limit)
    return save_named(limit, expected_version=expected_version)


def delete_limit(limit: Limit, *, expected_version: int | None = None) -> None:
    """Delete ``limit``.

    ``expected_version`` is the version of the limit as it was read; by default, any version is
    deleted. Raises ``Conflict``, or ``NotPossible`` if a job names the limit or a run needs it.
    """
    require_row(limit, Limit)

    def check_unused(using: str) -> None:
        named_by = Job.objects.using(using).filter(limit=limit.pk).first()
        if named_by is not None:
            raise NotPossible(
                _("%(limit)s can't be deleted, because %(job)s uses it."),
                limit=str(limit),
                job=str(named_by),
                code="in_use",
            )
        places = LimitPlace.objects.using(using).filter(limit=limit.pk).select_related("run__job")
        place = places.first()
        if place is not None:
            raise NotPossible(
                _("%(limit)s can't be deleted before the end of the run %(run)s."),
                limit=str(limit),
                run=str(place.run),
                code="in_use",
            )

    delete_named(limit, expected_version=expected_version, check_unused=check_unused)
