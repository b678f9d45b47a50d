"""Test that an import recognizes its jobs again, and never undoes what a person changed here."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from django_dcron import control
from django_dcron.contrib.importers.comparison import (
    ARRIVED_PAUSED,
    Move,
    MoveKind,
    compare,
    gone_from,
    shadows_left,
)
from django_dcron.contrib.importers.found import LONG_INTERVAL, Found, next_due
from django_dcron.contrib.importers.writing import carry_out
from django_dcron.jobs import saving
from django_dcron.models import Job
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


def found(name: str = "a", key: str = "1", *, due: datetime | None = None, **values: Any) -> Found:
    return Found(f"row {name}", name, VALUES | values, key=key, next_due=due)


def look(*entries: Found, source: str = SOURCE, **options: Any) -> list[Move]:
    return compare(entries, source=source, **options)


def bring(*entries: Found, **options: Any) -> list[Move]:
    return list(carry_out(look(*entries, **options)))


def edit(**values: Any) -> Job:
    job = Job.objects.get()
    for name, value in values.items():
        setattr(job, name, value)
    return control.save(job)


def kinds(moves: list[Move]) -> list[MoveKind]:
    return [move.kind for move in moves]


# --- The same job ---------------------------------------------------------------------------------


def test_a_job_keeps_its_origin() -> None:
    bring(found("nightly (old) ", "7"))
    job = Job.objects.get()
    assert (job.name, job.import_source, job.import_key) == ("nightly old", SOURCE, "7")
    assert kinds(look(found("nightly (old) ", "7"))) == [MoveKind.SAME]


def test_a_job_renamed_and_moved_here_is_not_imported_twice() -> None:
    bring(found())
    edit(name="b", namespace="shop")
    (move,) = bring(found(schedule="@hourly"))
    assert (move.kind, str(move)) == (MoveKind.CHANGE, "shop/b")
    assert move.kept == {"name": ("b", "a")}
    job = Job.objects.get()
    assert (str(job), job.schedule) == ("shop/b", "@hourly")
    bring(found(schedule="@hourly"), overwrite=["name"])
    assert Job.objects.get().name == "a"
    assert kinds(look(found(schedule="@hourly"))) == [MoveKind.SAME]


def test_an_entry_renamed_there_is_not_imported_twice() -> None:
    bring(found("a", "1"))
    (move,) = bring(found("b", "1"))
    assert (move.kind, move.kept, gone_from(SOURCE, [move])) == (
        MoveKind.KEPT,
        {"name": ("a", "b")},
        [],
    )
    assert Job.objects.get().name == "a"
    assert kinds(look(found("b", "1"))) == [MoveKind.SAME]


def test_a_name_that_another_entry_took_over_carries_its_definition() -> None:
    """Row 1 was renamed, and a new row has its old name."""
    bring(found("a", "1"))
    bring(found("b", "1", schedule="@hourly"), found("a", "2"))
    jobs = Job.objects.order_by("name").values_list("name", "schedule", "import_key")
    assert [*jobs] == [("a", "@daily", "2"), ("b", "@hourly", "1")]


def test_rows_with_new_keys_are_recognized_by_their_names() -> None:
    """The tables of the source were restored, and the keys now belong to other rows."""
    bring(found("a", "1"), found("b", "2", schedule="@hourly"))
    bring(found("b", "1", schedule="@hourly"), found("a", "2"))
    jobs = Job.objects.order_by("name").values_list("name", "schedule", "import_key")
    assert [*jobs] == [("a", "@daily", "2"), ("b", "@hourly", "1")]


def test_a_refused_job_takes_no_key_from_another() -> None:
    bring(found("a", "1"), found("b", "2"))
    moves = look(found("a", "2"), found("b", "1"))
    a = Job.objects.get(name="a")
    a.max_attempts = 5
    control.save(a)
    (refused,) = carry_out([move for move in moves if move.name == "a"])
    assert refused.kind is MoveKind.REFUSED
    assert dict(Job.objects.values_list("name", "import_key")) == {"a": "1", "b": "2"}


def test_what_is_gone_from_the_source() -> None:
    bring(found("a", "1"), found("b", "2"))
    moves = bring(found("a", "1"), found("c", "3"))
    assert [job.name for job in gone_from(SOURCE, moves)] == ["b"]
    assert [job.name for job in gone_from("django-q2", [])] == []


def test_a_name_that_a_renamed_job_has() -> None:
    bring(found("a", "1"))
    edit(name="b")
    moves = bring(found("a", "1"), found("b", "2"))
    assert kinds(moves) == [MoveKind.KEPT, MoveKind.CREATE]
    names = set(Job.objects.values_list("name", "import_key"))
    assert names == {("b", "1"), (moves[1].name, "2")}
    assert moves[1].name.startswith("b-")
    assert kinds(look(found("a", "1"), found("b", "2"))) == [MoveKind.KEPT, MoveKind.SAME]


def test_a_job_of_another_source_is_never_changed() -> None:
    bring(found())
    (move,) = bring(found(schedule="@hourly"), source="django-q2")
    assert (move.kind, move.changes) == (
        MoveKind.CONFLICT,
        {"schedule": ("@daily", "@hourly")},
    )
    job = Job.objects.get()
    assert (job.schedule, job.import_source) == ("@daily", SOURCE)


def test_a_job_that_a_person_created() -> None:
    make_job(name="a", schedule="@hourly", target=VALUES["target"])
    (move,) = bring(found())
    assert (move.kind, move.changes) == (
        MoveKind.CONFLICT,
        {"schedule": ("@hourly", "@daily")},
    )
    (move,) = bring(found(), overwrite=["schedule"])
    assert (move.kind, Job.objects.get().import_key) == (MoveKind.CHANGE, "1")


def test_the_same_job_that_a_person_created_gets_its_origin() -> None:
    make_job(name="a", schedule="@daily", target=VALUES["target"])
    assert kinds(bring(found())) == [MoveKind.SAME]
    edit(name="b")
    assert kinds(bring(found())) == [MoveKind.KEPT]


# --- What a person changed ------------------------------------------------------------------------


def test_an_edited_field_stays_the_others_follow() -> None:
    bring(found(priority=1))
    edit(schedule="@weekly")
    (move,) = bring(found(schedule="@hourly", priority=2))
    assert (move.changes, move.kept) == (
        {"priority": (1, 2)},
        {"schedule": ("@weekly", "@hourly")},
    )
    job = Job.objects.get()
    assert (job.schedule, job.priority) == ("@weekly", 2)
    assert look(found(priority=2))[0].kept == {"schedule": ("@weekly", "@daily")}
    bring(found(schedule="@hourly", priority=2), overwrite=["schedule"])
    assert Job.objects.get().schedule == "@hourly"


def test_a_field_set_to_the_value_of_the_source_follows_again() -> None:
    bring(found())
    edit(schedule="@weekly")
    assert kinds(bring(found(schedule="@weekly"))) == [MoveKind.SAME]
    bring(found(schedule="@hourly"))
    assert Job.objects.get().schedule == "@hourly"


def test_a_pause_with_a_reason_is_not_lifted() -> None:
    bring(found())
    control.pause(Job.objects.get(), "ask Ann")
    (move,) = bring(found(schedule="@hourly"))
    assert move.kept == {"enabled": (False, True)}
    job = Job.objects.get()
    assert (job.enabled, job.pause_reason, job.schedule) == (False, "ask Ann", "@hourly")
    bring(found(schedule="@hourly"), overwrite=["enabled"])
    job.refresh_from_db()
    assert (job.enabled, job.pause_reason) == (True, "")


def test_a_pause_of_a_job_that_arrived_paused_is_not_lifted() -> None:
    bring(found("a", "1"), found("b", "2"), disabled=True)
    control.pause(Job.objects.get(name="a"), "ask Ann")
    bring(found("a", "1"), found("b", "2"))
    jobs = Job.objects.order_by("name").values_list("name", "enabled", "pause_reason")
    assert [*jobs] == [("a", False, "ask Ann"), ("b", True, "")]


def test_a_pause_of_the_source_follows_the_source() -> None:
    off = {"enabled": False, "pause_reason": "was disabled there"}
    bring(found())
    bring(found(**off))
    job = Job.objects.get()
    assert (job.enabled, job.pause_reason) == (False, "was disabled there")
    bring(found())
    job.refresh_from_db()
    assert job.enabled


def test_a_job_that_a_person_resumed_stays_enabled() -> None:
    off = {"enabled": False, "pause_reason": "was disabled there"}
    bring(found(**off))
    control.resume(Job.objects.get())
    assert bring(found(**off))[0].kept == {"enabled": (True, False)}
    assert Job.objects.get().enabled


def test_a_job_that_arrived_paused_and_is_disabled_there_is_enabled_with_it() -> None:
    off = {"enabled": False, "pause_reason": "was disabled there"}
    bring(found(), disabled=True)
    bring(found(**off))
    assert Job.objects.get().pause_reason == ARRIVED_PAUSED
    bring(found())
    assert Job.objects.get().enabled


def test_the_end_of_a_schedule_is_no_decision_of_a_person() -> None:
    bring(found(schedule="@at 2083-01-01T00:00Z"))
    Job.objects.update(enabled=False, pause_reason=saving.EXHAUSTED)
    assert kinds(look(found(schedule="@at 2083-01-01T00:00Z"))) == [MoveKind.SAME]
    bring(found(schedule="@at 2083-02-01T00:00Z"))
    assert Job.objects.get().enabled


def test_a_target_that_a_person_changed_stays_when_shadows_become_jobs() -> None:
    bring(found("a", "1"), found("b", "2"), shadow=True)
    changed = Job.objects.get(name="a")
    changed.target = "shadow:tests.app.tasks.ok"
    control.save(changed)
    moves = bring(found("a", "1"), found("b", "2"))
    assert kinds(moves) == [MoveKind.KEPT, MoveKind.CHANGE]
    assert [job.name for job in shadows_left(moves)] == ["a"]
    assert Job.objects.get(name="b").target == "tests.app.tasks.echo"


def test_shadows_of_entries_that_are_left_or_refused_are_named() -> None:
    bring(found("a", "1"), found("b", "2"), found("c", "3"), shadow=True)
    moves = bring(
        Found("row a", "a", left="has run", key="1"),
        Found("row b", "b", refused="no", key="2"),
        found("c", "3"),
    )
    assert [job.name for job in shadows_left(moves)] == ["a", "b"]


# --- The phase of intervals -----------------------------------------------------------------------


def test_a_long_interval_is_due_when_the_source_would_run_it() -> None:
    week = timedelta(days=7)
    due = next_due(NOW - timedelta(days=6), week, NOW)["next_due"]
    assert due == NOW + timedelta(days=1)
    bring(found(schedule="@every 168h", due=due))
    job = Job.objects.get()
    assert (job.starts_at, job.cursor.next_at) == (due, due)


def test_an_overdue_interval_is_due_at_once_and_a_short_one_has_no_phase() -> None:
    day = timedelta(days=1)
    assert next_due(NOW - 3 * day, day, NOW)["next_due"] == NOW
    later = NOW + timedelta(microseconds=1)
    assert next_due(NOW - 3 * day, day, later)["next_due"] == NOW + timedelta(seconds=1)
    assert next_due(NOW, LONG_INTERVAL - timedelta(seconds=1), NOW) == {}
    assert next_due(None, day, NOW) == {}


def interval(due: datetime, **values: Any) -> Found:
    entry = found(schedule="@every 24h", due=due, **values)
    return Found(
        entry.origin,
        entry.name,
        {name: value for name, value in entry.values.items() if name != "starts_at"},
        key=entry.key,
        next_due=due,
    )


def test_the_phase_is_taken_again_when_the_job_takes_over() -> None:
    later = NOW + timedelta(hours=1)
    bring(interval(NOW), disabled=True)
    assert kinds(look(interval(later), disabled=True)) == [MoveKind.SAME]
    bring(interval(later))
    assert Job.objects.get().starts_at == later
    assert kinds(look(interval(NOW + timedelta(hours=2)))) == [MoveKind.SAME]


def test_the_phase_of_a_shadow_is_taken_again_when_it_becomes_a_job() -> None:
    later = NOW + timedelta(hours=1)
    bring(interval(NOW), shadow=True)
    bring(interval(later))
    assert Job.objects.get().starts_at == later


def test_a_start_that_a_person_chose_stays() -> None:
    later = NOW + timedelta(hours=1)
    bring(interval(NOW), disabled=True)
    edit(starts_at=NOW + timedelta(days=3))
    (move,) = bring(interval(later))
    assert set(move.kept) == {"starts_at"}
    assert Job.objects.get().starts_at == NOW + timedelta(days=3)
