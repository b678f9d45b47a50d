"""Incidents over HTTP."""

from datetime import timedelta

import pytest

from django_dcron.db.now import database_now
from django_dcron.models import Incident
from tests.contrib.rest.conftest import Api
from tests.factories import make_idle_job

pytestmark = pytest.mark.django_db


def make_incident(number: int, state: str = "open") -> Incident:
    at = database_now("default") - timedelta(minutes=number)
    return Incident.objects.create(
        job=make_idle_job(),
        fingerprint=str(number),
        exception_class="Refused",
        state=state,
        first_seen_at=at,
        last_seen_at=at,
    )


def test_list_is_ordered_filtered_and_paged(api: Api) -> None:
    incidents = [make_incident(number) for number in range(3)]
    muted = make_incident(9, "muted")
    first = api.get("incidents/?limit=2&state=open").json()
    assert [each["id"] for each in first["results"]] == [each.pk for each in incidents[:2]]
    second = api.get(first["next"].partition("/dcron/")[2]).json()
    assert [each["id"] for each in second["results"]] == [incidents[2].pk]
    assert second["next"] is None
    (found,) = api.get(f"incidents/?job={muted.job_id}").json()["results"]
    assert (found["state"], found["job"], found["job_name"]) == (
        "muted",
        muted.job_id,
        str(muted.job),
    )


def test_state_is_set_with_note_and_user_or_refused(api: Api) -> None:
    incident = make_incident(1)
    path = f"incidents/{incident.pk}/state/"
    changed = api.post(path, {"state": "muted", "note": "known"})
    assert changed.status_code == 200
    incident.refresh_from_db()
    assert (incident.state, incident.note, incident.changed_by) == ("muted", "known", "admin")
    assert changed.json()["state"] == "muted"
    assert api.post(path, {"state": "acknowledged"}).status_code == 409
    assert api.post(path, {"state": "gone"}).status_code == 400
    assert api.post("incidents/999999/state/", {"state": "open"}).status_code == 404
