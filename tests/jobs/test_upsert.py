"""``control.update_or_create``: one call for a new job and for an existing one."""

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_dcron import control
from django_dcron.exceptions import Conflict
from django_dcron.jobs import saving, upsert
from django_dcron.models import AuditEntry, Calendar, Cursor, Job
from django_dcron.models.job_states import EXHAUSTED
from django_dcron.testing import set_clock
from tests.app import tasks
from tests.factories import make_idle_job
from tests.threads import in_threads
from tests.waiting import TIMEOUT

pytestmark = pytest.mark.django_db


def put(**fields: Any) -> tuple[Job, bool]:
    given: dict[str, Any] = {"target": tasks.ok, "schedule": "0 3 1 1 *"} | fields
    return control.update_or_create("sync-101", namespace="tenants", **given)


def test_first_call_creates_the_job_and_the_second_changes_it() -> None:
    job, created = put(timeout=30, retry_on=ConnectionError, tags=(tag for tag in ["billing"]))
    assert created
    assert (job.namespace, job.name, job.target) == ("tenants", "sync-101", "tests.app.tasks.ok")
    assert Cursor.objects.filter(pk=job.pk).exists()
    again, created = put(schedule="0 4 1 1 *")
    assert (again.pk, created, again.version) == (job.pk, False, 2)
    again.refresh_from_db()
    assert (again.schedule, again.timeout) == ("0 4 1 1 *", timedelta(seconds=30))
    assert (again.retry_on, again.tags) == (["ConnectionError"], ["billing"])


def test_same_values_write_nothing() -> None:
    values: dict[str, Any] = {
        "timeout": 30,
        "retry_on": [ConnectionError],
        "kwargs": {},
        "starts_at": datetime(2030, 1, 1, tzinfo=UTC),
        "timezone": None,
    }
    job, _created = put(**values)
    entries = AuditEntry.objects.count()
    with CaptureQueriesContext(connection) as queries:
        same, created = put(**values)
    assert sum(not each["sql"].startswith(("BEGIN", "SAVE", "RELEASE")) for each in queries) == 1
    assert (same.pk, same.version, created) == (job.pk, 1, False)
    assert Job.objects.get().version == 1
    assert AuditEntry.objects.count() == entries


def test_invalid_values_change_nothing() -> None:
    job, _created = put()
    with pytest.raises(ValidationError) as caught:
        put(schedule="bad", timeout="soon", kwargs={"since": datetime(2030, 1, 1, tzinfo=UTC)})
    assert caught.value.message_dict.keys() == {"schedule", "timeout", "kwargs"}
    with pytest.raises(ValidationError) as caught:
        put(starts_at=datetime(2030, 1, 1))  # noqa: DTZ001
    assert caught.value.message_dict.keys() == {"starts_at"}
    with pytest.raises(ValidationError) as caught:
        control.update_or_create("a/b", target=tasks.ok, schedule="@daily")
    assert caught.value.message_dict.keys() == {"name"}
    assert Job.objects.get().version == job.version == 1


def test_new_job_without_a_target_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValidationError) as refused:
        control.update_or_create("sync", schedule="@daily")
    ((field, [error]),) = refused.value.error_dict.items()
    assert (field, error.code) == ("target", "blank")
    assert "shop.tasks.import_orders" in str(error.message)


@pytest.mark.parametrize(
    ("field", "named"),
    [("max_retries", "max_attempts"), ("scedule", "schedule"), ("defaults", "Fields: ")],
)
def test_unknown_field_is_a_type_error(field: str, named: str) -> None:
    with pytest.raises(TypeError, match=named):
        put(**{field: 3})


def test_job_stays_paused_unless_enabled_is_given() -> None:
    job, _created = put()
    until = datetime.now(UTC) + timedelta(days=3)
    control.pause(job, "invoice is unpaid", until=until)
    changed, _created = put(kwargs={}, schedule="0 4 1 1 *")
    assert (changed.enabled, changed.pause_reason) == (False, "invoice is unpaid")
    assert changed.paused_until == until
    kept, _created = put(schedule="0 4 1 1 *", enabled=False)
    assert (kept.version, kept.pause_reason) == (changed.version, "invoice is unpaid")
    resumed, _created = put(schedule="0 4 1 1 *", enabled=True)
    resumed.refresh_from_db()
    assert (resumed.enabled, resumed.pause_reason, resumed.paused_until) == (True, "", None)


@pytest.mark.parametrize("enabled", [None, False])
def test_finished_job_runs_again_with_a_new_schedule_unless_it_is_disabled(
    enabled: bool | None,
) -> None:
    with set_clock(datetime(2030, 1, 1, tzinfo=UTC)):
        job, _created = put(schedule="@at 2030-06-01T00:00")
    Job.objects.filter(pk=job.pk).update(enabled=False, pause_reason=EXHAUSTED)
    given = {} if enabled is None else {"enabled": enabled}
    again, _created = put(schedule="0 4 1 1 *", **given)
    assert (again.enabled, again.pause_reason) == (enabled is None, "")


def test_limits_and_calendars_are_names_or_rows() -> None:
    calendar = control.save_calendar(Calendar(name="holidays", dates="2030-12-24"))
    job, _created = put(calendar="holidays")
    assert job.calendar == calendar
    assert put(calendar=calendar)[0].version == 1
    assert put(calendar=None)[0].calendar_id is None


def test_deleted_job_is_created_again() -> None:
    job, _created = put()
    control.delete(job)
    again, created = put()
    assert created
    assert again.pk != job.pk


def test_rollback_of_the_caller_undoes_the_call() -> None:
    with transaction.atomic():
        put()
        transaction.set_rollback(True)
    assert not Job.objects.exists()
    assert put()[1]


def test_change_by_another_transaction_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    job, _created = put()
    real = saving.save

    def refuse(changed: Job) -> Job:
        raise Conflict("changed")

    def change(seconds: float) -> None:
        Job.objects.filter(pk=job.pk).update(description="changed meanwhile", version=2)
        monkeypatch.setattr(saving, "save", real)

    monkeypatch.setattr(saving, "save", refuse)
    monkeypatch.setattr(upsert.time, "sleep", change)
    changed, _created = put(schedule="0 4 1 1 *")
    assert (changed.version, changed.description) == (3, "changed meanwhile")


def test_conflicts_are_repeated_a_limited_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    put()
    calls = []

    def save(job: Job) -> Job:
        calls.append(job)
        raise Conflict("changed")

    monkeypatch.setattr(saving, "save", save)
    monkeypatch.setattr(upsert.time, "sleep", lambda seconds: None)
    with pytest.raises(Conflict):
        put(schedule="0 4 1 1 *")
    assert len(calls) == upsert.MAX_TRIES


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_concurrent_calls_create_one_job_and_lose_no_field() -> None:
    """Each call changes another field."""
    fields = ("description", "queue", "max_attempts", "timeout", "priority", "keep_runs")
    values = ("by one", "fast", 3, timedelta(seconds=4), 5, 6)
    together = threading.Barrier(len(fields))

    def call(field: str, value: object) -> bool:
        together.wait(TIMEOUT)
        return put(**{field: value})[1]

    created = in_threads(
        *(lambda pair=pair: call(*pair) for pair in zip(fields, values, strict=True))
    )
    assert sum(created) == 1
    job = Job.objects.get()
    assert tuple(getattr(job, field) for field in fields) == values
    assert job.version == len(fields)


def test_tuples_and_numbers_for_flags_are_stored_values() -> None:
    given = {"target": tasks.echo, "args": [(1, 2)], "kwargs": {"a": (1, 2)}, "enabled": 1}
    for _ in range(2):
        job, _created = put(**given)
    assert (job.version, job.args, job.kwargs) == (1, [[1, 2]], {"a": [1, 2]})
    control.pause(job, "by hand")
    assert put(**given)[0].pause_reason == ""


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kwargs", {"a": {1: 2}}),
        ("kwargs", {"a": float("nan")}),
        ("kwargs", {"a": "\0"}),
        ("args", b"ab"),
        ("max_attempts", True),
        ("after", {1: "succeeded"}),
    ],
)
def test_value_that_would_change_is_refused(field: str, value: Any) -> None:
    with pytest.raises(ValidationError) as refused:
        put(**{field: value})
    assert set(refused.value.message_dict) == {field}


@pytest.mark.mariadb
def test_similar_name_is_not_the_same_job() -> None:
    before, _created = put(queue="fast")
    given: dict[str, Any] = {"namespace": "tenants", "target": tasks.ok, "schedule": "@daily"}
    if connection.vendor == "mysql":  # its names have no case
        with pytest.raises(ValidationError) as refused:
            control.update_or_create("SYNC-101", **given)
        assert set(refused.value.message_dict) == {"name"}
    else:
        assert control.update_or_create("SYNC-101", **given)[1] is True
    assert Job.objects.get(pk=before.pk).version == before.version


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_insert_by_another_transaction_becomes_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call has read no job before the other transaction commits its insert."""
    inserted, has_read = threading.Event(), threading.Event()
    save = saving.save

    def save_and_tell(job: Job) -> Job:
        if job.max_attempts == 3:
            has_read.set()
        return save(job)

    monkeypatch.setattr(saving, "save", save_and_tell)

    def insert() -> None:
        with transaction.atomic():
            put(queue="fast")
            inserted.set()
            assert has_read.wait(TIMEOUT)

    def call() -> None:
        assert inserted.wait(TIMEOUT)
        with transaction.atomic():
            assert put(max_attempts=3)[1] is False
            assert connection.in_atomic_block

    in_threads(insert, call)
    job = Job.objects.get()
    assert (job.queue, job.max_attempts) == ("fast", 3)


def test_job_of_another_namespace_is_another_job() -> None:
    make_idle_job(name="sync-101")
    assert put()[1]
