"""Test ``control.revert`` and ``control.restore``: what they undo, and what they refuse."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.core.serializers import deserialize, serialize
from pytest_django import Settings

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.exceptions import Conflict, NotPossible
from django_dcron.jobs import reverting
from django_dcron.jobs.audit.differences import LONGEST
from django_dcron.jobs.audit.entries import entries_of, logged_changes_of
from django_dcron.jobs.representation import document_of, to_json
from django_dcron.jobs.restoring import deletion_of
from django_dcron.models import AuditEntry, Calendar, Cursor, Deletion, Job, Limit, Run
from django_dcron.models.job_states import EXHAUSTED
from tests.factories import make_idle_job, make_job, make_run

pytestmark = pytest.mark.django_db

BOOKKEEPING = {"version", "updated_at"}


def edit(job: Job, **values: Any) -> AuditEntry:
    """Save the values and return the entry."""
    for name, value in values.items():
        setattr(job, name, value)
    with control.acting_as("ada"):
        control.save(job)
    return latest_entry(job)


def latest_entry(job: Job) -> AuditEntry:
    return entries_of(job).latest("pk")


def definition(job: Job) -> dict[str, Any]:
    document = document_of(Job.objects.get(pk=job.pk))
    return {name: value for name, value in document.items() if name not in BOOKKEEPING}


def refusal(job: Job, entry: AuditEntry) -> NotPossible:
    """Return why the revert is refused. It must not change anything."""
    before = document_of(Job.objects.get(pk=job.pk))
    number = AuditEntry.objects.count()
    with pytest.raises(NotPossible) as caught:
        control.revert(job, entry)
    assert document_of(Job.objects.get(pk=job.pk)) == before
    assert AuditEntry.objects.count() == number
    return caught.value


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"schedule": "0 3 1 1 *"}, {"schedule": "0 4 1 1 *"}),
        ({"schedule": "0 3 1 1 *\n0 4 1 1 *"}, {"schedule": "@daily", "timezone": "Asia/Tokyo"}),
        ({"target": "tests.app.tasks.echo"}, {"target": "tests.app.tasks.witness"}),
        ({"target": "tests.app.tasks.echo", "args": [1, "ä", None]}, {"args": []}),
        ({"target": "tests.app.tasks.echo", "kwargs": {"a": {"b": [1]}}}, {"kwargs": {"c": 2}}),
        ({"tags": ["a", "b"]}, {"tags": []}),
        ({"tags": []}, {"tags": ["a"]}),
        ({"description": ""}, {"description": "null"}),
        ({"timeout": None}, {"timeout": timedelta(minutes=5)}),
        ({"timeout": timedelta(minutes=1, milliseconds=500)}, {"timeout": None}),
        ({"retry_backoff": timedelta(seconds=90)}, {"retry_backoff": timedelta(minutes=20)}),
        ({"retry_backoff_factor": 1.5}, {"retry_backoff_factor": 3}),
        ({"max_attempts": 1}, {"max_attempts": 4, "overlap_policy": "queue_one"}),
        (
            {"ends_at": datetime(2090, 1, 1, 0, 0, 0, 5, tzinfo=UTC)},
            {"ends_at": datetime(2091, 1, 1, tzinfo=UTC)},
        ),
        ({"ends_at": None}, {"ends_at": datetime(2091, 1, 1, tzinfo=UTC)}),
        ({"calendar_id": "closed", "limit_id": None}, {"calendar_id": None, "limit_id": "api"}),
        ({"name": "old", "namespace": "shop"}, {"name": "new", "namespace": "default"}),
        ({"enabled": False, "pause_reason": "deploy"}, {"enabled": True}),
        ({"after": {}}, {"after": {"first": "ended"}}),
    ],
)
def test_edit_is_reverted(old: dict[str, Any], new: dict[str, Any]) -> None:
    control.save_calendar(Calendar(name="closed", dates="SAT"))
    control.save_limit(Limit(name="api", max_running=1))
    make_idle_job(name="first")
    job = make_job(**{"schedule": "0 0 1 1 *"} | old)
    before, next_at = definition(job), Cursor.objects.get(pk=job.pk).next_at
    entry = edit(job, **new)
    after = definition(job)
    assert after != before

    assert control.revert(job, entry) is job

    assert definition(job) == before
    assert document_of(job) == document_of(Job.objects.get(pk=job.pk))
    assert Cursor.objects.get(pk=job.pk).next_at == next_at
    control.revert(job, latest_entry(job))
    assert definition(job) == after


def test_edit_to_a_long_value_is_reverted() -> None:
    job = make_idle_job(description="short")
    control.revert(job, edit(job, description="x" * (LONGEST + 1)))
    assert job.description == "short"
    assert refusal(job, latest_entry(job)).code == "incomplete"


def test_revert_has_an_entry_that_names_the_edit() -> None:
    job = make_idle_job()
    entry = edit(job, description="new")
    with control.acting_as("grace"):
        control.revert(job, entry)

    _created, _edited, change = logged_changes_of(job)
    assert (change.action, change.version, change.by) == ("change", 3, "grace")
    assert change.reason.startswith("reverts version 2 (ada, ")
    assert [(each.field, each.old, each.new) for each in change.fields] == [
        ("description", "new", "")
    ]


def test_edit_is_reverted_once() -> None:
    job = make_idle_job()
    entry = edit(job, max_attempts=4)
    control.revert(job, entry)
    assert refusal(job, entry).code == "changed"
    control.revert(job, latest_entry(job))
    control.revert(job, entry)
    assert job.max_attempts == 1


def test_other_changes_since_the_edit_stay() -> None:
    job = make_idle_job()
    entry = edit(job, max_attempts=4)
    edit(job, description="new")
    control.pause(job, "deploy")
    control.revert(Job.objects.get(pk=job.pk), entry)
    job.refresh_from_db()
    assert (job.max_attempts, job.description, job.enabled) == (1, "new", False)


def test_unsaved_values_of_the_instance_are_not_saved() -> None:
    job = make_idle_job()
    entry = edit(job, max_attempts=4)
    job.description = "unsaved"
    control.revert(job, entry)
    assert (job.description, job.max_attempts) == ("", 1)


def test_field_that_was_changed_again_is_named_with_its_author() -> None:
    job = make_idle_job()
    entry = edit(job, max_attempts=4, queue="slow", description="new")
    edit(job, max_attempts=5)
    Job.objects.filter(pk=job.pk).update(queue="by SQL")  # has no entry

    error = refusal(job, entry)
    assert error.code == "changed"
    text = str(error.params["fields"])
    assert "max_attempts (now 5, since version 3 by ada at " in text
    assert "queue (now by SQL)" in text
    assert "description" not in text


@pytest.mark.parametrize("reason", ["", "bank migration (bob)"])
@pytest.mark.parametrize("until", [None, datetime(2090, 1, 1, tzinfo=UTC)])
def test_later_pause_is_not_undone(reason: str, until: datetime | None) -> None:
    job = make_job()
    entry = edit(job, enabled=False, pause_reason="")
    control.resume(job)
    with control.acting_as("bob"):
        control.pause(job, reason, until)

    error = refusal(job, entry)
    assert error.code == "changed"
    assert "enabled (now false, since version 4 by bob at " in str(error.params["fields"])


def test_other_end_of_a_later_pause_prevents_the_revert() -> None:
    job = make_job()
    entry = edit(job, enabled=False, pause_reason="deploy")
    control.pause(job, "deploy", datetime(2090, 1, 1, tzinfo=UTC))
    error = refusal(job, entry)
    assert str(error.params["fields"]).startswith("paused_until (now ")


@pytest.mark.parametrize(
    ("values", "later"),
    [
        ({"description": "x" * LONGEST + "a"}, {"description": "x" * LONGEST + "b"}),
        ({"kwargs": {"password": "a"}}, {"kwargs": {"password": "b"}}),
    ],
)
def test_later_edit_is_not_overwritten_although_the_log_shows_no_difference(
    values: dict[str, Any], later: dict[str, Any]
) -> None:
    job = make_idle_job(target="tests.app.tasks.echo")
    entry = edit(job, **values)
    latest = edit(job, **later)
    assert refusal(job, entry).code == "changed"
    assert refusal(job, latest).code == "incomplete"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"description": "x" * (LONGEST + 1)}, {"description": ""}),
        ({"description": "x" * LONGEST}, {"description": "x" * (LONGEST + 1)}),
        ({"args": ["x" * LONGEST]}, {"args": []}),
        ({"kwargs": {"api_token": "hush", "n": 1}}, {"kwargs": {"api_token": "hush", "n": 2}}),
        ({"kwargs": {"api_token": "hush"}}, {"kwargs": {"api_token": "hush-2"}}),
    ],
)
def test_value_that_the_log_does_not_have_is_not_reverted(
    old: dict[str, Any], new: dict[str, Any]
) -> None:
    job = make_idle_job(target="tests.app.tasks.echo", **old)
    entry = edit(job, max_attempts=4, **new)

    error = refusal(job, entry)
    assert error.code == "incomplete"
    assert str(error.params["fields"]) == next(iter(new))


def test_only_an_edit_of_the_job_is_reverted() -> None:
    job, other = make_idle_job(), make_idle_job()
    entry_of_other = edit(other, max_attempts=4)
    control.pause(job, "deploy")
    control.pause(job, "deploy 2")
    control.resume(job)
    control.save_limit(Limit(name="api", max_running=1))
    no_edits = [*entries_of(job), entry_of_other, entries_of(Limit.objects.get()).get()]
    assert len(no_edits) == 6
    assert {refusal(job, entry).code for entry in no_edits} == {"not_an_edit"}


def test_old_values_are_validated() -> None:
    past = datetime(2020, 1, 1, tzinfo=UTC)
    job = make_job(schedule="@at 2090-01-01T09:00", timezone="UTC")
    Job.objects.filter(pk=job.pk).update(target="gone.task", ends_at=past)
    job.refresh_from_db()
    entry = edit(job, target="tests.app.tasks.ok", ends_at=None, description="new")

    with pytest.raises(ValidationError) as caught:
        control.revert(job, entry)
    assert "target" in caught.value.error_dict
    job.refresh_from_db()
    assert (job.target, job.description, job.version) == ("tests.app.tasks.ok", "new", 2)


@pytest.mark.parametrize("new", [{"paused_until": None}, {"enabled": True}])
def test_past_end_of_a_pause_is_not_restored(new: dict[str, Any]) -> None:
    job = make_job(enabled=False, pause_reason="deploy")
    Job.objects.filter(pk=job.pk).update(paused_until=datetime(2020, 1, 1, tzinfo=UTC))
    job.refresh_from_db()
    entry = edit(job, **new)
    with pytest.raises(ValidationError) as caught:
        control.revert(job, entry)
    assert [*caught.value.error_dict] == ["paused_until"]
    assert latest_entry(job) == entry


def test_schedule_whose_last_occurrence_is_over_is_not_restored() -> None:
    job = make_job(schedule="@at 2090-01-01T09:00", timezone="UTC")
    Job.objects.filter(pk=job.pk).update(schedule="@at 2020-01-01T09:00")
    job.refresh_from_db()
    entry = edit(job, schedule="@daily")
    with pytest.raises(ValidationError) as caught:
        control.revert(job, entry)
    assert "schedule" in caught.value.error_dict


def test_concurrent_edit_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_idle_job()
    entry = edit(job, max_attempts=4)
    decide = reverting.decide_revert

    def decide_late(*facts: Any) -> Any:
        decision = decide(*facts)
        edit(Job.objects.get(pk=job.pk), max_attempts=5)
        return decision

    monkeypatch.setattr(reverting, "decide_revert", decide_late)
    with pytest.raises(Conflict):
        control.revert(job, entry)
    assert Job.objects.get(pk=job.pk).max_attempts == 5


def test_deleted_job_is_not_reverted() -> None:
    job = make_idle_job()
    entry = edit(job, max_attempts=4)
    control.delete(Job.objects.get(pk=job.pk))
    with pytest.raises(Conflict):
        control.revert(job, entry)
    assert latest_entry(job).action == "delete"


def deletion(job: Job, **options: Any) -> AuditEntry:
    """Delete the job and return the entry."""
    with control.acting_as("mallory"):
        control.delete(Job.objects.get(pk=job.pk), **options)
    return latest_entry(job)


@pytest.mark.parametrize("has_history", [True, False])
@pytest.mark.parametrize(
    "values",
    [
        {"schedule": "0 3 1 1 *\nH 4 1 1 *", "timezone": "Asia/Tokyo", "namespace": "shop"},
        {"target": "tests.app.tasks.echo", "args": [1, "ä", None], "kwargs": {"a": {"b": [1]}}},
        {"tags": ["a"], "description": "null", "timeout": timedelta(minutes=1, milliseconds=500)},
        {"retry_backoff_factor": 1.5, "ends_at": datetime(2090, 1, 1, 0, 0, 0, 5, tzinfo=UTC)},
        {"calendar_id": "closed", "limit_id": "api", "after": {"first": "ended"}},
        {"enabled": False, "pause_reason": "deploy"},
        {
            "enabled": False,
            "pause_reason": "deploy",
            "paused_until": datetime(2090, 1, 1, tzinfo=UTC),
        },
        {"name": "x" * Job._meta.get_field("name").max_length},
        {"description": "x" * (LONGEST + 1), "tags": ["y" * 20] * 20},
    ],
)
def test_deleted_job_is_restored(values: dict[str, Any], has_history: bool) -> None:
    control.save_calendar(Calendar(name="closed", dates="SAT"))
    control.save_limit(Limit(name="api", max_running=1))
    make_idle_job(name="first")
    job = make_job(**{"schedule": "0 0 1 1 *"} | values)
    before, next_at = definition(job), Cursor.objects.get(pk=job.pk).next_at
    if has_history:
        make_run(job, "succeeded")

    restored = control.restore(deletion(job))

    new = {"id": restored.pk, "created_at": to_json(restored.created_at)}
    assert definition(restored) == before | new
    assert restored.pk != job.pk
    assert Cursor.objects.get(pk=restored.pk).next_at == next_at
    assert not Run.objects.filter(job=restored).exists()
    assert Run.objects.filter(job=job.pk).count() == has_history
    (created,) = logged_changes_of(restored)
    assert created.action == "create"
    assert created.reason.startswith(f"restores job {job.pk} (mallory, ")


def test_secrets_that_only_the_deleted_row_has() -> None:
    values = {"kwargs": {"api_token": "hush"}}
    job = make_idle_job(target="tests.app.tasks.echo", **values)
    make_run(job, "succeeded")
    entry = deletion(job)
    restored = control.restore(entry)
    assert {name: getattr(restored, name) for name in values} == values

    erased = deletion(restored, erase=True)
    with pytest.raises(NotPossible) as caught:
        control.restore(erased)
    assert caught.value.code == "incomplete"
    assert str(caught.value.params["fields"]) == "kwargs"
    assert not Job.objects.exists()


def test_error_says_that_the_values_are_no_longer_stored() -> None:
    entry = deletion(make_idle_job())
    Deletion.objects.all().delete()
    with pytest.raises(NotPossible) as caught:
        control.restore(entry)
    assert caught.value.code == "not_stored"


def test_namesake_in_another_case_is_not_restored() -> None:
    entry = deletion(make_idle_job(name="report"))
    assert deletion_of("report") == entry
    assert deletion_of("REPORT") is None
    assert deletion_of(str(entry.job_id)) == entry


def test_latest_deletion_is_found_although_the_job_is_older() -> None:
    older, newer = make_idle_job(name="older"), make_idle_job(name="report")
    control.delete(newer)
    older.name = "report"
    control.save(older)
    assert deletion(older) == deletion_of("report")


def test_default_of_the_deletion_is_restored(settings: Settings) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    entry = deletion(make_idle_job())
    settings.TIME_ZONE = "Asia/Tokyo"
    assert control.restore(entry).timezone == "Europe/Berlin"


def test_deletion_is_not_undone_if_the_name_is_taken_or_a_row_is_missing() -> None:
    control.save_limit(Limit(name="api", max_running=1))
    job = make_idle_job(limit_id="api")
    entry = deletion(job)
    other = make_idle_job(name=job.name)
    with pytest.raises(ValidationError) as caught:
        control.restore(entry)
    ((taken,),) = caught.value.error_dict.values()
    assert (taken.code, taken.params) == ("unique", {"name": str(other), "number": other.pk})
    control.delete(other)
    control.delete_limit(Limit.objects.get())
    with pytest.raises(ValidationError) as caught:
        control.restore(entry)
    assert "limit" in caught.value.error_dict
    assert not Job.objects.exists()


@pytest.mark.parametrize("has_run", [True, False])
def test_interval_keeps_its_phase(has_run: bool) -> None:
    job = make_job(schedule="@every 24h")
    cursor = Cursor.objects.get()
    cursor.next_at -= timedelta(hours=6)
    cursor.previous_at = cursor.next_at - timedelta(hours=24) if has_run else None
    cursor.save()
    for _ in range(2):
        job = control.restore(deletion(job))
        assert Cursor.objects.get().next_at == cursor.next_at


def test_pause_that_has_ended_is_not_restored() -> None:
    job = make_job(schedule="* * * * *")
    control.pause(job, "deploy", until=database_now("default") + timedelta(hours=1))
    entry = deletion(job)
    stored = Deletion.objects.get()
    stored.values["paused_until"] = "2020-01-01T00:00:00Z"
    stored.save()
    restored = control.restore(entry)
    assert (restored.enabled, restored.pause_reason, restored.paused_until) == (True, "", None)
    cursor = Cursor.objects.get()
    assert cursor.next_at > cursor.placed_at
    assert not Run.objects.exists()


def test_deletion_is_undone_once() -> None:
    entry = deletion(make_idle_job())
    restored = control.restore(entry)
    restored.name = "renamed"
    control.save(restored)
    for label in ("renamed", f"renamed (deleted {restored.pk})"):
        with pytest.raises(NotPossible) as caught:
            control.restore(entry)
        assert caught.value.code == "already_undone"
        named = {name: caught.value.params[name] for name in ("restored", "number")}
        assert named == {"restored": label, "number": restored.pk}
        if Job.objects.exists():
            make_run(restored, "succeeded")
            latest = deletion(restored)
    assert control.restore(latest).name == "renamed"


def test_job_whose_row_was_loaded_again_is_deleted_and_restored_again() -> None:
    job = make_idle_job(name="report")
    stored = serialize("json", [job])
    first = deletion(job)
    Job.objects.filter(pk=control.restore(first).pk).delete()
    for loaded in deserialize("json", stored):
        loaded.save()
    job.refresh_from_db()
    job.description = "as it was deleted again"
    control.save(job)
    second = deletion(job)
    assert deletion_of("report") == second
    for _ in range(2):
        with pytest.raises(NotPossible) as caught:
            control.restore(first)
        assert caught.value.code == "not_stored"
        if not Job.objects.exists():
            restored = control.restore(second)
    assert (restored.description, Job.objects.get()) == ("as it was deleted again", restored)


def test_finished_job_is_restored_without_an_occurrence() -> None:
    job = make_idle_job(enabled=False, pause_reason=EXHAUSTED)
    Job.objects.filter(pk=job.pk).update(schedule="@at 2020-01-01T09:00")
    restored = control.restore(deletion(job))
    assert restored.is_finished
    assert Cursor.objects.get(pk=restored.pk).next_at is None


def test_only_a_deletion_of_a_job_is_undone() -> None:
    job = make_idle_job()
    control.save_limit(Limit(name="api", max_running=1))
    control.delete_limit(Limit.objects.get())
    for entry in AuditEntry.objects.all():
        with pytest.raises(NotPossible) as caught:
            control.restore(entry)
        assert caught.value.code == "not_a_deletion"
    assert Job.objects.get() == job
