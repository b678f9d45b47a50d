"""``dcron set``: changes, refusals and dry runs."""

import json
import re
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_dcron import control
from django_dcron.management.dcron import set as set_command
from django_dcron.management.dcron.exits import NEGATIVE, USAGE_ERROR
from django_dcron.models import Calendar, Cursor, Job
from django_dcron.targets.redaction import CHANGED_MASK, MASK
from tests.factories import entries_by_users, make_idle_job
from tests.management.calling import call

pytestmark = pytest.mark.django_db


@pytest.fixture
def job() -> Job:
    return make_idle_job(name="report", namespace="shop", max_attempts=2)


@pytest.mark.parametrize(
    ("assignment", "field", "stored"),
    [
        ("max_attempts=5", "max_attempts", 5),
        ("queue=fast", "queue", "fast"),
        ("description=null", "description", "null"),
        ("description=a=b c", "description", "a=b c"),
        ("retry_backoff=1m30s", "retry_backoff", "1m30s"),
        ("timeout=2h", "timeout", "2h"),
        ("timeout=PT90S", "timeout", "1m30s"),
        ("retry_backoff=0", "retry_backoff", "0s"),
        ("retry_jitter=0.5", "retry_jitter", 0.5),
        ('tags=["a", "b"]', "tags", ["a", "b"]),
        ("overlap_policy=queue_one", "overlap_policy", "queue_one"),
        ("ends_at=2030-01-01T09:00", "ends_at", "2030-01-01T09:00:00Z"),
        ("calendar=holidays", "calendar", "holidays"),
        ("name=other", "name", "other"),
    ],
)
def test_field_is_changed(job: Job, assignment: str, field: str, stored: Any) -> None:
    Calendar.objects.create(name="holidays", dates="2026-12-25")
    version = job.version
    result = call("set", str(job), assignment)
    assert result.code == 0, result.err
    job = Job.objects.get()
    shown = call("show", str(job), "--json").json["job"]
    assert shown[field] == stored
    assert job.version > version


def test_value_that_the_field_already_has_changes_nothing(job: Job) -> None:
    result = call("set", str(job), "queue=")
    assert result.code == 0, result.err
    stored = Job.objects.get()
    assert (stored.queue, stored.version) == ("", job.version)


def test_schedule_may_be_a_sentence_and_the_schedule_text_is_shown(job: Job) -> None:
    assignment = "schedule=every weekday at 9:00\n@daily"
    dry = call("set", "shop/report", assignment, "--dry-run", "--json")
    assert dry.json["changes"]["schedule"][1] == "0 9 * * MON-FRI\n@daily"
    assert "-> 0 9 * * MON-FRI" in call("set", "shop/report", "schedule=every weekday at 9:00").out
    assert Job.objects.get().schedule == "0 9 * * MON-FRI"
    assert call("set", "shop/report", "schedule=every 2 weeks on Friday at 9:00").code == 0
    assert Job.objects.get().schedule.startswith("@rrule ")


def test_date_of_a_single_time_is_that_of_the_zone_of_the_job(job: Job) -> None:
    """The dates of the two zones always differ, because their offsets are 25 hours apart."""
    dates = []
    for zone in ("Pacific/Pago_Pago", "Pacific/Kiritimati"):
        error = call("set", str(job), "schedule=tomorrow at 9", f"timezone={zone}").err
        assert "'tomorrow at 9'" in error
        dates += re.findall(r"@at (\S+)T09:00", error)
    early, late = dates
    assert early < late


@pytest.mark.parametrize("value", ["", "null"])
@pytest.mark.parametrize("field", ["timeout", "priority", "ends_at", "calendar", "alerts"])
def test_nullable_field_is_cleared(job: Job, field: str, value: str) -> None:
    Calendar.objects.create(name="holidays", dates="2026-12-25")
    values = ("timeout=1h", "priority=3", "ends_at=2030-01-01", "calendar=holidays", "alerts=[]")
    assert call("set", "shop/report", *values).code == 0
    assert getattr(Job.objects.get(), field) is not None
    assert call("set", "shop/report", f"{field}={value}").code == 0
    assert getattr(Job.objects.get(), field) is None


def test_change_is_recorded_with_its_actor_and_moves_the_cursor(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "grace")
    before = Cursor.objects.get().next_at
    result = call("set", "shop/report", "schedule=0 0 2 1 *", "max_attempts=3", "--json")
    assert result.json["changes"] == {
        "schedule": ["0 0 1 1 *", "0 0 2 1 *"],
        "max_attempts": [2, 3],
    }
    entry = entries_by_users().get()
    assert (entry.actor, entry.via, entry.action) == ("grace", "cli", "change")
    assert set(entry.after) == {"schedule", "max_attempts"}
    assert Cursor.objects.get().next_at != before
    shown = call("show", "shop/report", "--json").json["job"]
    assert result.json["next_at"] == shown["status"]["next_at"]


def test_dry_run_and_equal_values_save_nothing(job: Job) -> None:
    dry = call("set", "shop/report", "schedule=0 0 2 1 *", "--dry-run", "--json")
    assert dry.code == 0, dry.err
    dry = dry.json
    assert (dry["dry_run"], list(dry["changes"])) == (True, ["schedule"])
    assert "0 0 2 1 *" in call("set", "shop/report", "schedule=0 0 2 1 *", "--dry-run").out
    assert call("set", "shop/report", "max_attempts=2", "--json").json["changes"] == {}
    saved = Job.objects.get()
    assert (saved.schedule, saved.version) == (job.schedule, job.version)
    assert not entries_by_users().exists()


@pytest.mark.parametrize(
    ("assignment", "parts"),
    [
        ("max_attempts=many", ("max_attempts", '"many"', "whole number")),
        ("max_attempts=0", ("max_attempts", "0", "1")),
        ('kwargs={"a": 1, "a": 2}', ("kwargs", 'the key "a" more than once')),
        ("max_attempts=", ("max_attempts", '""')),
        ("schedule=0 25 * * *", ("schedule", "25", "0-23")),
        ("schedule=every weekday at nien", ("schedule", "nien")),
        ("schedule=@daily\x0bevery day", ("schedule",)),
        ("timezone=Europe/Berln", ("timezone", "Europe/Berln", "Europe/Berlin")),
        ("overlap_policy=never", ("overlap_policy", "never", "queue_one")),
        ("retry_backoff=soon", ("retry_backoff", "soon", "1h30m")),
        ("timeout=10", ("timeout", "10", "10s")),
        ("timeout=1.5", ("timeout", "1.5", "1.5s")),
        ("timeout=-10", ("timeout", "-10")),
        ("ends_at=soon", ("ends_at", "soon", "2026-12-01T09:00")),
        ("tags=billing", ("tags", "billing", "list")),
        ("kwargs={", ("kwargs", "{")),
        ("retry_jitter=NaN", ("retry_jitter", "number")),
        ("calendar=unknown", ("calendar", "unknown")),
        ("target=unknown.task", ("target", "unknown.task")),
        ("max_attemps=3", ("max_attemps", "max_attempts")),
        ("zzz=3", ("zzz", "max_attempts")),
        ("max_retries=3", ("Unknown field. Use max_attempts, which includes the first attempt.",)),
        ("every=5m", ('Unknown field. Use the schedule "@every 5m".',)),
        ("task=a.b", ("Unknown field. Use target.",)),
        ("disabled=true", ("disabled", "dcron pause")),
        ("version=3", ("version", "read-only")),
        ("enabled=false", ("enabled", "dcron pause")),
        ("max_attempts", ("max_attempts", "FIELD=VALUE")),
        ("queue=\0", ("queue",)),
    ],
)
def test_refused_value_is_named_and_nothing_is_saved(
    job: Job, assignment: str, parts: tuple[str, ...]
) -> None:
    for options in ((), ("--dry-run",)):
        result = call("set", "shop/report", "description=new", assignment, *options)
        assert result.code == USAGE_ERROR
        assert result.err.startswith("Nothing was changed.")
        for part in parts:
            assert part in result.err
    saved = Job.objects.get()
    assert (saved.description, saved.version) == ("", job.version)


def test_all_errors_are_reported_together(job: Job) -> None:
    error = call("set", "shop/report", "max_attempts=x", "priority=y", "jitter=z", "jitter=1s").err
    assert all(name in error for name in ("max_attempts", "priority", "jitter", "twice"))


def test_unreadable_and_refused_values_are_reported_together(job: Job) -> None:
    values = ("retry_backoff_max=soon", "schedule=0 25 * * *", "retry_backoff=30d", "queue=fast")
    result = call("set", "shop/report", *values)
    assert result.code == USAGE_ERROR
    labels = [line.partition(":")[0] for line in result.err.splitlines()[1:]]
    assert labels == ["retry_backoff_max", "schedule"], "only the fields that are wrong"


def test_secrets_are_masked_and_a_mask_keeps_the_secret() -> None:
    make_idle_job(name="secret", target="tests.app.tasks.echo", kwargs={"password": "hunter2"})
    shown = call("set", "secret", 'kwargs={"password": "********", "city": "Oslo"}')
    assert "hunter2" not in shown.out
    assert Job.objects.get().kwargs == {"password": "hunter2", "city": "Oslo"}
    refused = call("set", "secret", "target=tests.app.tasks.ok")
    assert (refused.code, "hunter2" in refused.err) == (USAGE_ERROR, False)


def test_mask_without_its_secret_changes_no_job(feeds: list[Job]) -> None:
    Job.objects.update(target="tests.app.tasks.echo")
    Job.objects.filter(name="feed-1").update(kwargs={"password": "hunter2"})
    refused = call("set", "feed-*", 'kwargs={"password": "********"}', "--yes")
    assert refused.code == USAGE_ERROR
    assert refused.err.startswith("Nothing was changed.\nfeed-0: kwargs: ")
    assert not entries_by_users().exists()


def test_changed_secrets_are_marked() -> None:
    make_idle_job(name="secret", target="tests.app.tasks.echo", kwargs={"password": "hunter2"})
    assignment = ("set", "secret", 'kwargs={"password": "hunter3"}')
    old, new = call(*assignment, "--dry-run", "--json").json["changes"]["kwargs"]
    assert (old, new) == ({"password": MASK}, {"password": CHANGED_MASK})
    assert f"{json.dumps(old)} -> {json.dumps(new)}" in call(*assignment).out


def test_change_in_between_is_a_conflict(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def save_after_another(changed: Job) -> Job:
        monkeypatch.undo()
        other = Job.objects.get()
        other.description = "other"
        control.save(other)
        return control.save(changed)

    monkeypatch.setattr(control, "save", save_after_another)
    assert call("set", "shop/report", "max_attempts=9").code == USAGE_ERROR
    saved = Job.objects.get()
    assert (saved.description, saved.max_attempts) == ("other", 2)


@pytest.fixture
def feeds() -> list[Job]:
    return [make_idle_job(name=f"feed-{number}", queue="slow") for number in range(3)]


@pytest.mark.parametrize(
    "selection", [("feed-*",), ("--queue", "slow"), ("feed-0", "feed-1", "feed-2")]
)
def test_fields_of_several_jobs_are_changed(feeds: list[Job], selection: tuple[str, ...]) -> None:
    other = make_idle_job(name="other")
    done = call("set", *selection, "target=tests.app.tasks.fail", "--yes", "--json")
    assert (done.code, done.err) == (0, "")
    for result in done.json["results"]:
        assert (result["done"], result["dry_run"]) == (True, False)
        assert result["changes"] == {"target": ["tests.app.tasks.ok", "tests.app.tasks.fail"]}
    changed = Job.objects.filter(target="tests.app.tasks.fail")
    assert [job.name for job in changed.order_by("name")] == ["feed-0", "feed-1", "feed-2"]
    assert {entry.job_id for entry in entries_by_users()} == {job.pk for job in feeds}
    assert entries_by_users().count() == 3
    other.refresh_from_db()
    assert other.target == "tests.app.tasks.ok"


def test_selection_by_pattern_needs_a_confirmation_and_skips_unchanged_jobs(
    feeds: list[Job],
) -> None:
    assert call("set", "feed-*", "queue=fast").code == USAGE_ERROR
    assert call("set", "feed-1", "queue=fast").code == 0
    done = call("set", "feed-*", "--yes", "queue=fast")
    assert "skipped 1 job (feed-1)" in done.out
    assert "set: 2 done, 1 skipped" in done.out
    assert {*Job.objects.values_list("queue", flat=True)} == {"fast"}
    versions = [*Job.objects.values_list("version", flat=True)]
    for options in ((), ("--dry-run",)):
        again = ("set", "feed-0", "feed-1", "queue=fast", *options)
        assert "skipped 2 jobs (feed-0, feed-1)" in call(*again).out
        shown = call(*again, "--json").json
        assert shown["results"] == []
        assert [skipped["job"] for skipped in shown["skipped"]] == ["feed-0", "feed-1"]
    assert [*Job.objects.values_list("version", flat=True)] == versions


def test_relative_time_is_the_same_for_all_jobs(
    feeds: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = (datetime(2100, 1, 1, tzinfo=UTC) + timedelta(seconds=n) for n in count())
    monkeypatch.setattr(set_command, "database_now", lambda using: next(times))
    assert call("set", "feed-0", "feed-1", "feed-2", "starts_at=2h").code == 0
    (starts_at,) = {*Job.objects.values_list("starts_at", flat=True)}
    assert starts_at is not None


def test_sentence_counts_from_the_same_day_for_all_jobs(
    feeds: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime(2001, 1, 1, 12, tzinfo=UTC)
    monkeypatch.setattr(set_command, "database_now", lambda using: now)
    assert call("set", "feed-*", "schedule=every 2 weeks on Friday at 9:00", "--yes").code == 0
    (schedule,) = {*Job.objects.values_list("schedule", flat=True)}
    assert schedule.startswith("@rrule 2001-01-05T09:00 ")


def test_dry_run_for_several_jobs_shows_the_changes_and_saves_nothing(feeds: list[Job]) -> None:
    dry = call("set", "feed-*", "schedule=0 0 2 1 *", "--dry-run")
    assert (dry.code, dry.out.count("-> 0 0 2 1 *")) == (0, 3)
    dry_document = call("set", "feed-*", "queue=fast", "--dry-run", "--json").json
    assert [result["dry_run"] for result in dry_document["results"]] == [True] * 3
    assert {*Job.objects.values_list("schedule", "queue", "version")} == {
        (job.schedule, job.queue, job.version) for job in feeds
    }
    assert not entries_by_users().exists()


def test_refused_job_does_not_stop_the_others(feeds: list[Job]) -> None:
    make_idle_job(name="feed-1", namespace="shop")
    done = call("set", "feed-0", "feed-1", "namespace=shop")
    assert (done.code, "feed-1: refused" in done.out) == (NEGATIVE, True)
    assert Job.objects.get(name="feed-0").namespace == "shop"


def test_error_in_a_field_that_is_not_given_refuses_only_its_job(feeds: list[Job]) -> None:
    Job.objects.filter(name="feed-1").update(timezone="Europe/Berln")
    done = call("set", "feed-*", "queue=fast", "--yes")
    assert (done.code, "feed-1: refused: timezone" in done.out) == (NEGATIVE, True)
    assert Job.objects.filter(queue="fast").count() == 2


def test_value_that_one_job_refuses_changes_no_job(feeds: list[Job]) -> None:
    Job.objects.filter(name="feed-1").update(starts_at=datetime(2100, 1, 1, tzinfo=UTC))
    refused = call("set", "feed-*", "ends_at=2090-01-01", "--yes")
    assert refused.code == USAGE_ERROR
    assert refused.err.startswith('Nothing was changed.\nfeed-1: ends_at: "2090-01-01')
    assert not entries_by_users().exists()


@pytest.mark.parametrize(
    ("stored", "assignment", "field"),
    [
        ({"ends_at": datetime(2090, 1, 1, tzinfo=UTC)}, "starts_at=2100-01-01", "ends_at"),
        (
            {"target": "tests.app.tasks.echo", "kwargs": {"city": 1}},
            "target=tests.app.tasks.ok",
            "kwargs",
        ),
    ],
)
def test_value_that_makes_another_field_of_one_job_invalid_changes_no_job(
    feeds: list[Job], stored: dict[str, Any], assignment: str, field: str
) -> None:
    Job.objects.update(target="tests.app.tasks.echo")
    Job.objects.filter(name="feed-1").update(**stored)
    refused = call("set", "feed-*", assignment, "--yes")
    assert refused.code == USAGE_ERROR
    assert refused.err.startswith(f"Nothing was changed.\nfeed-1: {field}: ")
    assert not entries_by_users().exists()


@pytest.mark.parametrize("after", ["last", "unknown"])
def test_predecessor_that_one_job_refuses_changes_no_job(feeds: list[Job], after: str) -> None:
    make_idle_job(name="last", after={"feed-1": "failed"})
    entries = entries_by_users().count()
    refused = call("set", "feed-*", f'after={{"{after}": "failed"}}', "--yes")
    assert refused.code == USAGE_ERROR
    name = "feed-1" if after == "last" else "feed-0"
    assert refused.err.startswith(f"Nothing was changed.\n{name}: after: ")
    assert entries_by_users().count() == entries


def test_refusal_names_the_job_as_it_is_stored(feeds: list[Job]) -> None:
    refused = call("set", "feed-*", "namespace=a/b", "--yes")
    assert refused.err.startswith("Nothing was changed.\nfeed-0: namespace: ")


@pytest.mark.parametrize("assignment", ["calendar=holidays", 'after={"first": "failed"}'])
def test_number_of_queries_does_not_grow_with_the_selected_jobs(assignment: str) -> None:
    Calendar.objects.create(name="holidays", dates="2026-12-25")
    make_idle_job(name="first")
    counts = []
    for namespace, number in (("few", 3), ("many", 30)):
        for _ in range(number):
            make_idle_job(namespace=namespace)
        with CaptureQueriesContext(connection) as queries:
            assert call("set", f"{namespace}/*", assignment, "--dry-run").code == 0
        counts.append(len(queries))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("options", [("--yes",), ("--dry-run",)])
@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("max_attempts=many",), "max_attempts"),
        (("max_attempts=-3",), "feed-0: max_attempts: -3: "),
        (("tags=a,b,c",), 'feed-0: tags: "a,b,c": '),
        (("calendar=unknown",), "feed-0: calendar: "),
        (("target=unknown",), "feed-0: target: "),
        (("name=feed",), "name: Several jobs"),
        ((), "FIELD=VALUE"),
    ],
)
def test_invalid_values_for_several_jobs_change_nothing(
    feeds: list[Job], arguments: tuple[str, ...], part: str, options: tuple[str, ...]
) -> None:
    refused = call("set", "feed-*", *arguments, *options)
    assert (refused.code, part in refused.err) == (USAGE_ERROR, True)
    assert refused.err.startswith("Nothing was changed.")
    assert not entries_by_users().exists()
