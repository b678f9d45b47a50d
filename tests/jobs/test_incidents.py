"""Users acknowledge, mute, resolve and open incidents, and rerun their failures."""

import pytest

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.exceptions import NotPossible
from django_dcron.models import Incident
from django_dcron.policies.incidents import IncidentState
from tests.admin.conftest import NOON, make_attempt, make_run
from tests.factories import make_idle_job

pytestmark = pytest.mark.django_db

OPEN, ACKNOWLEDGED, MUTED, RESOLVED = IncidentState


def make_incident(state: IncidentState = OPEN) -> Incident:
    now = database_now("default")
    return Incident.objects.create(
        job=make_idle_job(),
        fingerprint="0" * 32,
        exception_class="Refused",
        state=state,
        first_seen_at=now,
        last_seen_at=now,
        resolved_at=now if state is RESOLVED else None,
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (OPEN, ACKNOWLEDGED),
        *((state, MUTED) for state in (OPEN, ACKNOWLEDGED, RESOLVED)),
        *((state, RESOLVED) for state in (OPEN, ACKNOWLEDGED, MUTED)),
        *((state, OPEN) for state in (ACKNOWLEDGED, MUTED, RESOLVED)),
    ],
)
def test_change_is_recorded_with_who_when_and_why(
    before: IncidentState, after: IncidentState
) -> None:
    incident = make_incident(before)
    changed = control.set_incident_state(incident, after, by="kim", note="known")
    assert (changed.state, changed.changed_by, changed.note) == (after, "kim", "known")
    assert changed.changed_at is not None
    assert changed.changed_at >= incident.last_seen_at
    assert (changed.resolved_at is not None) == (after is RESOLVED)


@pytest.mark.parametrize(
    ("before", "after"),
    [*((state, state) for state in IncidentState), (MUTED, ACKNOWLEDGED), (RESOLVED, ACKNOWLEDGED)],
)
def test_other_changes_are_refused_and_change_nothing(
    before: IncidentState, after: IncidentState
) -> None:
    incident = make_incident(before)
    with pytest.raises(NotPossible) as refused:
        control.set_incident_state(incident, after, by="kim")
    assert refused.value.code == "incident_state"
    incident.refresh_from_db()
    assert (incident.state, incident.changed_by) == (before, "")


def test_deleted_incident_is_refused() -> None:
    incident = make_incident()
    Incident.objects.all().delete()
    with pytest.raises(NotPossible) as refused:
        control.set_incident_state(incident, MUTED)
    assert refused.value.code == "deleted"


def test_texts_of_users_are_cut() -> None:
    changed = control.set_incident_state(make_incident(), MUTED, by="k" * 999, note="n" * 999)
    assert (len(changed.changed_by), len(changed.note)) == (150, 255)


def test_key_of_the_latest_failed_attempt_is_zero_without_attempts() -> None:
    incident = make_incident()
    assert control.latest_failed_attempt_id(incident) == 0

    run = make_run(incident.job, NOON, state="failed", attempt=2)
    attempts = [make_attempt(run, number, incident=incident.pk) for number in (1, 2)]
    make_attempt(run, 3)
    assert control.latest_failed_attempt_id(incident) == attempts[1].pk
