"""Render the state of an incident as a badge with the color of a run's state."""

from __future__ import annotations

from django.utils.safestring import SafeString

from django_dcron.admin.display import badge
from django_dcron.models.incident import INCIDENT_LABELS
from django_dcron.policies.incidents import IncidentState

LABELS = dict(INCIDENT_LABELS)
BADGES = {
    IncidentState.OPEN: "failed",
    IncidentState.ACKNOWLEDGED: "missed",
    IncidentState.MUTED: "cancelled",
    IncidentState.RESOLVED: "succeeded",
}
"""The run state whose color each badge has."""


def incident_badge(state: str) -> SafeString:
    return badge(BADGES[IncidentState(state)], LABELS[state])
