"""Set the state of incidents: acknowledge, mute, resolve and open them again."""

from __future__ import annotations

from django_dcron.db.contention import despite_contention
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.exceptions import NotPossible
from django_dcron.models import Incident
from django_dcron.policies.incidents import STATES_BEFORE, IncidentState
from django_dcron.utils.messages import TranslatableText
from django_dcron.utils.messages import gettext_noop as _

LONGEST_NAME, LONGEST_NOTE = 150, 255
"""Longer texts are cut to these numbers of characters."""
INCIDENT_STATE_NAMES = {
    IncidentState.OPEN: _("open"),
    IncidentState.ACKNOWLEDGED: _("acknowledged"),
    IncidentState.MUTED: _("muted"),
    IncidentState.RESOLVED: _("resolved"),
}
"""The names of states as used within a sentence."""


def set_incident_state(
    incident: Incident, state: IncidentState, *, by: str = "", note: str = ""
) -> Incident:
    """Set the state of ``incident`` and return it, reloaded.

    A success of the job resolves an acknowledged incident. A muted one stays muted and sends no
    alerts until someone opens or resolves it. Raises ``NotPossible`` if the incident has the state
    already, was resolved before it could be acknowledged, or was deleted.
    """
    using = alias_for(Incident)
    now = database_now(using)
    changed = despite_contention(
        lambda: (
            Incident.objects.using(using)
            .filter(pk=incident.pk, state__in=STATES_BEFORE[state])
            .update(
                state=state,
                resolved_at=now if state is IncidentState.RESOLVED else None,
                changed_by=by[:LONGEST_NAME],
                changed_at=now,
                note=note[:LONGEST_NOTE],
            )
        ),
        using,
    )
    current = Incident.objects.using(using).select_related("job").filter(pk=incident.pk).first()
    if current is None:
        raise NotPossible(_("The incident has been deleted."), code="deleted")
    if not changed:
        raise NotPossible(
            _("The incident is %(state)s already."),
            state=TranslatableText(INCIDENT_STATE_NAMES[IncidentState(current.state)]),
            code="incident_state",
        )
    return current
