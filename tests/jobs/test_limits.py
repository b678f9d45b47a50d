"""Limits are saved, validated, refused and recorded like calendars."""

from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError

from django_dcron import control
from django_dcron.exceptions import BulkSaveError, Conflict, NotPossible
from django_dcron.jobs import portable
from django_dcron.models import AuditEntry, Job, Limit
from tests.execution.conftest import deliver
from tests.factories import make_idle_job, make_run

MINUTE = timedelta(minutes=1)

pytestmark = pytest.mark.django_db


def make_limit(name: str = "api", **fields: Any) -> Limit:
    return control.save_limit(Limit(name=name, **({"max_running": 2} | fields)))


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"max_running": 0}, "max_running"),
        ({"max_running": 1001}, "max_running"),
        ({"max_running": None}, "max_running"),
        ({"max_started": 5}, "interval"),
        ({"interval": MINUTE}, "max_started"),
        ({"max_started": 5, "interval": MINUTE / 100}, "interval"),
        ({"max_started": 0, "interval": MINUTE}, "max_started"),
        ({"key": "{kwargs}"}, "key"),
        ({"key": "{args[0]"}, "key"),
        ({"name": ".."}, "name"),
        ({"name": ""}, "name"),
    ],
)
def test_invalid_limit_is_refused_with_its_field(fields: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValidationError) as refused:
        make_limit(**fields)
    assert {*refused.value.error_dict} == {wrong}
    assert not Limit.objects.exists()


def test_second_limit_of_a_name_is_refused() -> None:
    make_limit()
    with pytest.raises(ValidationError) as refused:
        make_limit()
    assert {*refused.value.error_dict} == {"name"}


def test_save_of_an_outdated_limit_is_refused() -> None:
    outdated = make_limit()
    current = Limit.objects.get(pk="api")
    current.max_running = 5
    control.save_limit(current)
    outdated.max_running = 3
    with pytest.raises(Conflict) as refused:
        control.save_limit(outdated)
    assert refused.value.code == "changed"
    assert Limit.objects.get().max_running == 5
    control.save_limit(outdated, expected_version=2)
    assert (Limit.objects.get().max_running, outdated.version) == (3, 3)


def test_limit_in_use_can_not_be_deleted() -> None:
    limit = make_limit()
    job = make_idle_job(limit=limit)
    with pytest.raises(NotPossible) as refused:
        control.delete_limit(limit)
    assert refused.value.code == "in_use"
    run = make_run(job)
    assert deliver(run)
    job.limit = None
    control.save(job)
    with pytest.raises(NotPossible):
        control.delete_limit(limit)
    control.cancel(run)
    run.refresh_from_db()
    run.limit_place.delete()
    control.delete_limit(limit)
    with pytest.raises(Conflict):
        control.delete_limit(limit)


def test_unknown_limit_of_a_job_is_refused() -> None:
    with pytest.raises(ValidationError) as refused:
        make_idle_job(limit_id="nowhere")
    assert {*refused.value.error_dict} == {"limit"}
    job = Job(name="x", target="tests.app.tasks.ok", schedule="@daily", limit_id="nowhere")
    with pytest.raises(BulkSaveError) as all_refused:
        control.save_many([job])
    assert {*all_refused.value.errors[0].error_dict} == {"limit"}


def test_changes_of_limits_are_in_the_audit_log() -> None:
    limit = make_limit()
    limit.max_running = 3
    control.save_limit(limit)
    control.delete_limit(limit)
    entries = AuditEntry.objects.filter(kind="limit", object_id="api").order_by("pk")
    assert [entry.action for entry in entries] == ["create", "change", "delete"]
    assert [(entry.before, entry.after) for entry in entries][1] == (
        {"max_running": 2},
        {"max_running": 3},
    )


def test_documents_name_the_limit_which_must_exist_where_they_are_read() -> None:
    job = make_idle_job(limit=make_limit())
    document = portable.write_document([job])
    reading = portable.read_document(document)
    assert not reading.problems
    assert reading.entries[0].values["limit"] == "api"
    Job.objects.all().delete()
    Limit.objects.all().delete()
    (problem,) = portable.read_document(document).problems
    assert (problem.field, problem.value) == ("limit", "api")
