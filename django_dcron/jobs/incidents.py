"""Set the state of incidents: acknowledge, mute, resolve and open them again."""

from __future__ import annotations

from django.db import connections, transaction

from django_dcron.db.contention import despite_contention
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.exceptions import NotPossible
from django_dcron.jobs.audit.actor import current_actor
from django_dcron.jobs.audit.recording import AuditedChange, record_changes
from django_dcron.models import AuditAction, Incident
from django_dcron.policies.incidents import STATES_BEFORE, IncidentState
from django_dcron.utils.messages import TranslatableText
from django_dcron.utils.messages import gettext_noop as _

LONGEST_NAME, LONGEST_NOTE = 150, 255
"""Longer names and notes are cut to these numbers of characters."""
SET_COLUMNS = ("state", "resolved_at", "changed_by", "changed_at", "note")
INCIDENT_STATE_NAMES = {
    IncidentState.OPEN: _("open"),
    IncidentState.ACKNOWLEDGED: _("acknowledged"),
    IncidentState.MUTED: _("muted"),
    IncidentState.RESOLVED: _("resolved"),
}
"""Names of states for use within a sentence."""


def set_incident_state(
    incident: Incident, state: IncidentState, *, by: str = "", note: str = ""
) -> Incident:
    """Set the state of ``incident`` and return it, reloaded.

    A success of the job resolves an incident that is open or acknowledged. A muted one stays muted
    and sends no alerts until someone opens or resolves it. Raises ``NotPossible`` if the
    incident already has the state or was deleted. Only an open incident can be acknowledged.
    """
    using = alias_for(Incident)
    by = by or current_actor().name
    return despite_contention(lambda: _set_state(incident, state, by, note, using), using)


def _set_state(
    incident: Incident, state: IncidentState, by: str, note: str, using: str
) -> Incident:
    now = database_now(using)
    with transaction.atomic(using=using):
        rows = Incident.objects.using(using).filter(pk=incident.pk)
        current = rows.select_related("job").select_for_update(of=_only_self(using)).first()
        if current is None:
            raise NotPossible(_("The incident has been deleted."), code="deleted")
        if IncidentState(current.state) not in STATES_BEFORE[state]:
            raise NotPossible(
                _("The incident is %(state)s, which doesn't allow this change."),
                state=TranslatableText(INCIDENT_STATE_NAMES[IncidentState(current.state)]),
                code="incident_state",
            )
        before, current.state = current.state, state
        current.resolved_at = now if state is IncidentState.RESOLVED else None
        current.changed_by, current.changed_at = by[:LONGEST_NAME], now
        current.note = note[:LONGEST_NOTE]
        current.save(using=using, update_fields=SET_COLUMNS)
        values = {"state": before}, {"state": str(state)}
        record_changes(
            [AuditedChange(AuditAction.CHANGE, current, *values, reason=note)], using, by=by
        )
    return current


def _only_self(using: str) -> tuple[str, ...]:
    """Return the tables to lock. SQLite and MariaDB can't lock the rows of only one of them."""
    return ("self",) if connections[using].features.has_select_for_update_of else ()
