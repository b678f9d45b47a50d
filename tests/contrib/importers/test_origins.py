"""Test that a repeated import recognizes its jobs and keeps the changes of users."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import Mock

import pytest
from django.db import OperationalError, connection

from django_dcron import control
from django_dcron.contrib.importers import writing
from django_dcron.contrib.importers.comparison import (
    awaiting_handover,
    compare_entries,
    jobs_without_entry,
    shadows_left,
)
from django_dcron.contrib.importers.entry_plans import (
    ComparisonOptions,
    EntryPlan,
    ImportOutcome,
)
from django_dcron.contrib.importers.origins import store_left_to_source
from django_dcron.contrib.importers.schedule_fields import LONG_INTERVAL, next_due
from django_dcron.contrib.importers.source_contents import SourceEntry
from django_dcron.contrib.importers.writing import (
    CHANGED_MEANWHILE,
    CREATED_MEANWHILE,
    apply_entry_plans,
)
from django_dcron.exceptions import BulkSaveError, Conflict
from django_dcron.models import AuditAction, AuditEntry, DeletedImport, Job
from django_dcron.models.job_states import (
    ARRIVED_PAUSED,
    EXHAUSTED,
    HANDED_BACK,
    WAITS_FOR_HANDOVER,
)
from tests.factories import make_job

pytestmark = pytest.mark.django_db

SOURCE = "redbeat"
VALUES: dict[str, Any] = {
    "target": "tests.app.tasks.echo",
    "schedule": "@daily",
    "timezone": "UTC",
    "starts_at": None,
    "enabled": True,
    "pause_reason": "",
}
NOW = datetime(2083, 1, 1, 12, tzinfo=UTC)


def entry(
    name: str = "a", key: str = "1", *, due: datetime | None = None, **values: Any
) -> SourceEntry:
    return SourceEntry(f"row {name}", name, VALUES | values, key=key, next_due=due)


def plan(*entries: SourceEntry, source: str = SOURCE, **options: Any) -> list[EntryPlan]:
    return compare_entries(entries, options=ComparisonOptions(source=source, **options))


def import_entries(*entries: SourceEntry, **options: Any) -> list[EntryPlan]:
    return list(apply_entry_plans(plan(*entries, **options)))


def edit(**values: Any) -> Job:
    job = Job.objects.get()
    for name, value in values.items():
        setattr(job, name, value)
    return control.save(job)


def kinds(plans: list[EntryPlan]) -> list[ImportOutcome]:
    return [imported.outcome for imported in plans]


# --- Identity -------------------------------------------------------------------------------------


def test_job_stores_its_source_and_key() -> None:
    import_entries(entry("nightly (old) ", "7"))
    job = Job.objects.get()
    assert (job.name, job.import_source, job.import_key) == ("nightly old", SOURCE, "7")
    assert kinds(plan(entry("nightly (old) ", "7"))) == [ImportOutcome.SAME]


@pytest.mark.parametrize("again", [entry("a", "1"), entry("a", "2"), entry("b", "1")])
def test_deleted_job_is_not_imported_again(again: SourceEntry) -> None:
    """The entry has the same key or the same name."""
    import_entries(entry("a", "1"))
    control.delete(Job.objects.get())
    (deleted, other) = import_entries(again, entry("other", "9"))
    assert (deleted.outcome, other.outcome) == (ImportOutcome.DELETED, ImportOutcome.CREATE)
    assert [job.name for job in Job.objects.all()] == ["other"]


def test_deleted_job_is_imported_again_on_request() -> None:
    import_entries(entry("a", "1"), entry("b", "2"))
    for job in Job.objects.all():
        control.delete(job)
    assert kinds(plan(entry("a", "1"), entry("b", "2"), restore=["*a"])) == [
        ImportOutcome.CREATE,
        ImportOutcome.DELETED,
    ]
    import_entries(entry("a", "1"), entry("b", "2"), restore=["default/*"])
    assert kinds(plan(entry("a", "1"), entry("b", "2"))) == [ImportOutcome.SAME, ImportOutcome.SAME]
    control.delete(Job.objects.get(name="a"))
    assert kinds(plan(entry("a", "1"))) == [ImportOutcome.DELETED]


def test_job_that_was_deleted_twice_is_not_imported_again() -> None:
    """The source creates the entry again after each deletion, with a new key."""
    import_entries(entry("a", "1"))
    control.delete(Job.objects.get())
    import_entries(entry("a", "2"), restore=["a"])
    control.delete(Job.objects.get())
    assert kinds(plan(entry("a", "3"))) == [ImportOutcome.DELETED]


def test_request_for_one_deleted_job_creates_no_other_one() -> None:
    """The entry has the name of one deleted job and the key of another one."""
    import_entries(entry("a", "1"), entry("b", "2"))
    for job in Job.objects.all():
        control.delete(job)
    swapped = (entry("a", "2"), entry("b", "1"))
    assert kinds(import_entries(*swapped, restore=["a"])) == [
        ImportOutcome.CREATE,
        ImportOutcome.DELETED,
    ]
    assert kinds(plan(*swapped)) == [ImportOutcome.SAME, ImportOutcome.DELETED]
    control.delete(Job.objects.get())
    assert kinds(plan(*swapped)) == [ImportOutcome.DELETED, ImportOutcome.DELETED]


def test_deleted_job_counts_for_the_entry_with_its_key_and_not_for_one_with_its_name() -> None:
    import_entries(entry("a", "1"))
    control.delete(Job.objects.get())
    renamed = (entry("b", "1"), entry("a", "9"))
    assert kinds(import_entries(*renamed)) == [ImportOutcome.DELETED, ImportOutcome.CREATE]
    assert kinds(import_entries(*renamed, restore=["a"])) == [
        ImportOutcome.DELETED,
        ImportOutcome.SAME,
    ]
    assert kinds(plan(*renamed)) == [ImportOutcome.DELETED, ImportOutcome.SAME]
    assert kinds(import_entries(*renamed, restore=["b"])) == [
        ImportOutcome.CREATE,
        ImportOutcome.SAME,
    ]


def test_name_of_a_deleted_job_counts_although_another_entry_took_its_key() -> None:
    """The source created its entries again, with other keys."""
    import_entries(entry("a", "1"), entry("b", "2"))
    control.delete(Job.objects.get(name="a"))
    assert kinds(plan(entry("b", "1"), entry("a", "2"))) == [
        ImportOutcome.SAME,
        ImportOutcome.DELETED,
    ]


def test_refused_restore_keeps_the_deletion() -> None:
    import_entries(entry("a", "1"), entry("b", "2"))
    for job in Job.objects.all():
        control.delete(job)
    plans = plan(entry("a", "1"), entry("b", "2"), restore=["*"])
    meanwhile = make_job(name="a")
    assert kinds(list(apply_entry_plans(plans))) == [ImportOutcome.REFUSED, ImportOutcome.CREATE]
    control.delete(meanwhile)
    again = plan(entry("a", "1"), entry("b", "2"))
    assert kinds(again) == [ImportOutcome.DELETED, ImportOutcome.SAME]


def test_refused_restore_costs_few_queries(django_assert_max_num_queries: Any) -> None:
    entries = [entry(f"job {number}", str(number)) for number in range(100)]
    import_entries(*entries)
    for job in Job.objects.all():
        control.delete(job)
    plans = plan(*entries, restore=["*"])
    make_job(name="job 50")
    with django_assert_max_num_queries(300):
        written = list(apply_entry_plans(plans))
    assert [each.name for each in written if each.outcome is ImportOutcome.REFUSED] == ["job 50"]
    assert [each.name for each in written] == [each.name for each in entries]


@pytest.mark.django_db(transaction=True)
def test_handover_of_deleted_jobs_is_stored_despite_contention() -> None:
    import_entries(entry("a", "1"))
    control.delete(Job.objects.get())
    deleted = DeletedImport.objects.get()
    errors = [OperationalError("database is locked")]

    def fail_once(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if errors and sql.startswith("UPDATE"):
            raise errors.pop()
        return execute(sql, params, many, context)

    with connection.execute_wrapper(fail_once):
        store_left_to_source(deleted.import_source, [deleted.pk])
    deleted.refresh_from_db()
    assert (deleted.left_to_source, errors) == (True, [])


def test_failed_restore_keeps_the_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    import_entries(entry())
    control.delete(Job.objects.get())
    plans = plan(entry(), restore=["a"])
    with monkeypatch.context() as patched:
        patched.setattr(writing, "save_changes", Mock(side_effect=OperationalError("gone")))
        with pytest.raises(OperationalError):
            list(apply_entry_plans(plans))
    assert kinds(plan(entry())) == [ImportOutcome.DELETED]


def test_name_of_several_deleted_jobs_does_not_hide_a_new_entry() -> None:
    import_entries(entry("a", "1"), replace(entry("a", "2"), origin="row 2"))
    assert Job.objects.count() == 2
    for job in Job.objects.all():
        control.delete(job)
    assert kinds(plan(entry("a", "3"))) == [ImportOutcome.CREATE]
    assert kinds(plan(entry("a", "1"))) == [ImportOutcome.DELETED]


def test_deletion_does_not_concern_other_sources() -> None:
    import_entries(entry())
    control.delete(Job.objects.get())
    assert kinds(plan(entry(), source="django-q2")) == [ImportOutcome.CREATE]
    assert kinds(plan(entry(), source="")) == [ImportOutcome.CREATE]


@pytest.mark.parametrize("take_over", [True, False])
def test_second_import_at_the_same_time_creates_no_job_again(take_over: bool) -> None:
    """Both imports compare before one of them writes."""
    entries = [replace(entry(name, key), last_run=NOW) for name, key in (("a", "1"), ("b", "2"))]
    first, second = (plan(*entries, take_over=take_over) for _ in range(2))
    assert kinds(list(apply_entry_plans(first[1:]))) == [ImportOutcome.CREATE]
    created, refused = apply_entry_plans(second)
    assert created.outcome is ImportOutcome.CREATE
    assert (refused.outcome, refused.reasons) == (ImportOutcome.REFUSED, (CREATED_MEANWHILE,))
    assert (refused.changes, refused.job) == ({}, None)
    assert sorted(Job.objects.values_list("name", "import_key")) == [("a", "1"), ("b", "2")]


def test_renamed_and_moved_job_is_not_imported_twice() -> None:
    import_entries(entry())
    edit(name="b", namespace="shop")
    (imported,) = import_entries(entry(schedule="@hourly"))
    assert (imported.outcome, str(imported)) == (ImportOutcome.CHANGE, "shop/b")
    assert imported.kept == {"name": ("b", "a")}
    job = Job.objects.get()
    assert (str(job), job.schedule) == ("shop/b", "@hourly")
    import_entries(entry(schedule="@hourly"), overwrite=["name"])
    assert Job.objects.get().name == "a"
    assert kinds(plan(entry(schedule="@hourly"))) == [ImportOutcome.SAME]


def test_entry_renamed_in_the_source_is_not_imported_twice() -> None:
    import_entries(entry("a", "1"))
    (imported,) = import_entries(entry("b", "1"))
    assert (imported.outcome, imported.kept, jobs_without_entry(SOURCE, [imported])) == (
        ImportOutcome.KEPT,
        {"name": ("a", "b")},
        [],
    )
    assert Job.objects.get().name == "a"


@pytest.mark.parametrize("first", [{}, {"disabled": True}, {"shadow": True}])
def test_entry_renamed_in_a_source_whose_names_are_its_keys_is_not_imported_twice(
    first: dict[str, bool],
) -> None:
    import_entries(entry("a", "a", kwargs={"n": 1}), entry("other", "o"), **first)
    (renamed, _other) = import_entries(entry("b", "b", kwargs={"n": 1}), entry("other", "o"))
    assert renamed.kept == {"name": ("a", "b")}
    assert dict(Job.objects.values_list("name", "import_key")) == {"a": "b", "other": "o"}
    again = entry("b", "b", kwargs={"n": 1}, schedule="@hourly"), entry("other", "o")
    assert kinds(plan(*again)) == [ImportOutcome.CHANGE, ImportOutcome.SAME]
    import_entries(*again, overwrite=["name"])
    assert {*Job.objects.values_list("name", "schedule")} == {("b", "@hourly"), ("other", "@daily")}


def test_new_entry_takes_over_a_job_only_if_one_job_of_its_source_does_the_same_work() -> None:
    import_entries(entry("a", "a"), entry("b", "b"))
    assert kinds(plan(entry("c", "c"))) == [ImportOutcome.CREATE], "a and b are gone"
    assert kinds(plan(entry("a", "a"), entry("c", "c"), entry("d", "d")))[1:] == [
        ImportOutcome.CREATE,
        ImportOutcome.CREATE,
    ], "c or d may have been b"
    assert kinds(plan(entry("a", "a"), entry("b", "b"), entry("c", "c")))[2:] == [
        ImportOutcome.CREATE
    ], "nothing is gone"
    assert kinds(plan(entry("a", "a"), entry("c", "c", schedule="@hourly")))[1:] == [
        ImportOutcome.CREATE
    ]


def test_name_that_was_kept_can_be_overwritten_later() -> None:
    import_entries(entry("a", "1"))
    import_entries(entry("b", "1"))
    (repeated,) = import_entries(entry("b", "1"))
    assert (repeated.outcome, repeated.kept) == (ImportOutcome.KEPT, {"name": ("a", "b")})
    import_entries(entry("b", "1"), overwrite=["name"])
    assert Job.objects.get().name == "b"
    assert kinds(plan(entry("b", "1"), overwrite=["name"])) == [ImportOutcome.SAME]


def test_name_reused_by_another_entry_gets_its_definition() -> None:
    """Row 1 was renamed, and a new row has its old name."""
    import_entries(entry("a", "1"))
    import_entries(entry("b", "1", schedule="@hourly"), entry("a", "2"))
    jobs = Job.objects.order_by("name").values_list("name", "schedule", "import_key")
    assert [*jobs] == [("a", "@daily", "2"), ("b", "@hourly", "1")]


def test_entries_with_new_keys_are_recognized_by_their_names() -> None:
    """The tables of the source were restored, and the keys now belong to other rows."""
    import_entries(entry("a", "1"), entry("b", "2", schedule="@hourly"))
    import_entries(entry("b", "1", schedule="@hourly"), entry("a", "2"))
    jobs = Job.objects.order_by("name").values_list("name", "schedule", "import_key")
    assert [*jobs] == [("a", "@daily", "2"), ("b", "@hourly", "1")]
    assert not AuditEntry.objects.filter(action=AuditAction.CHANGE).exists()


def test_refused_job_does_not_take_the_key_of_another() -> None:
    import_entries(entry("a", "1"), entry("b", "2"))
    plans = plan(entry("a", "2"), entry("b", "1"))
    a = Job.objects.get(name="a")
    a.max_attempts = 5
    control.save(a)
    (refused,) = apply_entry_plans([imported for imported in plans if imported.name == "a"])
    assert refused.outcome is ImportOutcome.REFUSED
    assert dict(Job.objects.values_list("name", "import_key")) == {"a": "1", "b": "2"}


def test_jobs_missing_from_the_source_are_listed() -> None:
    import_entries(entry("a", "1"), entry("b", "2"))
    plans = import_entries(entry("a", "1"), entry("c", "3", schedule="@hourly"))
    assert [job.name for job in jobs_without_entry(SOURCE, plans)] == ["b"]
    assert [job.name for job in jobs_without_entry("django-q2", [])] == []


def test_entry_with_the_name_of_a_renamed_job_gets_another_name() -> None:
    import_entries(entry("a", "1"))
    edit(name="b")
    plans = import_entries(entry("a", "1"), entry("b", "2"))
    assert kinds(plans) == [ImportOutcome.KEPT, ImportOutcome.CREATE]
    names = set(Job.objects.values_list("name", "import_key"))
    assert names == {("b", "1"), (plans[1].name, "2")}
    assert plans[1].name.startswith("b-")
    assert kinds(plan(entry("a", "1"), entry("b", "2"))) == [ImportOutcome.KEPT, ImportOutcome.SAME]


def test_job_of_another_source_is_a_conflict() -> None:
    import_entries(entry())
    (imported,) = import_entries(entry(schedule="@hourly"), source="django-q2")
    assert (imported.outcome, imported.changes) == (
        ImportOutcome.CONFLICT,
        {"schedule": ("@daily", "@hourly")},
    )
    job = Job.objects.get()
    assert (job.schedule, job.import_source) == ("@daily", SOURCE)


def test_job_created_by_a_user_is_a_conflict_unless_overwritten() -> None:
    make_job(name="a", schedule="@hourly", target=VALUES["target"])
    (imported,) = import_entries(entry())
    assert (imported.outcome, imported.changes) == (
        ImportOutcome.CONFLICT,
        {"schedule": ("@hourly", "@daily")},
    )
    (imported,) = import_entries(entry(), overwrite=["schedule"])
    assert (imported.outcome, Job.objects.get().import_key) == (ImportOutcome.CHANGE, "1")


def test_identical_job_created_by_a_user_gets_the_key() -> None:
    stale = make_job(name="a", schedule="@daily", target=VALUES["target"])
    assert kinds(import_entries(entry())) == [ImportOutcome.SAME]
    adoption = AuditEntry.objects.get(action=AuditAction.CHANGE)
    assert (adoption.before, adoption.after) == ({"import_source": ""}, {"import_source": SOURCE})
    with pytest.raises(Conflict):
        control.save(stale)
    with pytest.raises(BulkSaveError):
        control.save_many([stale])
    assert kinds(plan(entry(schedule="@hourly"))) == [ImportOutcome.CHANGE]
    edit(name="b")
    assert kinds(import_entries(entry())) == [ImportOutcome.KEPT]


@pytest.mark.parametrize(
    ("again", "is_edited", "outcome"),
    [
        (entry("b", "3"), False, ImportOutcome.SAME),
        (entry("b", "2", schedule="@hourly"), False, ImportOutcome.CHANGE),
        (entry("b", "3"), True, ImportOutcome.REFUSED),
    ],
    ids=["key", "change", "edited"],
)
@pytest.mark.parametrize("disabled", [True, False])
def test_follower_of_a_job_that_the_import_renames_is_imported(
    again: SourceEntry, is_edited: bool, outcome: ImportOutcome, disabled: bool
) -> None:
    """The rename changes the version of the follower, too."""
    import_entries(entry("a", "1"), entry("b", "2"), disabled=disabled)
    follower = Job.objects.get(name="b")
    follower.after = {"a": "succeeded"}
    control.save(follower)
    entries = [replace(each, last_run=NOW) for each in (entry("new", "1"), again)]
    plans = plan(*entries, overwrite=["name"], take_over=disabled)
    if is_edited:
        follower.description = "edited"
        control.save(follower)
    expected = ImportOutcome.CHANGE if disabled and not is_edited else outcome
    written = {each.entry.name: each.outcome for each in apply_entry_plans(plans)}
    assert written == {"new": ImportOutcome.CHANGE, "b": expected}
    follower = Job.objects.get(name="b")
    assert follower.after == {"new": "succeeded"}
    if not is_edited:
        assert (follower.schedule, follower.import_key) == (again.values["schedule"], again.key)


@pytest.mark.parametrize("is_enabled", [True, False])
@pytest.mark.parametrize(
    "first", [{}, {"disabled": True}, {"shadow": True}, {"take_over": True}], ids=str
)
def test_job_created_by_a_user_stays_enabled_or_paused(
    first: dict[str, bool], is_enabled: bool
) -> None:
    """The entry differs only in whether it is enabled."""
    reason = "" if is_enabled else "incident 42"
    make_job(name="a", schedule="@daily", target=VALUES["target"])
    if not is_enabled:
        control.pause(Job.objects.get(), reason)
    other = entry(enabled=not is_enabled, pause_reason="was disabled there" if is_enabled else "")
    for options in (first, {}, {"take_over": True}, {}):
        (imported,) = import_entries(other, **options)
        assert (imported.changes, imported.kept) == (
            {},
            {} if "disabled" in options else {"enabled": (is_enabled, not is_enabled)},
        )
        job = Job.objects.get()
        assert (job.enabled, job.pause_reason) == (is_enabled, reason)
    import_entries(other, overwrite=["enabled"])
    job = Job.objects.get()
    assert (job.enabled, job.pause_reason) == (not is_enabled, other.values["pause_reason"])
    import_entries(entry(enabled=is_enabled))
    assert Job.objects.get().enabled is is_enabled, "the job now follows its entry"


def test_first_import_takes_the_state_of_the_source_on_request() -> None:
    make_job(name="a", schedule="@daily", target=VALUES["target"])
    off = {"enabled": False, "pause_reason": "was disabled there"}
    assert kinds(import_entries(entry(**off), overwrite=["enabled"])) == [ImportOutcome.CHANGE]
    job = Job.objects.get()
    assert (job.enabled, job.pause_reason, job.import_key) == (False, "was disabled there", "1")


@pytest.mark.parametrize("after", [{}, {"c": "succeeded"}], ids=str)
def test_follower_that_a_user_unlinked_before_the_rename_is_refused(after: dict[str, str]) -> None:
    """The rename doesn't change the version of this job. The user does, by one as well."""
    import_entries(entry("a", "1"), entry("b", "2"), entry("c", "3"))
    follower = Job.objects.get(name="b")
    follower.after = {"a": "succeeded"}
    control.save(follower)
    plans = plan(entry("new", "1"), entry("b", "2", schedule="@hourly"), overwrite=["name"])
    follower.after, follower.description = after, "edited"
    control.save(follower)
    written = {each.entry.name: each for each in apply_entry_plans(plans)}
    assert written["new"].outcome is ImportOutcome.CHANGE
    assert written["b"].reasons == (CHANGED_MEANWHILE,)
    follower = Job.objects.get(name="b")
    assert (follower.after, follower.description, follower.schedule) == (after, "edited", "@daily")


@pytest.mark.parametrize("is_edited", [True, False])
def test_follower_of_two_renamed_jobs_is_imported_unless_a_user_changes_it_in_between(
    is_edited: bool,
) -> None:
    import_entries(entry("a", "1"), entry("b", "2"), entry("c", "3"))
    follower = Job.objects.get(name="c")
    follower.after = {"a": "succeeded", "b": "succeeded"}
    control.save(follower)
    again = (entry("new a", "1"), entry("new b", "2"), entry("c", "3", schedule="@hourly"))
    outcomes = []
    for written in apply_entry_plans(plan(*again, overwrite=["name"])):
        outcomes.append(written.outcome)
        if is_edited and len(outcomes) == 1:
            follower.refresh_from_db()
            follower.after = {"new a": "succeeded"}
            control.save(follower)
    last = ImportOutcome.REFUSED if is_edited else ImportOutcome.CHANGE
    assert outcomes == [ImportOutcome.CHANGE, ImportOutcome.CHANGE, last]


def test_description_of_a_job_created_by_a_user_is_no_conflict_with_an_empty_one() -> None:
    own = make_job(name="a", schedule="@daily", target=VALUES["target"], description="Ask Ann")
    assert kinds(plan(entry(description="Ask Bob"))) == [ImportOutcome.CONFLICT]
    assert kinds(import_entries(entry(description=""))) == [ImportOutcome.SAME]
    own.refresh_from_db()
    assert (own.description, own.import_key) == ("Ask Ann", "1")
    assert kinds(import_entries(entry(description=""))) == [ImportOutcome.SAME]
    assert kinds(plan(entry(description="Ask Bob"))) == [ImportOutcome.KEPT]
    import_entries(entry(description=""), overwrite=["description"])
    assert Job.objects.get().description == ""


# --- Changes by users -----------------------------------------------------------------------------


def test_edited_field_is_kept_and_others_follow_the_source() -> None:
    import_entries(entry(priority=1))
    edit(schedule="@weekly")
    (imported,) = import_entries(entry(schedule="@hourly", priority=2))
    assert (imported.changes, imported.kept) == (
        {"priority": (1, 2)},
        {"schedule": ("@weekly", "@hourly")},
    )
    job = Job.objects.get()
    assert (job.schedule, job.priority) == ("@weekly", 2)
    assert plan(entry(priority=2))[0].kept == {"schedule": ("@weekly", "@daily")}
    import_entries(entry(schedule="@hourly", priority=2), overwrite=["schedule"])
    assert Job.objects.get().schedule == "@hourly"


def test_description_written_by_a_user_is_listed_only_if_the_source_has_or_had_one() -> None:
    import_entries(entry(description=""))
    edit(description="Ask Ann")
    assert kinds(import_entries(entry(description=""))) == [ImportOutcome.SAME]
    import_entries(entry(description="Ask Bob"))
    for outcome in (ImportOutcome.KEPT, ImportOutcome.SAME):
        assert kinds(import_entries(entry(description=""))) == [outcome], "the first time only"
    assert Job.objects.get().description == "Ask Ann"


@pytest.mark.parametrize(
    ("schedule", "outcome"),
    [("@hourly", ImportOutcome.KEPT), ("@weekly", ImportOutcome.SAME)],
)
def test_stored_values_of_the_source_are_no_change_of_the_job(
    schedule: str, outcome: ImportOutcome
) -> None:
    entries = [entry(name, name) for name in "abc"]
    import_entries(*entries)
    for job in Job.objects.exclude(name="c"):
        job.schedule = "@weekly"
        control.save(job)
    audited = AuditEntry.objects.count()
    changed = [entry(name, name, schedule=schedule) for name in "ab"]
    assert kinds(import_entries(*changed, entry("c", "c", schedule="@hourly"))) == [
        outcome,
        outcome,
        ImportOutcome.CHANGE,
    ]
    (logged,) = AuditEntry.objects.order_by("pk")[audited:]
    assert (logged.label, logged.after) == ("c", {"schedule": "@hourly"})
    for job in Job.objects.exclude(name="c"):
        assert job.imported is not None
        assert (job.schedule, job.imported["values"]["schedule"]) == ("@weekly", schedule)
        assert job.version == 2


@pytest.mark.parametrize("again", [entry(key="2"), entry(schedule="@hourly")], ids=["key", "base"])
@pytest.mark.parametrize(
    "save", [control.save, lambda job: control.save_many([job])], ids=["save", "save_many"]
)
def test_save_of_a_job_read_before_an_import_keeps_the_origin(
    save: Callable[[Job], object], again: SourceEntry
) -> None:
    import_entries(entry())
    edit(schedule="@weekly")
    stale = Job.objects.get()
    import_entries(again)
    imported = Job.objects.values("import_source", "import_key", "imported").get()
    assert imported["import_key"] == again.key
    assert imported["imported"]["values"]["schedule"] == again.values["schedule"]
    stale.description = "edited"
    save(stale)
    assert stale.import_key == again.key
    assert Job.objects.values("import_source", "import_key", "imported").get() == imported
    assert Job.objects.get().description == "edited"
    assert kinds(plan(again)) == [ImportOutcome.KEPT]


def test_export_planned_before_an_import_keeps_the_origin() -> None:
    import_entries(entry(key="1"))
    (exported,) = plan(entry(description="exported"), source="")
    import_entries(entry(key="2"))
    imported = Job.objects.values("import_source", "import_key", "imported").get()
    assert imported["import_key"] == "2"
    assert kinds(list(apply_entry_plans([exported]))) == [ImportOutcome.CHANGE]
    assert Job.objects.get().description == "exported"
    assert Job.objects.values("import_source", "import_key", "imported").get() == imported


@pytest.mark.parametrize(
    "first", [entry(schedule="@hourly"), entry(key="3")], ids=["change", "origin"]
)
@pytest.mark.parametrize("take_over", [True, False])
def test_import_that_was_compared_before_another_one_keeps_its_origin(
    first: SourceEntry, take_over: bool
) -> None:
    import_entries(entry(key="1"), disabled=take_over)
    plans = plan(replace(first, last_run=NOW), take_over=take_over)
    import_entries(entry(key="2"))
    (refused,) = apply_entry_plans(plans)
    assert (refused.outcome, refused.reasons) == (ImportOutcome.REFUSED, (CHANGED_MEANWHILE,))
    job = Job.objects.get()
    assert (job.import_key, job.schedule, job.version) == ("2", "@daily", 1)


def test_only_unchanged_jobs_get_new_values_of_the_source() -> None:
    import_entries(entry("a", "1"), entry("b", "2"))
    for job in Job.objects.all():
        job.schedule = "@weekly"
        control.save(job)
    plans = plan(entry("a", "1", schedule="@hourly"), entry("b", "2", schedule="@hourly"))
    a = Job.objects.get(name="a")
    a.max_attempts = 5
    control.save(a)
    assert kinds(list(apply_entry_plans(plans))) == [ImportOutcome.REFUSED, ImportOutcome.KEPT]
    stored = {job.name: (job.imported or {})["values"]["schedule"] for job in Job.objects.all()}
    assert stored == {"a": "@daily", "b": "@hourly"}


def test_field_set_to_the_source_value_follows_the_source_again() -> None:
    import_entries(entry())
    edit(schedule="@weekly")
    assert kinds(import_entries(entry(schedule="@weekly"))) == [ImportOutcome.SAME]
    import_entries(entry(schedule="@hourly"))
    assert Job.objects.get().schedule == "@hourly"


def test_fields_that_were_kept_can_be_overwritten_later() -> None:
    import_entries(entry(priority=1))
    edit(schedule="@weekly", priority=3)
    control.pause(Job.objects.get(), "ask Ann")
    kept = {"schedule": ("@weekly", "@hourly"), "priority": (3, 2), "enabled": (False, True)}
    for _ in range(2):
        (imported,) = import_entries(entry(schedule="@hourly", priority=2))
        assert (imported.changes, imported.kept) == ({}, kept)
    import_entries(entry(schedule="@hourly", priority=2), overwrite=[*kept])
    job = Job.objects.get()
    assert (job.schedule, job.priority, job.enabled) == ("@hourly", 2, True)


def test_pause_by_a_user_is_not_ended() -> None:
    import_entries(entry())
    control.pause(Job.objects.get(), "ask Ann")
    (imported,) = import_entries(entry(schedule="@hourly"))
    assert imported.kept == {"enabled": (False, True)}
    job = Job.objects.get()
    assert (job.enabled, job.pause_reason, job.schedule) == (False, "ask Ann", "@hourly")
    import_entries(entry(schedule="@hourly"), overwrite=["enabled"])
    job.refresh_from_db()
    assert (job.enabled, job.pause_reason) == (True, "")


def test_pause_by_a_user_is_not_ended_after_a_disabled_import() -> None:
    import_entries(entry("a", "1"), entry("b", "2"), disabled=True)
    control.pause(Job.objects.get(name="a"), "ask Ann")
    import_entries(entry("a", "1"), entry("b", "2"), take_over=True)
    jobs = Job.objects.order_by("name").values_list("name", "enabled", "pause_reason")
    assert [*jobs] == [("a", False, "ask Ann"), ("b", True, "")]


def test_job_is_paused_and_resumed_with_its_entry() -> None:
    off = {"enabled": False, "pause_reason": "was disabled there"}
    import_entries(entry())
    import_entries(entry(**off))
    job = Job.objects.get()
    assert (job.enabled, job.pause_reason) == (False, "was disabled there")
    import_entries(entry())
    job.refresh_from_db()
    assert job.enabled


def test_job_resumed_by_a_user_stays_enabled() -> None:
    off = {"enabled": False, "pause_reason": "was disabled there"}
    import_entries(entry(**off))
    control.resume(Job.objects.get())
    assert import_entries(entry(**off))[0].kept == {"enabled": (True, False)}
    assert Job.objects.get().enabled


def test_job_imported_disabled_is_enabled_with_its_entry() -> None:
    off = {"enabled": False, "pause_reason": "was disabled there"}
    import_entries(entry(), disabled=True)
    import_entries(entry(**off), take_over=True)
    assert Job.objects.get().pause_reason == ARRIVED_PAUSED
    import_entries(entry(), take_over=True)
    assert Job.objects.get().enabled


PAUSED, SHADOW = (False, "tests.app.tasks.echo"), (True, "shadow:tests.app.tasks.echo")


@pytest.mark.parametrize(
    ("first", "again", "expected"),
    [
        ({"disabled": True}, {}, PAUSED),
        ({"disabled": True}, {"disabled": True}, PAUSED),
        ({"disabled": True}, {"shadow": True}, SHADOW),
        ({"shadow": True}, {}, SHADOW),
        ({"shadow": True}, {"disabled": True}, SHADOW),
        ({"shadow": True}, {"shadow": True}, SHADOW),
    ],
    ids=str,
)
def test_only_a_handover_starts_imported_jobs(
    first: dict[str, bool], again: dict[str, bool], expected: tuple[bool, str]
) -> None:
    """Otherwise both schedulers would run them. A shadow runs nothing."""
    import_entries(entry(), **first)
    plans = import_entries(entry(schedule="7 * * * *"), **again)
    after = Job.objects.get()
    assert after.schedule == "7 * * * *"
    assert (after.enabled, after.target) == expected
    assert awaiting_handover(plans) == [after]
    import_entries(entry(schedule="7 * * * *"), take_over=True)
    started = Job.objects.get()
    assert (started.enabled, started.target) == (True, "tests.app.tasks.echo")


@pytest.mark.parametrize(
    ("first", "overwrite"),
    [({"disabled": True}, "enabled"), ({"shadow": True}, "target")],
    ids=str,
)
def test_job_that_the_import_starts_does_not_wait_for_the_handover(
    first: dict[str, bool], overwrite: str
) -> None:
    import_entries(entry(), **first)
    assert len(awaiting_handover(plan(entry()))) == 1
    assert not awaiting_handover(import_entries(entry(), overwrite=[overwrite]))
    assert not awaiting_handover(plan(entry()))


@pytest.mark.parametrize("between", [None, {}, {"shadow": True}], ids=str)
@pytest.mark.parametrize(
    ("first", "overwrite"),
    [({"disabled": True}, "enabled"), ({"disabled": True}, ""), ({"shadow": True}, "target")],
    ids=str,
)
def test_job_that_a_person_started_before_the_handover_stays_enabled(
    first: dict[str, bool], overwrite: str, between: dict[str, bool] | None
) -> None:
    """The person disables the entry, so that only one scheduler runs the work.

    ``between``: the options of another import after the start. One without options also precedes
    the start.
    """
    import_entries(entry(), **first)
    if between == {}:
        import_entries(entry())
    if overwrite:
        import_entries(entry(), overwrite=[overwrite])
    else:
        control.resume(Job.objects.get())
    if between is not None:
        import_entries(entry(), **between)
    off = {"enabled": False, "pause_reason": "was disabled there"}
    for options in ({}, {}, {"take_over": True}, {}):
        (imported,) = import_entries(entry(**off), **options)
        assert imported.kept == {"enabled": (True, False)}
        job = Job.objects.get()
        assert (job.enabled, job.target) == (True, "tests.app.tasks.echo")
    import_entries(entry(**off), overwrite=["enabled"])
    assert Job.objects.get().pause_reason == "was disabled there"


def test_job_that_was_handed_back_and_started_by_a_person_stays_enabled() -> None:
    import_entries(entry())
    control.pause(Job.objects.get(), HANDED_BACK)
    import_entries(entry(), overwrite=["enabled"])
    import_entries(entry(enabled=False))
    assert Job.objects.get().enabled


@pytest.mark.parametrize("first", [{"disabled": True}, {"shadow": True}], ids=str)
def test_job_is_paused_with_its_entry_after_the_handover(first: dict[str, bool]) -> None:
    import_entries(entry(), **first)
    import_entries(entry(), take_over=True)
    import_entries(entry(enabled=False))
    assert not Job.objects.get().enabled


def test_shadow_is_paused_with_its_entry_after_its_target_changed() -> None:
    import_entries(entry(), shadow=True)
    import_entries(entry(target="tests.app.tasks.ok"))
    import_entries(entry(target="tests.app.tasks.ok", enabled=False))
    assert not Job.objects.get().enabled


@pytest.mark.parametrize("first", [{"disabled": True}, {"shadow": True}], ids=str)
def test_new_entry_waits_for_the_handover_as_others_do(first: dict[str, bool]) -> None:
    import_entries(entry(), **first)
    both = (entry(), entry("b", "2"))
    import_entries(*both)
    new = Job.objects.get(name="b")
    assert (new.enabled, new.pause_reason) == (False, WAITS_FOR_HANDOVER)
    assert new in awaiting_handover(plan(*both))
    import_entries(*both, take_over=True)
    assert Job.objects.filter(enabled=True, target="tests.app.tasks.echo").count() == 2
    import_entries(*both, entry("c", "3"))
    assert Job.objects.get(name="c").enabled, "no other job waits"


def test_ended_schedule_does_not_count_as_a_pause_by_a_user() -> None:
    import_entries(entry(schedule="@at 2083-01-01T00:00Z"))
    Job.objects.update(enabled=False, pause_reason=EXHAUSTED)
    assert kinds(plan(entry(schedule="@at 2083-01-01T00:00Z"))) == [ImportOutcome.SAME]
    import_entries(entry(schedule="@at 2083-02-01T00:00Z"))
    assert Job.objects.get().enabled


@pytest.mark.parametrize(
    ("values", "options"),
    [({"enabled": False, "pause_reason": "was off"}, {}), ({}, {"disabled": True})],
    ids=["disabled in the source", "imported disabled"],
)
def test_new_schedule_does_not_start_a_finished_job_that_is_disabled(
    values: dict[str, Any], options: dict[str, Any]
) -> None:
    import_entries(entry(schedule="@at 2083-01-01T00:00Z"))
    Job.objects.update(enabled=False, pause_reason=EXHAUSTED)
    import_entries(entry(schedule="@at 2083-02-01T00:00Z", **values), **options)
    job = Job.objects.get()
    assert job.schedule == "@at 2083-02-01T00:00Z"
    assert (job.enabled, job.pause_reason) == (False, values.get("pause_reason", ARRIVED_PAUSED))


@pytest.mark.parametrize("source", ["", SOURCE], ids=["export", "adoption"])
@pytest.mark.parametrize(
    ("values", "options", "reason"),
    [
        ({"enabled": False, "pause_reason": "was off"}, {}, "was off"),
        ({"enabled": False, "pause_reason": "was off"}, {"disabled": True}, "was off"),
        ({}, {"disabled": True}, ARRIVED_PAUSED),
        ({"enabled": False, "pause_reason": EXHAUSTED}, {"disabled": True}, ARRIVED_PAUSED),
    ],
)
def test_new_schedule_does_not_start_a_finished_job_that_was_not_imported_before(
    source: str, values: dict[str, Any], options: dict[str, Any], reason: str
) -> None:
    make_job(name="a", target=VALUES["target"], schedule="@at 2083-01-01T00:00Z", timezone="UTC")
    Job.objects.update(enabled=False, pause_reason=EXHAUSTED)
    changed = entry(**values)
    (planned,) = import_entries(changed, source=source, overwrite=["schedule"], **options)
    assert "pause_reason" in planned.changes
    job = Job.objects.get()
    assert (job.schedule, job.enabled, job.pause_reason) == ("@daily", False, reason)


def test_new_schedule_starts_a_finished_job_whose_source_cannot_pause() -> None:
    def line(schedule: str) -> SourceEntry:
        values = {name: VALUES[name] for name in ("target", "timezone")}
        return SourceEntry("line 1", "a", values | {"schedule": schedule}, key="1")

    import_entries(line("@at 2083-01-01T00:00Z"), source="crontab x")
    Job.objects.update(enabled=False, pause_reason=EXHAUSTED)
    import_entries(line("@daily"), source="crontab x")
    assert Job.objects.get().enabled


def test_job_that_the_source_disabled_does_not_wait_for_the_handover() -> None:
    import_entries(entry(schedule="@at 2083-01-01T00:00Z"))
    Job.objects.update(enabled=False, pause_reason=EXHAUSTED)
    off = entry(enabled=False, pause_reason="was off")
    import_entries(off, disabled=True)
    assert Job.objects.get().pause_reason == "was off"
    assert awaiting_handover(plan(off)) == []


def test_refused_entry_with_a_last_run_does_not_end_the_handover() -> None:
    gone = replace(entry("gone", "2", target="tests.app.tasks.removed"), last_run=NOW)
    plans = import_entries(entry("a", "1"), gone, entry("z", "3"), take_over=True)
    assert kinds(plans) == [ImportOutcome.CREATE, ImportOutcome.REFUSED, ImportOutcome.CREATE]
    assert [job.name for job in Job.objects.order_by("name")] == ["a", "z"]


def test_shadow_target_changed_by_a_user_is_kept() -> None:
    import_entries(entry("a", "1"), entry("b", "2"), shadow=True)
    changed = Job.objects.get(name="a")
    changed.target = "shadow:tests.app.tasks.ok"
    control.save(changed)
    plans = import_entries(entry("a", "1"), entry("b", "2"), take_over=True)
    assert kinds(plans) == [ImportOutcome.KEPT, ImportOutcome.CHANGE]
    assert [job.name for job in shadows_left(plans)] == ["a"]
    assert Job.objects.get(name="b").target == "tests.app.tasks.echo"


def test_shadows_of_omitted_or_refused_entries_are_listed() -> None:
    import_entries(entry("a", "1"), entry("b", "2"), entry("c", "3"), shadow=True)
    plans = import_entries(
        SourceEntry("row a", "a", omitted="has run", key="1"),
        SourceEntry("row b", "b", refused="no", key="2"),
        entry("c", "3"),
    )
    assert [job.name for job in shadows_left(plans)] == ["a", "b"]


# --- The phase of intervals -----------------------------------------------------------------------


def test_long_interval_is_next_due_as_in_the_source() -> None:
    week = timedelta(days=7)
    due = next_due(NOW - timedelta(days=6), week, NOW)["next_due"]
    assert due == NOW + timedelta(days=1)
    import_entries(entry(schedule="@every 168h", due=due))
    job = Job.objects.get()
    assert (job.starts_at, job.cursor.next_at) == (due, due)


def test_overdue_interval_is_due_now_and_short_interval_has_no_phase() -> None:
    day = timedelta(days=1)
    assert next_due(NOW - 3 * day, day, NOW)["next_due"] == NOW
    later = NOW + timedelta(microseconds=1)
    assert next_due(NOW - 3 * day, day, later)["next_due"] == NOW + timedelta(seconds=1)
    assert next_due(NOW, LONG_INTERVAL - timedelta(seconds=1), NOW) == {}
    assert next_due(None, day, NOW) == {}


def interval(due: datetime, **values: Any) -> SourceEntry:
    whole = entry(schedule="@every 24h", due=due, **values)
    return SourceEntry(
        whole.origin,
        whole.name,
        {name: value for name, value in whole.values.items() if name != "starts_at"},
        key=whole.key,
        next_due=due,
    )


def test_phase_is_updated_when_the_job_is_enabled() -> None:
    later = NOW + timedelta(hours=1)
    import_entries(interval(NOW), disabled=True)
    assert kinds(plan(interval(later), disabled=True)) == [ImportOutcome.SAME]
    import_entries(interval(later), take_over=True)
    assert Job.objects.get().starts_at == later
    assert kinds(plan(interval(NOW + timedelta(hours=2)))) == [ImportOutcome.SAME]


def test_phase_is_updated_when_a_shadow_becomes_a_job() -> None:
    later = NOW + timedelta(hours=1)
    import_entries(interval(NOW), shadow=True)
    import_entries(interval(later), take_over=True)
    assert Job.objects.get().starts_at == later


def test_start_set_by_a_user_is_kept() -> None:
    later = NOW + timedelta(hours=1)
    import_entries(interval(NOW), disabled=True)
    edit(starts_at=NOW + timedelta(days=3))
    (imported,) = import_entries(interval(later), take_over=True)
    assert set(imported.kept) == {"starts_at"}
    assert Job.objects.get().starts_at == NOW + timedelta(days=3)
