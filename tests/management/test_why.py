"""Test ``dcron why`` and ``dcron nodes``: text, JSON and exit codes."""

import json
import re
import shlex
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.core.management import call_command
from pytest_django import Settings

from django_dcron import control
from django_dcron.db import clock
from django_dcron.db.now import database_now
from django_dcron.diagnosis.system_health import read_verdict
from django_dcron.management.dcron import run_watch
from django_dcron.models import Calendar, Cursor, Job, Node, Run
from django_dcron.models.job_states import EXHAUSTED
from django_dcron.policies.health.problems import Problem
from django_dcron.targets.shadow import NOT_EXECUTED
from tests.diagnosis.conftest import System, system
from tests.factories import make_idle_job, make_job, make_node, make_run
from tests.management.calling import call, table

__all__ = ["system"]


def test_why_explains_occurrence_as_text_and_json(system: System) -> None:
    code, out, err = call("why", str(system.job), f"{system.latest:%Y-%m-%dT%H:%M}")
    run = Run.objects.get(scheduled_at=system.latest)
    assert (code, err) == (0, "")
    first, second, *_rest = out.splitlines()
    assert first == f"{system.job}, {system.latest:%Y-%m-%d %H:%M:%S} UTC: succeeded"
    assert f"{run.started_at:%Y-%m-%d %H:%M:%S} UTC" in second
    assert f"run     {run.pk}\n" in out
    document = call("why", str(system.job), f"{system.latest:%Y-%m-%dT%H:%M:%SZ}", "--json").json
    assert document["verdict"] == "succeeded"
    assert document["run"] == str(run.pk)
    assert document["occurrence"] == f"{system.latest:%Y-%m-%dT%H:%M:%S}Z"
    assert document["sentences"]


def test_verdict_on_a_run_of_a_shadow_says_that_nothing_was_executed(system: System) -> None:
    Run.objects.filter(scheduled_at=system.latest).update(reason=NOT_EXECUTED)
    head = call("why", str(system.job), f"{system.latest:%Y-%m-%dT%H:%M}").out.splitlines()[0]
    assert head.endswith(": succeeded (shadow, not executed)")


def test_from_python_time_is_one_text_or_a_list(system: System) -> None:
    texts = [f"{system.latest:%Y-%m-%d}", f"{system.latest:%H:%M:%SZ}"]
    for given in (" ".join(texts), texts):
        out = StringIO()
        call_command("dcron", "why", str(system.job), time=given, json=True, stdout=out)
        assert json.loads(out.getvalue())["requested"] == f"{system.latest:%Y-%m-%dT%H:%M:%SZ}"


def test_time_without_offset_is_in_time_zone_of_job(system: System) -> None:
    type(system.job).objects.update(schedule="30 2 * * *", timezone="Europe/Berlin")
    out = call("why", str(system.job), "2027-03-28T02:30").out
    note = out.splitlines()[1]
    assert all(value in note for value in ("02:30", "2027-03-28", "Europe/Berlin"))
    assert (
        call("why", str(system.job), "2027-03-28T01:00Z", "--json").json["occurrence"]
        == "2027-03-28T01:00:00Z"
    )


def test_time_of_day_means_latest_one_in_time_zone_of_job(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    type(system.job).objects.update(schedule="30 14 * * *", timezone="Europe/Berlin")
    for now, clock_time, asked in (
        ("2027-01-14T13:30:00", "14:30", "2027-01-14T13:30:00Z"),  # 14:30 in Berlin
        ("2027-01-14T13:29:59", "14:30", "2027-01-13T13:30:00Z"),  # not yet
        ("2027-01-14T23:30:00", "14:30:05", "2027-01-14T13:30:05Z"),  # the 15th in Berlin
        ("2027-03-28T10:00:00", "2:30", "2027-03-28T01:30:00Z"),  # skipped in Berlin
    ):
        monkeypatch.setattr(clock, "fixed_at", datetime.fromisoformat(f"{now}+00:00"))
        document = call("why", str(system.job), clock_time, "--json").json
        assert document["requested"] == asked
    first, *_rest = call("why", str(system.job), "14:30").out.splitlines()
    assert all(part in first for part in ("2027-03-27 14:30:00", "Europe/Berlin"))
    for impossible in ("24:00", "14:60", "1430:00"):
        assert call("why", str(system.job), impossible).code == 2


def test_time_that_only_the_zone_of_the_site_explains_is_in_that_zone(
    system: System, settings: Settings
) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    occurrence = system.latest.astimezone(ZoneInfo("Asia/Tokyo"))
    daily = f"{system.latest:%M %H} * * *"
    type(system.job).objects.update(schedule=daily, timezone="UTC")
    Run.objects.exclude(scheduled_at=system.latest).delete()
    for text in (f"{occurrence:%Y-%m-%dT%H:%M}", f"{occurrence:%Y-%m-%d %H:%M:%S}"):
        assert call("why", str(system.job), text, "--json").json["run"]
        first, *_rest = call("why", str(system.job), text).out.splitlines()
        assert "Asia/Tokyo" in first
        assert "UTC" in first
    document = call("why", str(system.job), f"{occurrence:%Y-%m-%dT%H:%M}", "--json").json
    assert "Asia/Tokyo" in document["meaning"]
    type(system.job).objects.update(created_at=system.latest - timedelta(hours=1))
    before_creation = call("why", str(system.job), f"{occurrence:%H:%M}", "--json").json
    assert before_creation["run"] == document["run"]
    type(system.job).objects.update(schedule="* * * * *")
    matched_before_creation = call("why", str(system.job), f"{occurrence:%H:%M}", "--json").json
    assert matched_before_creation["run"] == document["run"]
    type(system.job).objects.update(schedule=daily)
    nothing = occurrence + timedelta(minutes=7)
    document = call("why", str(system.job), f"{nothing:%Y-%m-%dT%H:%M}", "--json").json
    assert document["requested"] == f"{nothing:%Y-%m-%dT%H:%M}:00Z"


def test_time_before_the_creation_does_not_mean_a_future_time_in_the_zone_of_the_site(
    db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(schedule="0 * * * *", timezone="Asia/Tokyo")
    created = datetime(2027, 1, 14, 10, 5, tzinfo=ZoneInfo("Asia/Tokyo"))
    Job.objects.update(created_at=created)
    Cursor.objects.update(placed_at=created, next_at=created.replace(hour=11, minute=0))
    monkeypatch.setattr(clock, "fixed_at", created.replace(minute=30))
    for text in ("2027-01-14T10:00", "2027-01-14 10:00:00"):
        document = call("why", str(job), text, "--json").json
        assert (document["verdict"], document["meaning"]) == ("not_created", "")
        assert document["requested"] == "2027-01-14T01:00:00Z"
        assert "10:05" in document["sentences"][0]
    # The schedule doesn't match 10:20 in Tokyo. It matches 10:20 UTC.
    Job.objects.update(schedule="20 19 * * *")
    assert call("why", str(job), "2027-01-14T10:20", "--json").json["verdict"] == "not_due"


def test_time_of_manual_run_is_in_the_zone_of_the_site(system: System, settings: Settings) -> None:
    """Lists show such runs, too, and the schedule doesn't match them."""
    settings.TIME_ZONE = "Asia/Tokyo"
    type(system.job).objects.update(schedule="0 0 1 1 *", timezone="UTC", created_at=system.latest)
    Run.objects.exclude(scheduled_at=system.latest).delete()
    Run.objects.update(trigger="manual", idempotency_key="1")
    listed = f"{system.latest.astimezone(ZoneInfo('Asia/Tokyo')):%H:%M}"
    document = call("why", str(system.job), listed, "--json").json
    assert document["run"] == str(Run.objects.get().pk)
    assert "Asia/Tokyo" in document["meaning"]


def test_headline_names_no_run_if_several_were_created_at_that_time(db: None) -> None:
    job, at = make_idle_job(), datetime(2026, 1, 14, 10, 5, tzinfo=UTC)
    Job.objects.update(created_at=at - timedelta(days=1))
    Cursor.objects.update(placed_at=at - timedelta(days=1))
    for seconds, state in ((3, "failed"), (7, "succeeded")):
        time = at + timedelta(seconds=seconds, milliseconds=500)
        run = make_run(job, state, trigger="manual", scheduled_at=time, due_at=time)
    out = call("why", str(job), at.isoformat()).out
    assert out.splitlines()[0] == f"{job}: no occurrence"
    assert not re.search(r"^run ", out, re.MULTILINE)
    assert call("why", str(job), at.isoformat(), "--json").json["run"] is None
    Run.objects.exclude(pk=run.pk).delete()
    out = call("why", str(job), at.isoformat()).out
    assert out.splitlines()[0] == f"{job}, run {run.pk}: succeeded"


def test_time_with_runs_in_both_zones_names_the_command_for_the_other_run(
    system: System, settings: Settings
) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    Job.objects.update(timezone="UTC")
    (latest,) = Run.objects.filter(scheduled_at=system.latest)
    in_site = system.latest.astimezone(ZoneInfo("Asia/Tokyo"))
    same_clock_time = in_site.replace(tzinfo=UTC) - timedelta(days=1)
    fields = {"due_at": same_clock_time, "claimed_at": same_clock_time, "state": "succeeded"}
    other = Run.objects.create(job=system.job, scheduled_at=same_clock_time, **fields)

    document = call("why", str(system.job), f"{in_site:%H:%M}", "--json").json

    assert document["run"] == str(other.pk)
    command = document["meaning"].partition("manage.py dcron ")[2]
    assert call(*shlex.split(command), "--json").json["run"] == str(latest.pk)
    assert f"{in_site:%Y-%m-%d}" in command


PRINTED_TIME = re.compile(
    r"(?:[A-Z][a-z]{2} )?\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?: ?[+-]\d\d(?::?\d\d)?| [A-Z]+)?"
)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("occurrence", "job_zone", "site_zone"),
    [
        ("2025-07-01T03:30:00Z", "Asia/Tokyo", "UTC"),
        ("2025-07-01T03:30:00Z", "America/Sao_Paulo", "Asia/Kolkata"),  # -03 and IST
        # 02:30 in Berlin, for the first and for the second time
        ("2025-10-26T00:30:00Z", "Europe/Berlin", "UTC"),
        ("2025-10-26T01:30:00Z", "America/New_York", "Europe/Berlin"),
        ("2025-10-26T01:30:00Z", "Europe/Berlin", "Europe/Paris"),
        # 01:30 in New York, for the first and for the second time
        ("2025-11-02T05:30:00Z", "Europe/Berlin", "America/New_York"),
        ("2025-11-02T06:30:00Z", "America/New_York", "Asia/Kolkata"),
    ],
)
def test_each_printed_time_is_understood(
    settings: Settings, occurrence: str, job_zone: str, site_zone: str
) -> None:
    settings.TIME_ZONE = site_zone
    at = datetime.fromisoformat(occurrence)
    job = make_job(schedule="*/30 * * * *", timezone=job_zone)
    Cursor.objects.filter(pk=job.pk).update(next_at=at)
    run = make_run(job, "succeeded", scheduled_at=at, due_at=at)
    before = f"{at - timedelta(minutes=1):%Y-%m-%dT%H:%M:%SZ}"
    printed = []
    for shown, label in (
        (call("list"), ""),
        (call("history", job.name), ""),
        (call("history", str(run.pk)), "scheduled "),
        (call("next", job.name, "-n", "1", "--after", before), ""),
        (call("show", job.name), "next run "),
        (call("why", job.name, occurrence), f"{job.name}, "),
    ):
        assert shown.code == 0, shown.err
        lines = [line for line in shown.out.splitlines() if line.startswith(label)]
        found = PRINTED_TIME.findall("\n".join(lines))
        assert found, shown.out
        printed += found
    for text in dict.fromkeys(printed):
        answer = call("why", job.name, text, "--json")
        assert answer.code == 0, answer.err
        assert answer.json["requested"] == occurrence, text
    without_quotes = call("why", job.name, *printed[0].split(), "--json")
    assert without_quotes.json["requested"] == occurrence


@pytest.mark.django_db
def test_abbreviation_of_two_zones_is_one_of_them_and_the_output_says_which(
    settings: Settings,
) -> None:
    """Both China and Chicago have a CST."""
    settings.TIME_ZONE = "America/Chicago"
    job = make_job(schedule="0 9 * * *", timezone="Asia/Shanghai")
    for text, requested in (
        ("2025-12-01 09:00:00 CST", "2025-12-01T01:00:00Z"),
        ("2025-12-01 09:00:00-06:00", "2025-12-01T15:00:00Z"),
    ):
        found = call("why", str(job), text, "--json").json
        assert found["requested"] == requested
        assert ("Asia/Shanghai" in found["meaning"]) == ("CST" in text)
    refused = call("why", str(job), "2025-12-01 09:00:00 CET")
    assert refused.code == 2
    assert "CET" in refused.err


def test_later_run_that_counts_the_time_is_not_a_run_at_that_time(
    system: System, settings: Settings
) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    Job.objects.update(timezone="UTC")
    in_site = system.latest.astimezone(ZoneInfo("Asia/Tokyo"))
    Run.objects.filter(scheduled_at=system.latest).update(
        scheduled_at=system.latest + timedelta(hours=1), missed_before=1, missed_from=system.latest
    )
    same_clock_time = in_site.replace(tzinfo=UTC) - timedelta(days=1)
    fields = {"due_at": same_clock_time, "claimed_at": same_clock_time, "state": "succeeded"}
    Run.objects.create(job=system.job, scheduled_at=same_clock_time, **fields)
    document = call("why", str(system.job), f"{in_site:%H:%M}", "--json").json
    assert "manage.py dcron" not in document["meaning"]


def test_times_are_in_the_zones_of_the_job_and_of_the_site(
    system: System, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    now = datetime(2027, 1, 14, 23, 30, 30, tzinfo=UTC)
    monkeypatch.setattr(clock, "fixed_at", now)
    Job.objects.update(timezone="America/New_York")
    system.job.refresh_from_db()
    control.pause(system.job, until=now + timedelta(hours=1))
    out = call("why", str(system.job)).out
    assert "until 2027-01-14 19:30:30 EST (2027-01-15 01:30:30 CET)" in out
    control.pause(system.job, until=now.replace(hour=12, day=15))
    assert "until 2027-01-15 07:30:30 EST (13:30:30 CET)" in call("why", str(system.job)).out
    Job.objects.update(timezone="Europe/Paris")
    assert "(" not in call("why", str(system.job)).out, "both zones have the same time"


def test_excluded_time_is_explained_in_the_zone_of_the_job(
    system: System, settings: Settings
) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    day = f"{system.latest:%Y-%m-%d}"
    calendar = control.save_calendar(Calendar(name="closed", dates=day))
    type(system.job).objects.update(schedule="0 * * * *", timezone="UTC", calendar=calendar)
    document = call("why", str(system.job), f"{day}T01:00", "--json").json
    assert (document["requested"], document["meaning"]) == (f"{day}T01:00:00Z", "")


@pytest.mark.parametrize("time", [[], ["now"]])
def test_why_explains_a_job_without_occurrences(system: System, time: list[str]) -> None:
    job = control.save(make_job(schedule="@never"))
    Job.objects.filter(pk=job.pk).update(created_at=system.latest)
    document = call("why", str(job), *time, "--json").json
    assert document["verdict"] == "no_occurrence"
    assert "@never" in document["sentences"][0]
    assert len(document["sentences"]) == 2, "the creation is no change"


def test_why_explains_a_one_off_job_that_has_run(system: System) -> None:
    """Its schedule has ended, so the job is disabled."""
    at = f"@at {system.latest:%Y-%m-%dT%H:%M:%S}"
    disabled = {"enabled": False, "pause_reason": EXHAUSTED, "schedule": at, "timezone": "UTC"}
    Job.objects.filter(pk=system.job.pk).update(**disabled)
    document = call("why", str(system.job), "--json").json
    assert document["run"] == str(Run.objects.get(scheduled_at=system.latest).pk)


def test_why_without_time_explains_last_occurrence(system: System) -> None:
    document = call("why", str(system.job), "--json").json
    latest = f"{document['occurrence']}"
    explicit = call("why", str(system.job), latest, "--json").json
    assert document == explicit
    assert (
        datetime.fromisoformat(latest)
        <= database_now("default")
        < datetime.fromisoformat(document["after"])
    )


def test_why_without_time_explains_current_pause(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In the first second of a minute, the answer would be about the occurrence of that minute.
    monkeypatch.setattr(clock, "fixed_at", database_now("default").replace(second=30))
    control.pause(system.job, "until the audit is over")
    answer = call("why", str(system.job))
    assert (answer.code, answer.err) == (0, "")
    assert "until the audit is over" in answer.out


def test_why_without_time_mentions_freeze_of_a_job_whose_last_run_was_long_ago(db: None) -> None:
    idle = make_idle_job()
    ran, paused = make_idle_job(), make_idle_job()
    long_ago = database_now("default") - timedelta(days=400)
    Job.objects.update(created_at=long_ago)
    Cursor.objects.update(placed_at=long_ago)
    control.pause(paused, "until the audit is over")
    control.freeze("deploy 17")
    for job in (idle, ran, paused):
        answer = call("why", str(job), "--json").json
        assert [sentence for sentence in answer["sentences"] if "deploy 17" in sentence]
    assert answer["verdict"] == "paused"
    assert "until the audit is over" in " ".join(answer["sentences"])


def test_why_without_time_explains_new_job_as_of_now(db: None) -> None:
    job = make_idle_job()
    document = call("why", str(job), "--json").json
    assert document["verdict"] == "no_occurrence"
    assert document["before"] is None
    assert f"{document['after'][:10]} 00:00:00 UTC" in document["sentences"][0]
    assert document["requested"] >= f"{job.created_at:%Y-%m-%dT%H:%M:%S}"


def test_why_without_time_does_not_say_that_the_present_is_no_occurrence(db: None) -> None:
    job = control.save(make_job(schedule="@at 2090-01-01T00:00"))
    now = database_now("default") - timedelta(seconds=5)
    times = dict.fromkeys(("scheduled_at", "due_at", "claimed_at", "started_at"), now)
    run = Run.objects.create(job=job, trigger="manual", state="running", **times)
    document = call("why", str(job), "--json").json
    assert document["run"] == str(run.pk)
    assert not any("match" in sentence for sentence in document["sentences"])
    assert "2090-01-01" in document["sentences"][0]


def test_why_without_time_explains_later_manual_run(db: None) -> None:
    job = make_idle_job()
    # A run of the present second is a part of the answer itself.
    now = database_now("default") - timedelta(seconds=5)
    fields = {"trigger": "manual", "state": "failed", "reason": "OSError: disk full"}
    run = Run.objects.create(
        **{"job": job, "scheduled_at": now, "due_at": now, "claimed_at": now} | fields
    )
    document = call("why", str(job), "--json").json
    assert (document["verdict"], document["run"]) == ("no_occurrence", str(run.pk))
    assert [str(run.pk) in sentence for sentence in document["sentences"]].count(True) == 1
    assert "OSError: disk full" in document["sentences"][-1]
    assert call("why", str(job)).out.splitlines()[0] == f"{job}, run {run.pk}: failed"


def test_why_without_time_ignores_manual_run_before_last_occurrence(system: System) -> None:
    before = call("why", str(system.job), "--json").json
    at = datetime.fromisoformat(before["occurrence"]) - timedelta(minutes=1, seconds=7)
    Run.objects.create(
        job=system.job, scheduled_at=at, due_at=at, claimed_at=at, trigger="manual", state="failed"
    )
    assert call("why", str(system.job), "--json").json == before


def test_why_without_explanation_exits_with_1(system: System) -> None:
    Run.objects.filter(scheduled_at=system.latest).update(state="undead")
    code, out, err = call("why", str(system.job), f"{system.latest:%Y-%m-%dT%H:%M}")
    assert (code, err) == (1, "No explanation found.")
    assert "unexplained" in out


def test_why_rejects_invalid_arguments(system: System) -> None:
    for arguments in (["nobody", "1h"], [str(system.job), "noon"], [str(system.job), "1950-01-01"]):
        code, out, _err = call("why", *arguments)
        assert (code, out) == (2, "")


# --- Nodes --------------------------------------------------------------------------------------


def test_nodes_lists_state_of_each_node(system: System) -> None:
    now = database_now("default")
    given = {"host": "web-2", "pid": 7, "version": "0.1", "started_at": now - timedelta(hours=2)}
    Node.objects.create(
        id="b-1", name="b", heartbeat_at=now - timedelta(hours=1), namespace="shop", **given
    )
    Node.objects.create(
        id="c-1", name="c", heartbeat_at=now, degraded=True, skew=timedelta(minutes=2), **given
    )
    code, out, _err = call("nodes")
    head, *rows = table(out)[:4]
    assert code == 0
    assert head[:3] == ["Node", "State", "Heartbeat"]
    assert [row[:2] for row in rows] == [
        ["a", "live"],
        ["b", "expired"],
        ["c", "stalled, degraded"],
    ]
    assert "2m 00s" in out
    issues = {issue.problem: str(issue) for issue in read_verdict().issues}
    explained = {Problem.NODE_STALLED, Problem.NODE_DEGRADED, Problem.NODE_SKEWED}
    assert [out.count(issues[problem]) for problem in explained] == [1, 1, 1]
    document = call("nodes", "--json").json
    assert [node["state"] for node in document["nodes"]] == ["live", "expired", "stalled"]
    assert document["nodes"][2]["skew_seconds"] == 120
    assert document["nodes"][1]["heartbeat_at"].endswith("Z")
    assert [
        node["name"] for node in call("nodes", "--namespace", "bank", "--json").json["nodes"]
    ] == [
        "a",
        "c",
    ]


@pytest.mark.django_db
def test_nodes_says_which_of_them_can_be_stopped() -> None:
    now = database_now("default")
    given = {"host": "web", "pid": 7, "version": "0.1", "started_at": now, "heartbeat_at": now}
    for name, namespace in (("a", ""), ("b", "shop"), ("c", "idle")):
        Node.objects.create(id=name, name=name, namespace=namespace, **given)
    make_idle_job(name="stock", namespace="shop")
    assert call("nodes").out.endswith(
        "\nAny one node can be stopped: other live nodes schedule its jobs.\n"
    )
    make_idle_job(name="report", namespace="billing")
    make_idle_job(name="import", namespace="fx", enabled=False)
    needed = "\nIf you stop a, nothing is scheduled for namespace billing.\n"
    assert call("nodes").out.endswith(needed)
    assert call("nodes", "--namespace", "shop").out.endswith(needed)
    Node.objects.filter(name="b").update(heartbeat_at=now - timedelta(hours=1))
    assert "If you stop a, nothing is scheduled for namespaces billing, shop." in call("nodes").out
    assert "If you stop" not in call("nodes", "--json").out


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("other", "is_safe"),
    [
        ({}, True),
        ({"shards": 0, "degraded": True}, True),
        ({"shards": 0}, False),
        ({"broker_unreachable_since": datetime(2026, 1, 1, tzinfo=UTC)}, False),
        ({"namespace": "mail"}, False),
        (None, False),
    ],
)
@pytest.mark.parametrize("has_jobs", [True, False])
def test_nodes_says_that_any_node_can_be_stopped_only_if_another_takes_over(
    other: dict[str, Any] | None, is_safe: bool, has_jobs: bool
) -> None:
    make_node("a", namespace="shop")
    if other is not None:
        make_node("b", **{"namespace": "shop"} | other)
    if has_jobs:
        make_idle_job(name="stock", namespace="shop")
    is_other_namespace = other == {"namespace": "mail"}
    out = call("nodes").out
    assert ("Any one node" in out) == (is_safe or (is_other_namespace and not has_jobs))
    assert ("If you stop a, nothing" in out) == (has_jobs and not is_safe)


@pytest.mark.django_db
def test_nodes_of_which_none_serves_a_job_do_not_replace_one_another() -> None:
    make_node("a")
    make_node("b")
    make_idle_job(namespace="shop")
    assert "Any one node" in call("nodes").out
    Node.objects.update(namespace="mail")
    assert "Any one node" not in call("nodes").out


@pytest.mark.django_db
def test_nodes_without_live_node_exits_with_1() -> None:
    code, out, err = call("nodes", "--json")
    assert (code, out) == (1, '{\n  "version": 1,\n  "nodes": []\n}\n')
    assert "manage.py runcron" in err


def test_nodes_of_a_namespace_without_live_node_names_the_namespace(system: System) -> None:
    Node.objects.update(namespace="shop")
    assert call("nodes", "--namespace", "shop").code == 0
    code, out, err = call("nodes", "--namespace", "bank")
    assert (code, out) == (1, "")
    assert "bank" in err
    assert err.endswith("manage.py runcron --namespace bank")


@pytest.mark.django_db
@pytest.mark.parametrize(
    "command",
    [("nodes",), ("nodes", "--namespace", "shop"), ("list",), ("why", "ping"), ("run", "ping")],
)
def test_autostart_changes_how_commands_tell_to_start_node(
    command: tuple[str, ...],
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(run_watch, "EXPLAIN_WAIT_AFTER", 0)
    make_idle_job(name="ping")
    settings.DCRON_AUTOSTART = True
    timeout = ("--timeout", "0s") if command[0] == "run" else ()
    _code, out, error = call(*command, *timeout)
    shown = f"{out}{error}{capsys.readouterr().err}"
    assert "with DCRON_AUTOSTART, its processes run the nodes." in shown
    assert "runcron" not in shown
