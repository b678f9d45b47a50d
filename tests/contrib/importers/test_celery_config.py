"""Test the import from ``beat_schedule``: jobs are due when the real Celery sends the task."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import schedules
from pytest_django import Settings

from django_dcron import control
from django_dcron.contrib.importers import celery_config
from django_dcron.contrib.importers.source_contents import SourceEntry
from django_dcron.db.now import database_now
from django_dcron.dispatch.base import BeatTask, DispatchFailed, WorkerReply
from django_dcron.dispatch.celery import CeleryDispatcher
from django_dcron.models import Job, Run
from django_dcron.schedules.schedule import parse_schedule
from tests.app import tasks
from tests.celery_app import app
from tests.contrib.importers import public
from tests.factories import make_run
from tests.management.calling import call

pytestmark = pytest.mark.django_db

NOW = datetime(2083, 1, 1, 12, tzinfo=UTC)
ECHO = "tests.app.tasks.echo"


@pytest.fixture
def configure() -> Iterator[Callable[..., None]]:
    before = dict(app.conf.beat_schedule)
    app.conf.beat_schedule = {}

    def add(name: str = "a", schedule: Any = 30, **entry: Any) -> None:
        app.conf.beat_schedule[name] = {"task": ECHO, "schedule": schedule} | entry

    yield add
    app.conf.beat_schedule = before


def found(name: str = "a") -> SourceEntry:
    return next(each for each in celery_config.read(NOW).entries if each.key == name)


def test_entry_with_all_options_is_imported(configure: Any) -> None:
    configure(
        "nightly report",
        schedules.crontab(minute="*/15", hour="8-17", day_of_week="mon-fri"),
        args=(1, "two"),
        kwargs={"city": "Ulm"},
        options={"queue": "slow", "priority": 2, "expires": 90, "soft_time_limit": 20},
    )
    assert call("import", "celery", "--apply").code == 0
    job = Job.objects.get()
    assert (job.name, job.schedule, job.timezone) == (
        "nightly report",
        "*/15 8-17 * * mon-fri",
        "UTC",
    )
    assert (job.target, job.args, job.kwargs) == (ECHO, [1, "two"], {"city": "Ulm"})
    assert (job.queue, job.priority, job.start_deadline) == ("slow", 2, timedelta(seconds=90))
    assert (job.timeout, job.import_source) == (timedelta(seconds=20), "celery")
    assert call("import", "celery").out == "1 same.\n"


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        (30, "@every 30s"),
        (90.0, "@every 1m30s"),
        (timedelta(hours=2), "@every 2h"),
        (schedules.schedule(timedelta(minutes=5)), "@every 5m"),
    ],
)
def test_intervals_become_every_schedules(configure: Any, schedule: Any, text: str) -> None:
    configure(schedule=schedule)
    assert found().values["schedule"] == text


@pytest.mark.parametrize("span", [{"days": 1}, {"hours": 1}, {"minutes": 1}])
def test_relative_intervals_are_rounded_as_in_celery(configure: Any, span: Any) -> None:
    zone = ZoneInfo("Europe/Berlin")
    configure(schedule=timedelta(**span), relative=True)
    assert not found().warnings
    moment = datetime(2083, 1, 1, 10, 20, 30, tzinfo=UTC)
    text = found().values["schedule"]
    until = datetime(2084, 1, 1, tzinfo=UTC)
    occurrences = parse_schedule(text, "UTC").occurrences(moment, until, 4)
    expected = []
    source_schedule = schedules.schedule(timedelta(**span), relative=True, app=app)
    for _ in range(4):
        source_schedule.nowfun = lambda moment=moment: moment
        moment += source_schedule.remaining_estimate(moment)
        expected.append(moment)
    assert list(islice(occurrences, 4)) == expected
    assert zone.key not in found().values["timezone"]


def test_unsupported_relative_interval_is_reported(configure: Any) -> None:
    configure(schedule=timedelta(hours=5), relative=True)
    assert found().values["schedule"] == "@every 5h"
    assert "relative" in found().warnings[0]


def test_unknown_phase_of_a_long_interval_is_reported(configure: Any) -> None:
    configure("long", timedelta(days=7))
    configure("short", timedelta(minutes=5))
    assert "starts_at" in found("long").warnings[0]
    assert found("short").warnings == ()


def test_unsupported_entries_are_refused(configure: Any) -> None:
    class Weird(schedules.schedule):
        pass

    configure("sun", schedules.solar("sunset", 52.5, 13.4))
    configure("weird", Weird(timedelta(minutes=5)))
    configure("none", None)
    configure("fast", 0.5)
    configure("infinite", float("inf"))
    configure("time", 30, args=[NOW])
    configure("number", 30, args=7)
    configure("list", 30, kwargs=[1])
    configure("text", 30, options="slow")
    configure("cron", "*/5 * * * *")
    app.conf.beat_schedule["taskless"] = {"schedule": 30}
    assert "sunset at 52.5" in found("sun").refused
    assert "Weird" in found("weird").refused
    assert "0.5 s" in found("fast").refused
    assert "args" in found("time").refused
    assert found("number").refused.startswith("args: 7")
    assert found("list").refused.startswith("kwargs: [1]")
    assert found("text").refused.startswith("options: 'slow'")
    assert "crontab()" in found("cron").refused
    for name in ("none", "infinite", "taskless"):
        assert found(name).refused


def test_built_in_and_expired_entries_are_omitted(configure: Any) -> None:
    configure("cleanup", task="celery.backend_cleanup")
    configure("expired", options={"expires": NOW - timedelta(seconds=1)})
    assert found("cleanup").omitted
    assert found("expired").omitted


def test_entries_of_add_periodic_task_are_imported(configure: Any) -> None:
    app.add_periodic_task(schedules.crontab(minute="5"), tasks.echo.s(1, b=2), name="added")
    app.add_periodic_task(30, tasks.echo.s("x"))
    added = found("added").values
    assert (added["schedule"], added["args"], added["kwargs"]) == ("5 * * * *", [1], {"b": 2})
    assert call("import", "celery", "--apply").code == 0
    assert Job.objects.count() == 2


def test_import_that_starts_jobs_says_that_beat_may_run_them(configure: Any) -> None:
    def warns(*command: str) -> bool:
        return "If beat still runs" in call(*command).out

    configure()
    assert warns("import", "celery")
    assert "--shadow" in call("import", "celery").out
    assert not warns("import", "celery", "--disabled")
    assert not warns("import", "celery", "--shadow", "--apply")
    assert not warns("handover", "celery"), "it says that beat must be stopped"
    assert not warns("handover", "celery", "--apply")
    configure("new")
    shown = call("import", "celery").out
    assert "it runs this job, too" in shown
    assert "--shadow" not in shown, "the switch is over"
    assert warns("import", "celery", "--apply")


@pytest.mark.parametrize("schedule", [600, schedules.crontab(hour="3", app=app)])
def test_times_are_shown_in_the_zone_of_the_site(
    configure: Any, settings: Settings, schedule: Any
) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    configure(schedule=schedule)
    assert found().values["timezone"] == ("Asia/Tokyo" if schedule == 600 else "UTC")


def test_time_zone_is_that_of_the_celery_app(
    configure: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(app.__dict__, "timezone", ZoneInfo("Europe/Berlin"))
    configure(schedule=schedules.crontab(minute="0", hour="9", app=app))
    assert found().values["timezone"] == "Europe/Berlin"


def test_report_compares_shadows_with_the_messages_that_workers_received(
    configure: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, task in {"ok": "ok", "echo": "echo", "echo-too": "echo"}.items():
        configure(name, schedules.crontab(), task=f"tests.app.tasks.{task}")
    assert call("import", "celery", "--apply", "--shadow").code == 0
    now = database_now("default")
    Job.objects.update(created_at=now - timedelta(hours=1))
    due = now - timedelta(minutes=10)
    job = Job.objects.get(name="ok")
    for earlier in (0, 5):  # nothing is known about the earlier occurrence
        make_run(job, "succeeded", scheduled_at=due - timedelta(minutes=earlier))
    replies: list[WorkerReply] = []
    monkeypatch.setattr(CeleryDispatcher, "ask_workers", lambda self: replies)
    assert call("import", "celery", "--report").code == 2, "no worker received anything"

    replies.append(
        WorkerReply(
            "w", ("celery",), True, (), (BeatTask("tests.app.tasks.ok", 600), BeatTask(ECHO, 1))
        )
    )
    found = call("import", "celery", "--report", "--json")
    assert found.code == 0
    shown = {each["name"]: (each["compared"], each["shared_task"]) for each in found.json["jobs"]}
    assert shown == {"ok": (1, ""), "echo": (0, ECHO), "echo-too": (0, ECHO)}
    make_run(Job.objects.get(name="echo"), "succeeded", scheduled_at=due)
    shared = call("import", "celery", "--report", "--at-least", "100")
    assert shared.code == 0, "waiting can't help with the shadows that share a task"
    assert "! echo isn't compared" in shared.out
    assert "Compared: 1 of 1 shadows that ran, 1 of 2 shadow runs." in shared.out
    assert "Not counted: 2 shadows" in shared.out
    replies[0] = WorkerReply("w", ("celery",), True, (), (BeatTask("tests.app.tasks.ok", 60),))
    late = call("import", "celery", "--report", "--json")
    assert late.code == 2, "the message may have waited in its queue, so nothing is compared"
    assert late.json["coverage"]["compared"] == 0
    Run.objects.all().delete()
    assert call("import", "celery", "--report").code == 1, "the shadow wasn't due then"
    job.delete()
    nothing = call("import", "celery", "--report")
    assert (nothing.code, nothing.err.startswith("Nothing can be compared: 2 shadows")) == (2, True)


def test_report_needs_workers_that_can_be_asked(
    configure: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: CeleryDispatcher) -> None:
        raise DispatchFailed("connection refused")

    configure()
    assert call("import", "celery", "--apply", "--shadow").code == 0
    monkeypatch.setattr(CeleryDispatcher, "ask_workers", fail)
    refused = call("import", "celery", "--report")
    assert (refused.code, "connection refused" in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("task", "age", "reported"),
    [
        ("tests.app.tasks.ok", 60, True),
        ("tests.app.tasks.ok", 3_600, False),  # before the switch
        (ECHO, 60, False),  # the entry "elsewhere" of the same task isn't a job that works here
        ("tests.app.tasks.fail", 60, False),  # its job is paused
        ("nobody.has.this", 60, False),
    ],
)
def test_doctor_names_the_tasks_that_workers_receive_from_beat(
    configure: Any, monkeypatch: pytest.MonkeyPatch, task: str, age: float, reported: bool
) -> None:
    for name, each in {"ok": "ok", "echo": "echo", "elsewhere": "echo", "paused": "fail"}.items():
        configure(name, 3600, task=f"tests.app.tasks.{each}")
    assert call("import", "celery", "--apply").code == 0
    for name in ("elsewhere", "paused"):
        control.pause(Job.objects.get(name=name))
    Job.objects.update(updated_at=database_now("default") - timedelta(minutes=10))
    replies = [
        WorkerReply("old", ("celery",), True, (), (BeatTask(task, age + 100),)),
        WorkerReply("new", ("celery",), True, (), (BeatTask(task, age),)),
        WorkerReply("other", ("celery",), False),
    ]
    monkeypatch.setattr(CeleryDispatcher, "ask_workers", lambda self: replies)
    found = call("doctor", "--json").json["findings"]
    named = [each for each in found if each["code"] == "other_scheduler_runs"]
    assert [each["subject"]["name"] for each in named] == (["ok"] if reported else [])
    later = call("doctor", "--json", "--since", "30s").json["findings"]
    assert "other_scheduler_runs" not in {each["code"] for each in later}


def test_doctor_ignores_workers_that_cannot_be_asked(
    configure: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(schedule=3600)
    assert call("import", "celery", "--apply").code == 0

    def fail(self: CeleryDispatcher) -> None:
        raise DispatchFailed("connection refused")

    for ask in (fail, lambda self: None):
        monkeypatch.setattr(CeleryDispatcher, "ask_workers", ask)
        found = call("doctor", "--json").json["findings"]
        assert "other_scheduler_runs" not in {each["code"] for each in found}


def test_handover_with_refused_entries_shows_the_next_step(configure: Any) -> None:
    configure("good", 3600)
    assert call("import", "celery", "--apply", "--disabled").code == 0
    assert "manage.py dcron doctor" in call("handover", "celery", "--apply").out
    configure("bad", 3600, task="nobody.has.this")
    code, out, _error = call("handover", "celery", "--apply")
    assert code == 0
    assert "manage.py dcron doctor" in out
    assert "manage.py dcron doctor" not in call("handover", "celery").out


def test_error_while_finalizing_the_app_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_options: Any) -> None:
        raise RuntimeError("no such table")

    monkeypatch.setattr(app, "finalize", fail)
    answer = call("import", "celery")
    assert answer.code == 2
    assert "no such table" in answer.err


def source_occurrences(schedule: Any, after: datetime) -> Iterator[datetime]:
    """Yield the occurrences of Celery's schedule, each computed from the previous one."""
    moment = after
    schedule.nowfun = lambda: moment
    while True:
        moment += schedule.remaining_estimate(moment)
        yield moment


@public.each_of("celery")
def test_public_schedules_match_celery(given: dict[str, Any], configure: Any) -> None:
    crontab = schedules.crontab(**given, app=app)
    configure(schedule=crontab)
    values = found().values
    parsed = parse_schedule(values["schedule"], values["timezone"])
    expected = list(islice(source_occurrences(crontab, NOW), public.COUNT))
    assert list(parsed.occurrences(NOW, expected[-1], public.COUNT)) == expected


@public.each_of("celery intervals")
def test_public_intervals_match_celery(given: int, configure: Any) -> None:
    configure(schedule=given)
    schedule = schedules.schedule(timedelta(seconds=given), app=app)
    interval = parse_schedule(found().values["schedule"]).interval
    assert interval is not None
    occurrences = [NOW + interval * number for number in range(1, public.COUNT + 1)]
    assert occurrences == list(islice(source_occurrences(schedule, NOW), public.COUNT))
