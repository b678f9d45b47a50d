"""Test the import from the real RedBeat in a real Redis."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import schedules
from dateutil.rrule import weekday
from redbeat import RedBeatSchedulerEntry
from redbeat.decoder import RedBeatJSONEncoder
from redbeat.schedulers import ensure_conf, get_redis
from redbeat.schedules import rrule

from django_dcron.contrib.importers import redbeat
from django_dcron.contrib.importers.source_contents import SourceEntry
from django_dcron.models import Job
from django_dcron.schedules.timetable import MICROSECOND
from tests import services, settings
from tests.celery_app import app
from tests.factories import make_job
from tests.management.calling import call

pytestmark = pytest.mark.django_db

NOW = datetime(2083, 1, 1, 12, tzinfo=UTC)
URL = (
    f"redis://{settings.REDIS_ADDRESS}/3"
    if settings.REDIS_ADDRESS
    else f"unix://{settings.REDIS_SOCKET}?db=3"
)


@pytest.fixture(autouse=True)
def redbeat_settings(redis_server: services.Server) -> Iterator[None]:
    app.conf.redbeat_redis_url = URL
    app.conf.redbeat_redis_options = {"retry_period": 0}
    yield
    for name in ("redbeat_conf", "redbeat_redis"):
        if hasattr(app, name):
            delattr(app, name)
    for name in ("redbeat_redis_url", "redbeat_redis_options"):
        app.conf.changes.pop(name, None)


def save(name: str = "a", schedule: Any = None, **fields: Any) -> RedBeatSchedulerEntry:
    entry = RedBeatSchedulerEntry(
        name,
        fields.pop("task", "tests.app.tasks.echo"),
        schedule or schedules.schedule(30),
        app=app,
        **fields,
    )
    return entry.save()


def found(name: str = "a") -> SourceEntry:
    return next(each for each in redbeat.read(NOW).entries if each.name == name)


def test_entry_with_all_options_is_imported() -> None:
    save(
        "nightly report",
        schedules.crontab(minute="*/15", hour="8-17", day_of_week="mon-fri"),
        args=[1],
        kwargs={"city": "Ulm"},
        options={"queue": "slow", "priority": 2, "expires": 90},
    )
    assert call("import", "redbeat", "--apply", "--namespace", "shop").code == 0
    job = Job.objects.get()
    assert str(job) == "shop/nightly report"
    assert (job.schedule, job.timezone) == ("*/15 8-17 * * mon-fri", "UTC")
    assert (job.target, job.args, job.kwargs) == ("tests.app.tasks.echo", [1], {"city": "Ulm"})
    assert (job.queue, job.priority, job.start_deadline) == ("slow", 2, timedelta(seconds=90))
    assert call("import", "redbeat", "--namespace", "shop").out == "1 same.\n"


def test_time_zone_is_that_of_the_celery_app() -> None:
    before = app.conf.timezone
    app.conf.timezone = "Europe/Berlin"
    del app.timezone
    try:
        save(schedule=schedules.crontab(minute="0", hour="9"))
        assert found().values["timezone"] == "Europe/Berlin"
    finally:
        app.conf.timezone = before
        del app.timezone


def test_intervals_and_disabled_entries_are_read() -> None:
    save("a", schedules.schedule(timedelta(minutes=90)), enabled=False)
    assert found().values["schedule"] == "@every 1h30m"
    assert (found().values["enabled"], found().values["pause_reason"]) == (
        False,
        "was disabled in RedBeat",
    )
    save("half", schedules.schedule(0.5))
    assert "interval 0.5 s" in found("half").refused
    save("relative", schedules.schedule(90, relative=True))
    assert "relative" in found("relative").warnings[0]


@pytest.mark.parametrize("is_enabled", [False, True])
def test_refused_entry_may_be_disabled(is_enabled: bool) -> None:
    save("half", schedules.schedule(0.5), enabled=is_enabled)
    assert (bool(found("half").refused), found("half").is_enabled) == (True, is_enabled)


def test_recurrence_rule_is_imported() -> None:
    begin, friday = datetime(2020, 1, 3, 12, tzinfo=UTC), weekday(4)
    save(schedule=rrule("WEEKLY", begin, 2, byweekday=[friday], app=app))
    save("until", rrule("DAILY", begin, until=NOW + timedelta(days=3), app=app))
    save("expires", rrule("DAILY", begin, app=app), options={"expires": NOW + timedelta(days=1)})
    assert call("import", "redbeat", "--apply").code == 0
    job = Job.objects.get(name="a")
    assert job.schedule == "@rrule 2020-01-03T12:00 FREQ=WEEKLY;INTERVAL=2;BYDAY=FR"
    assert (job.timezone, job.starts_at, job.ends_at) == ("UTC", None, None)
    assert Job.objects.get(name="until").ends_at == NOW + timedelta(days=3)
    assert Job.objects.get(name="expires").ends_at == NOW + timedelta(days=1) - MICROSECOND
    assert call("import", "redbeat").out == "3 same.\n"


def test_recurrence_rule_without_a_start_is_refused() -> None:
    key = save(schedule=rrule("DAILY", NOW, app=app)).key
    client = get_redis(app)
    definition = json.loads(client.hget(key, "definition"))
    del definition["schedule"]["dtstart"]
    client.hset(key, "definition", json.dumps(definition))
    assert "dtstart" in found().refused


def test_expires_becomes_the_end() -> None:
    save("past", options={"expires": NOW})
    soon = {"expires": NOW + timedelta(seconds=1)}
    save("without occurrence", options=soon).reschedule(last_run_at=NOW)
    save("never ran", options=soon)
    save("ahead", options={"expires": NOW + timedelta(minutes=1)})
    assert "expired" in found("past").omitted
    assert "no occurrence is left" in found("without occurrence").omitted
    assert found("never ran").omitted == "", "beat may run it now"
    assert found("ahead").values["ends_at"] == NOW + timedelta(minutes=1) - MICROSECOND


def test_datetime_arguments_and_unknown_options_are_reported() -> None:
    save("a", kwargs={"at": NOW})
    save("b", options={"ignore_result": True, "routing_key": "x"})
    save("c", options={"ignore_result": True})
    assert "no datetime values" in found("a").refused
    assert "routing_key 'x'" in found("b").refused
    assert "ignore_result" in found("c").warnings[0]


def test_last_run_is_read() -> None:
    save("never")
    save("a").reschedule(last_run_at=NOW)
    source_runs = redbeat.runs_since(NOW)
    assert (source_runs.times, source_runs.complete) == ({found("a").origin: [NOW]}, False)
    assert redbeat.runs_since(NOW + timedelta(seconds=1)).times == {}


def test_incomplete_entries_are_omitted_or_refused() -> None:
    entry = save("gone")
    client = get_redis(app)
    client.delete(entry.key)
    client.hset(save("odd").key, "definition", "[")
    client.hset(save("none").key, "definition", "{}")
    assert "no definition" in found("gone").omitted
    assert "not valid JSON" in found("odd").refused
    assert "no task" in found("none").refused


def test_unreadable_last_run_is_reported_with_its_field() -> None:
    entry = save("odd")
    get_redis(app).hset(entry.key, "meta", "[")
    (reason,) = redbeat.runs_since(NOW).unread.values()
    assert "the meta is not valid JSON" in reason


def test_stopped_redis_is_reported(redis_server: services.Server) -> None:
    redis_server.stop()
    result = call("import", "redbeat")
    assert result.code == 2
    assert f"{URL.removesuffix('?db=3').removesuffix('/3')}" in result.err
    assert "unreachable" in result.err


@pytest.mark.parametrize("command", [("import", "redbeat"), ("handover", "redbeat")])
def test_missing_redis_url_is_reported(command: tuple[str, ...]) -> None:
    make_job(import_source="redbeat", import_key="redbeat:a")
    app.conf.redbeat_redis_url = ""  # without this setting, RedBeat takes the app's broker_url
    result = call(*command)
    assert result.code in (1, 2)
    assert redbeat.SETTING in result.err
    assert "broker_url" in result.err


def test_invalid_redis_url_is_reported() -> None:
    app.conf.redbeat_redis_url = "redis+socket:///nowhere"
    result = call("import", "redbeat")
    assert result.code == 2
    assert "redbeat_redis_url" in result.err


MALFORMED = [
    "nonsense",
    "[1]",
    "[" * 100_000,
    '{"task": 7}',
    '{"task": "tests.app.tasks.echo"}',
    '{"task": "tests.app.tasks.echo", "schedule": {"__type__": "interval"}}',
    '{"task": "tests.app.tasks.echo", "schedule": {"__type__": "interval", "every": "x"}}',
    '{"task": "tests.app.tasks.echo", "schedule": {"__type__": "interval", "every": 1e308}}',
    '{"task": "tests.app.tasks.echo", "schedule": {"__type__": "interval", "every": NaN}}',
    '{"task": "tests.app.tasks.echo", "schedule": {"__type__": "crontab", "minute": "x"}}',
    '{"task": "tests.app.tasks.echo", "schedule": {"__type__": "crontab", "nothing": 1}}',
    '{"task": "tests.app.tasks.echo", "schedule": {"__type__": "crontab", "minute": {}}}',
    (
        '{"task": "tests.app.tasks.echo", "schedule": {"__type__": "interval", "every": 60}, '
        '"options": [1]}'
    ),
    (
        '{"task": "tests.app.tasks.echo", "schedule": {"__type__": "interval", "every": 60}, '
        '"options": {"expires": {"__type__": "datetime"}}}'
    ),
    (
        '{"task": "tests.app.tasks.echo", "schedule": {"__type__": "interval", "every": 60}, '
        '"options": {"expires": 1e308}}'
    ),
    (
        '{"task": "tests.app.tasks.echo", "schedule": {"__type__": "interval", "every": 60}, '
        '"args": "x"}'
    ),
    (
        '{"task": "tests.app.tasks.echo", "schedule": {"__type__": "interval", "every": 60}, '
        '"args": ["\\u0000"]}'
    ),
    b"\xff\xfe",
]


def test_malformed_entries_do_not_stop_the_import() -> None:
    save("good")
    client, config = get_redis(app), ensure_conf(app)
    for number, definition in enumerate(MALFORMED):
        key = f"{config.key_prefix}bad {number}"
        client.hset(key, "definition", definition)
        client.zadd(config.schedule_key, {key: 1})
    client.set(f"{config.key_prefix}bad text", "of another kind")
    for key in (
        f"{config.key_prefix}bad text",
        f"{config.key_prefix}bad \udcff".encode(errors="surrogateescape"),
    ):
        client.zadd(config.schedule_key, {key: 1})

    result = call("import", "redbeat", "--apply")

    assert result.code == 1
    assert [job.name for job in Job.objects.all()] == ["good"]
    for number, definition in enumerate(MALFORMED):
        assert f"refused bad {number} " in result.out, definition
    assert "refused bad text " in result.out
    assert "WRONGTYPE" in result.out


def test_invalid_meta_does_not_affect_the_report_of_other_entries() -> None:
    for name in ("good", "bad", "worse"):
        save(name)
    client, config = get_redis(app), ensure_conf(app)
    assert call("import", "redbeat", "--apply", "--shadow").code == 0
    client.hset(f"{config.key_prefix}bad", "meta", "nonsense")
    client.hset(
        f"{config.key_prefix}worse",
        "meta",
        '{"last_run_at": {"__type__": "datetime", "year": "x"}}',
    )

    result = call("import", "redbeat", "--report")

    assert result.code == 1
    assert "1 shadow, since" in result.out
    assert result.out.count("unread key") == 2


def test_long_interval_keeps_its_phase() -> None:
    last = NOW - timedelta(days=6)
    entry = save(schedule=schedules.schedule(timedelta(days=7)))
    entry.last_run_at = last
    entry.save()
    app.redbeat_redis.hset(
        entry.key, "meta", json.dumps({"last_run_at": last}, cls=RedBeatJSONEncoder)
    )
    assert found().next_due == NOW + timedelta(days=1)
    assert "starts_at" not in found().values


def test_server_is_named_if_it_has_no_entries() -> None:
    assert str(settings.REDIS_ADDRESS or settings.REDIS_SOCKET) in redbeat.read(NOW).notes[0]
    save()
    assert redbeat.read(NOW).notes == []


def test_unreachable_server_is_named_without_its_password() -> None:
    app.conf.redbeat_redis_url = "redis://user:secret@localhost:1/0"
    result = call("import", "redbeat")
    assert result.code == 2
    assert "localhost:1" in result.err
    assert redbeat.SETTING in result.err
    assert "secret" not in result.err


def test_entry_is_not_due_immediately_after_handing_it_back() -> None:
    entry = save(schedule=schedules.schedule(timedelta(days=7)))
    entry.reschedule(datetime.now(UTC) - timedelta(days=30))
    assert RedBeatSchedulerEntry.from_key(entry.key, app=app).is_due().is_due
    before = datetime.now(UTC).replace(microsecond=0)
    redbeat.hand_back({entry.key: before})
    again = RedBeatSchedulerEntry.from_key(entry.key, app=app)
    assert (again.last_run_at, again.is_due().is_due) == (before, False)


# --- Handover back --------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", [[], ["--back"]])
def test_handover_warns_while_beat_holds_its_lock(
    direction: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    save()
    assert "may still be running" not in call("handover", "redbeat", *direction).out
    client, key = get_redis(app), ensure_conf(app).lock_key
    client.set(key, "held", ex=300)
    result = call("handover", "redbeat", *direction)
    as_json = call("handover", "redbeat", *direction, "--json")
    client.delete(key)
    assert (result.code, as_json.code) == (0, 0)
    assert "may still be running" in result.out
    assert key in result.out
    assert as_json.json["source"] == "redbeat"
    assert "may still be running" in capsys.readouterr().err


def test_handover_back_pauses_jobs_and_updates_last_runs() -> None:
    for name in ("a", "b", "gone"):
        save(name, schedules.crontab(minute="0")).reschedule(datetime.now(UTC) - timedelta(days=3))
    call("import", "redbeat", "--apply")
    key = RedBeatSchedulerEntry.generate_key(app, "gone")
    RedBeatSchedulerEntry.from_key(key, app=app).delete()
    result = call("handover", "redbeat", "--back", "--apply", "--json")
    assert result.code == 0
    assert {job["name"] for job in result.json["jobs"]} == {"a", "b"}
    assert [job["name"] for job in result.json["gone"]] == ["gone"]
    assert [job.name for job in Job.objects.filter(enabled=True)] == ["gone"]
    job = Job.objects.get(name="a")
    last_due = job.parsed_schedule.previous_before(job.cursor.placed_at + MICROSECOND)
    key = RedBeatSchedulerEntry.generate_key(app, "a")
    assert redbeat.runs_since(last_due).times[f"key {key!r}"] == [last_due]


def test_doctor_reports_that_beat_holds_its_lock() -> None:
    save()

    def codes() -> set[str]:
        return {each["code"] for each in call("doctor", "--json").json["findings"]}

    client, key = get_redis(app), ensure_conf(app).lock_key
    client.set(key, "held", ex=300)
    assert "other_scheduler_runs" not in codes(), "no job was imported"
    call("import", "redbeat", "--apply")
    assert "other_scheduler_runs" in codes()
    client.delete(key)
    assert "other_scheduler_runs" not in codes()


def test_handing_back_returns_only_the_entries_that_exist() -> None:
    entry = save(schedule=schedules.crontab(minute="0"))
    assert redbeat.hand_back({"redbeat:nothing": NOW, entry.key: NOW}) == {entry.key}


def test_later_run_of_redbeat_is_kept() -> None:
    entry = save(schedule=schedules.crontab(minute="0"))
    entry.reschedule(NOW)
    assert redbeat.hand_back({entry.key: NOW - timedelta(hours=1)})
    assert RedBeatSchedulerEntry.from_key(entry.key, app=app).last_run_at == NOW
    assert redbeat.hand_back({entry.key: NOW + timedelta(hours=1)})
    assert RedBeatSchedulerEntry.from_key(entry.key, app=app).last_run_at > NOW


def test_no_job_is_paused_if_redis_is_unreachable() -> None:
    save()
    call("import", "redbeat", "--apply")
    app.conf.redbeat_redis_url = "redis://127.0.0.1:1/0"
    for name in ("redbeat_conf", "redbeat_redis"):
        delattr(app, name)
    assert call("handover", "redbeat", "--back", "--apply").code == 2
    assert Job.objects.get().enabled
