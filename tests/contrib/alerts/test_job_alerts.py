"""Test the path from a job's runs to a message in a channel."""

import re
from collections import deque
from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F
from pytest_django import DjangoAssertNumQueries, Settings

from django_dcron import control
from django_dcron.conf import settings as dcron
from django_dcron.contrib.alerts import job_alerts, messages, rules
from django_dcron.contrib.alerts.alerter import Alerter
from django_dcron.contrib.alerts.outbox import Message
from django_dcron.db.now import database_now
from django_dcron.execution.executor import execute
from django_dcron.jobs.attempt_end import end_attempt
from django_dcron.jobs.pausing import pause_failing_jobs
from django_dcron.models import Alert, AlertCheck, Attempt, Incident, Job, Run, Statistics
from django_dcron.models.statistics import count_ended_runs
from django_dcron.policies.incidents import IncidentState
from django_dcron.policies.lifecycle import Outcome, State
from django_dcron.policies.outages import Outage
from django_dcron.runs import endings
from django_dcron.runs.completion import Ending
from django_dcron.runs.endings import AttemptEnd
from django_dcron.runs.incidents import group_failed_attempts
from django_dcron.targets.shadow import NOT_EXECUTED, PREFIX
from django_dcron.utils.time_format import format_site_time
from tests.contrib.alerts.conftest import Service
from tests.factories import make_idle_job, make_job, make_run
from tests.logs import logged
from tests.threads import in_threads

pytestmark = pytest.mark.django_db

FAILED: list[dict[str, Any]] = [{"on": "failed", "to": ["ops"]}]


class Leader:
    """A node that leads all shards: the parts of its membership that the alerter uses."""

    id = "here-1"
    name = "here"
    namespace = ""
    degraded = False

    def __init__(self) -> None:
        self.shards = frozenset(range(dcron.SHARDS))
        self.outages: deque[Outage] = deque()


def finish_run(job: Job, state: State = State.FAILED, message: str = "no more beans") -> None:
    """Create a run of the job and finish it in this state."""
    run = make_run(job, "running")
    columns = {"outcome": state, "message": message}
    token = Attempt.objects.get(run=run).token
    assert endings.finish(
        run, AttemptEnd(1, columns, token), state, message if state is State.FAILED else ""
    )


def finish_shadow_run(job: Job) -> None:
    run = make_run(job, "running")
    token = Attempt.objects.get(run=run).token
    columns = {"outcome": State.SUCCEEDED}
    assert endings.finish(run, AttemptEnd(1, columns, token), State.SUCCEEDED, NOT_EXECUTED)


def miss_runs(job: Job, number: int = 1) -> None:
    for _ in range(number):
        assert endings.end_unstarted(make_run(job), State.MISSED, "its time was over")


def test_failure_is_reported_once_with_its_message_and_links(
    service: Service, settings: Settings
) -> None:
    settings.DCRON_ALERTS = FAILED
    settings.DCRON_SITE_URL = "https://shop.example/"
    settings.TIME_ZONE = "Asia/Tokyo"
    alerter = Alerter(Leader())
    alerter.check_and_send()
    job = make_idle_job(name="grind")
    finish_run(job)
    alerter.check_and_send()
    alerter.check_and_send()
    assert service.subjects == ["[dcron shop.example] grind failed"]
    text = service.received[0]["message"]
    assert "no more beans" in text
    assert " JST: failed" in text
    assert f"Job: https://shop.example/admin/django_dcron/job/{job.pk}/change/" in text
    assert f"Run: https://shop.example/admin/django_dcron/run/{job.runs.get().pk}/change/" in text

    finish_run(job)
    alerter.check_and_send()
    assert len(service.received) == 1, "the streak was reported before"


def test_recovery_misses_and_automatic_pauses_are_reported(
    service: Service, settings: Settings
) -> None:
    settings.DCRON_ALERTS = [
        {"on": kind, "to": ["ops"]} for kind in ("recovered", "missed", "paused")
    ]
    alerter = Alerter(Leader())
    alerter.check_and_send()
    job = make_idle_job(name="grind", pause_after_failures=2)
    finish_run(job)
    miss_runs(job, 3)
    alerter.check_and_send()
    finish_run(job, State.SUCCEEDED)
    alerter.check_and_send()
    for _ in range(2):
        finish_run(job)
    assert pause_failing_jobs(Job.objects.filter(pk=job.pk)) == 1
    alerter.check_and_send()
    assert service.subjects == [
        "[dcron] grind missed 3 occurrences",
        "[dcron] grind has recovered",
        "[dcron] grind was paused automatically",
    ]
    assert "paused automatically after 2 consecutive failed runs" in service.received[2]["message"]

    control.resume(Job.objects.get(pk=job.pk))
    finish_run(job)
    finish_run(job)
    assert pause_failing_jobs(Job.objects.filter(pk=job.pk)) == 1
    alerter.check_and_send()
    assert service.subjects[3:] == ["[dcron] grind was paused automatically"], (
        "every automatic pause is reported"
    )


def test_only_a_success_that_executes_the_target_is_a_recovery(
    service: Service, settings: Settings
) -> None:
    settings.DCRON_ALERTS = [{"on": "recovered", "to": ["ops"]}]
    alerter = Alerter(Leader())
    alerter.check_and_send()
    job = make_idle_job(name="grind")
    for _ in range(2):
        finish_run(job)
    alerter.check_and_send()
    for _ in range(2):
        finish_shadow_run(job)
        alerter.check_and_send()
    assert not service.received
    finish_run(job, State.SUCCEEDED)
    Job.objects.update(target=f"{PREFIX}{job.target}")
    finish_shadow_run(job)
    alerter.check_and_send()
    assert service.subjects == ["[dcron] grind has recovered"]
    assert "2 failed runs" in service.received[0]["message"]


def test_success_of_a_shadow_ends_its_silence_but_no_failures(
    service: Service, settings: Settings
) -> None:
    span = timedelta(hours=1)
    settings.DCRON_ALERTS = [
        {"on": "silent", "to": ["ops"], "for": span},
        {"on": "recovered", "to": ["ops"]},
    ]
    alerter = Alerter(Leader())
    alerter.check_and_send()
    job = make_idle_job(name="grind", target=f"{PREFIX}tests.app.tasks.ok")
    alerter.check_and_send()
    finish_shadow_run(job)
    long_ago = database_now("default") - 2 * span
    Job.objects.update(updated_at=long_ago)
    AlertCheck.objects.update(success_at=long_ago)
    alerter._next_at.clear()
    alerter.check_and_send()
    assert not service.received
    assert AlertCheck.objects.get().success_at > long_ago
    finish_run(job)
    finish_run(job, State.SUCCEEDED)
    alerter.check_and_send()
    assert service.subjects == ["[dcron] grind has recovered"]


def test_missed_alerts_of_one_job_name_the_runs_that_count_the_occurrences(
    service: Service, settings: Settings
) -> None:
    """With ``run_latest``, a run that starts counts the occurrences that were missed before it."""
    settings.DCRON_ALERTS = [{"on": "missed", "to": ["ops"]}]
    alerter = Alerter(Leader())
    alerter.check_and_send()
    job, now = make_idle_job(name="grind"), database_now("default")
    miss_runs(job)
    Run.objects.update(scheduled_at=now - timedelta(hours=1))
    missed = Run.objects.get()
    alerter.check_and_send()
    for number in (1, 2):
        missed_from = now - timedelta(minutes=10 * number)
        run = make_run(job, scheduled_at=now + timedelta(minutes=number), missed_before=number)
        Run.objects.filter(pk=run.pk).update(missed_from=missed_from)
        count_ended_runs([job.pk], State.MISSED, number)
        Alert.objects.all().delete()
        alerter.check_and_send()
        (alert,) = Alert.objects.all()
        assert format_site_time(run.scheduled_at) in alert.text
        assert format_site_time(missed_from) in alert.text
        assert format_site_time(missed.scheduled_at) not in alert.text


@pytest.mark.parametrize("failures_after_resuming", [0, 1])
def test_recovery_is_reported_once_if_the_job_was_resumed_before(
    service: Service, settings: Settings, failures_after_resuming: int
) -> None:
    settings.DCRON_ALERTS = [{"on": "recovered", "to": ["ops"], "after": 2}]
    alerter = Alerter(Leader())
    alerter.check_and_send()
    job = make_idle_job(name="grind", pause_after_failures=2)
    finish_run(job, State.SUCCEEDED)
    for _ in range(2):
        finish_run(job)
    assert pause_failing_jobs(Job.objects.filter(pk=job.pk)) == 1
    alerter.check_and_send()
    control.resume(Job.objects.get(pk=job.pk))
    alerter.check_and_send()
    for _ in range(failures_after_resuming):
        finish_run(job)
        alerter.check_and_send()
    assert service.received == []
    assert AlertCheck.objects.get().consecutive_failures == failures_after_resuming
    for _ in range(2):
        finish_run(job, State.SUCCEEDED)
        alerter.check_and_send()
    assert service.subjects == ["[dcron] grind has recovered"]
    assert "after 2 failed runs in a row" in service.received[0]["message"]
    assert AlertCheck.objects.get().succeeded == 2, "the second success wasn't recorded"


def test_automatic_pause_is_reported_even_if_a_run_ends_afterwards(
    service: Service, settings: Settings
) -> None:
    settings.DCRON_ALERTS = [{"on": "paused", "to": ["ops"]}]
    alerter = Alerter(Leader())
    alerter.check_and_send()
    job = make_idle_job(name="grind", pause_after_failures=1)
    finish_run(job)
    assert pause_failing_jobs(Job.objects.filter(pk=job.pk)) == 1
    assert endings.end_unstarted(make_run(job), State.CANCELLED, "no use")
    alerter.check_and_send()
    assert service.subjects == ["[dcron] grind was paused automatically"]


@pytest.mark.parametrize(
    "ends", [[[State.FAILED], [State.SUCCEEDED]], [[State.SUCCEEDED, State.FAILED]]]
)
def test_automatic_pause_is_not_reported_again_after_manual_runs(
    service: Service, settings: Settings, ends: list[list[State]]
) -> None:
    settings.DCRON_ALERTS = [{"on": "paused", "to": ["ops"]}]
    alerter = Alerter(Leader())
    alerter.check_and_send()
    job = make_idle_job(name="grind", pause_after_failures=2)
    for _ in range(2):
        finish_run(job)
    assert pause_failing_jobs(Job.objects.filter(pk=job.pk)) == 1
    alerter.check_and_send()
    for between_checks in ends:
        for state in between_checks:
            finish_run(job, state)
        alerter.check_and_send()
    assert service.subjects == ["[dcron] grind was paused automatically"]


def test_manual_pause_is_not_reported(service: Service, settings: Settings) -> None:
    settings.DCRON_ALERTS = [{"on": "paused", "to": ["ops"]}]
    alerter = Alerter(Leader())
    alerter.check_and_send()
    job = make_idle_job(name="grind", pause_after_failures=2)
    finish_run(job)
    control.pause(job, "while the mill is cleaned")
    finish_run(job)
    alerter.check_and_send()
    assert service.received == []


def test_events_without_a_running_node_are_reported_later(
    service: Service, settings: Settings
) -> None:
    settings.DCRON_ALERTS = [{"on": "missed", "to": ["ops"]}, *FAILED]
    first = Alerter(Leader())
    first.check_and_send()
    job = make_idle_job(name="grind")
    first.check_and_send()
    miss_runs(job, 2)
    finish_run(job)
    finish_run(job, State.SUCCEEDED)
    Alerter(Leader()).check_and_send()  # another node, later
    assert len(service.received) == 1
    assert "grind missed 2 occurrences" in service.received[0]["message"]
    assert "grind failed" in service.received[0]["message"]


def test_run_with_an_old_finish_time_is_found_by_the_full_check(
    service: Service, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DCRON_ALERTS = FAILED
    job = make_idle_job(name="grind")
    alerter = Alerter(Leader())
    alerter.check_and_send()
    finish_run(job)
    Statistics.objects.update(last_finished_at=database_now("default") - timedelta(hours=1))
    alerter.check_and_send()
    assert service.received == []
    monkeypatch.setattr("django_dcron.contrib.alerts.alerter.ALL_JOBS_EVERY", 0)
    alerter._next_at.clear()
    alerter.check_and_send()
    assert service.subjects == ["[dcron] grind failed"]


@pytest.mark.django_db(transaction=True)
def test_job_deleted_during_the_check_does_not_affect_others(
    service: Service, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DCRON_ALERTS = FAILED
    gone, job = make_idle_job(name="gone"), make_idle_job(name="grind")
    alerter = Alerter(Leader())
    alerter.check_and_send()
    finish_run(gone)
    finish_run(job)
    make_message = job_alerts._message

    def delete_job_then_make_message(*args: Any) -> Message:
        Job.objects.filter(pk=gone.pk).delete()
        return make_message(*args)

    monkeypatch.setattr(job_alerts, "_message", delete_job_then_make_message)
    alerter.check_and_send()
    assert service.subjects == ["[dcron] grind failed"]


def test_event_is_detected_again_if_its_alert_was_not_written(
    service: Service, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DCRON_ALERTS = FAILED
    job = make_idle_job(name="grind")
    alerter = Alerter(Leader())
    alerter.check_and_send()
    finish_run(job)

    def dies(messages: list[Message]) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(job_alerts, "store_alerts", dies)
        with pytest.raises(KeyboardInterrupt):
            alerter.check_and_send()
    assert AlertCheck.objects.get(pk=job.pk).failed == 0
    Alerter(Leader()).check_and_send()
    assert service.subjects == ["[dcron] grind failed"]


def test_jobs_beyond_the_batch_size_are_all_reported(
    service: Service, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_alerts, "BATCH_SIZE", 2)
    settings.DCRON_ALERTS = FAILED
    jobs = [make_idle_job() for _ in range(5)]
    alerter = Alerter(Leader())
    alerter.check_and_send()
    for job in jobs:
        finish_run(job)
    for _ in range(4):
        alerter.check_and_send()
    assert sorted(Alert.objects.values_list("job", flat=True)) == [job.pk for job in jobs]


def test_link_includes_the_path_of_the_site_url(service: Service, settings: Settings) -> None:
    settings.DCRON_SITE_URL = "https://shop.example/back/"
    link = messages._link("Job", "job_change", 7)
    assert link == "Job: https://shop.example/back/admin/django_dcron/job/7/change/"


def test_alert_about_an_exception_names_the_line_that_raised_it(
    service: Service, settings: Settings
) -> None:
    settings.DCRON_ALERTS = FAILED
    alerter = Alerter(Leader())
    alerter.check_and_send()
    run = make_run(make_job(target="tests.app.tasks.fail"))
    assert execute(run.pk, run.attempt, worker="w")
    alerter.check_and_send()
    text = service.received[0]["message"]
    assert re.search(r'^File ".*tests/app/tasks\.py", line \d+, in fail$', text, re.MULTILINE)


def test_rules_of_a_job_replace_the_general_rules(service: Service, settings: Settings) -> None:
    settings.DCRON_ALERTS = FAILED
    alerter = Alerter(Leader())
    alerter.check_and_send()
    silent = make_idle_job(name="silent", alerts=[])
    patient = make_idle_job(name="patient", alerts=[{"on": "failed", "to": ["ops"], "after": 2}])
    for job in (silent, patient, patient):
        finish_run(job)
    alerter.check_and_send()
    assert service.subjects == ["[dcron] patient failed 2 times in a row"]


def test_first_check_reports_only_ongoing_failure_streaks(
    service: Service, settings: Settings
) -> None:
    settings.DCRON_ALERTS = [
        *FAILED,
        {"on": "missed", "to": ["ops"]},
        {"on": "recovered", "to": ["ops"]},
    ]
    failing, well = make_idle_job(name="failing"), make_idle_job(name="well")
    for job, ended in ((failing, "sff"), (well, "ffs")):
        miss_runs(job)
        for state in ended:
            finish_run(job, State.SUCCEEDED if state == "s" else State.FAILED)
    alerter = Alerter(Leader())
    alerter.check_and_send()
    assert service.subjects == ["[dcron] failing failed 2 times in a row"]


def test_first_check_reports_no_jobs_that_are_not_enabled(
    service: Service, settings: Settings
) -> None:
    settings.DCRON_ALERTS = [{"on": kind, "to": ["ops"]} for kind in ("failed", "paused")]
    removed = make_idle_job(name="removed")
    tripped = make_idle_job(name="tripped", pause_after_failures=1)
    for job in (removed, tripped):
        finish_run(job)
    control.pause(removed, "no longer declared")
    assert pause_failing_jobs(Job.objects.filter(pk=tripped.pk)) == 1
    alerter = Alerter(Leader())
    alerter.check_and_send()
    assert service.received == []

    control.resume(Job.objects.get(pk=removed.pk))
    finish_run(removed)
    alerter.check_and_send()
    assert service.subjects == ["[dcron] removed failed"], "a later failure is reported"


@pytest.mark.parametrize("auto_paused", [False, True])
@pytest.mark.parametrize(
    ("steps", "subjects"),
    [
        (["fail"], ["[dcron] grind failed"]),
        (["succeed"], []),
        (["resume, succeed"], []),
        (["resume", "succeed"], []),
        (["resume", "fail", "succeed"], ["[dcron] grind failed", "[dcron] grind has recovered"]),
    ],
)
def test_first_check_does_not_count_failures_of_paused_jobs_as_reported(
    service: Service,
    settings: Settings,
    auto_paused: bool,
    steps: list[str],
    subjects: list[str],
) -> None:
    settings.DCRON_ALERTS = [
        {"on": kind, "to": ["ops"]} for kind in ("failed", "recovered", "paused")
    ]
    job = make_idle_job(name="grind", pause_after_failures=1 if auto_paused else None)
    finish_run(job)
    if auto_paused:
        assert pause_failing_jobs(Job.objects.filter(pk=job.pk)) == 1
    else:
        control.pause(job, "no longer declared")
    alerter = Alerter(Leader())
    alerter.check_and_send()
    actions = {
        "fail": lambda: finish_run(job),
        "succeed": lambda: finish_run(job, State.SUCCEEDED),
        "resume": lambda: control.resume(Job.objects.get(pk=job.pk)),
    }
    for step in steps:
        for action in step.split(", "):
            actions[action]()
        alerter.check_and_send()
    assert service.subjects == subjects


def test_events_of_a_shard_are_found_by_its_next_leader(
    service: Service, settings: Settings
) -> None:
    settings.DCRON_ALERTS = FAILED
    Alerter(Leader()).check_and_send()
    first, second = make_idle_job(), make_idle_job()
    one, other = Leader(), Leader()
    one.shards = frozenset({first.pk % dcron.SHARDS})
    other.shards = frozenset({second.pk % dcron.SHARDS})
    alerter = Alerter(one)
    finish_run(first)
    finish_run(second)
    alerter.check_and_send()
    assert service.subjects == [f"[dcron] {first} failed"]
    one.shards |= other.shards
    alerter.check_and_send()
    assert service.subjects == [f"[dcron] {first} failed", f"[dcron] {second} failed"]


@pytest.mark.django_db(transaction=True)
def test_concurrent_alerters_report_each_event_once(service: Service, settings: Settings) -> None:
    settings.DCRON_ALERTS = FAILED
    Alerter(Leader()).check_and_send()
    for _ in range(20):
        finish_run(make_idle_job())
    alerters = [Alerter(Leader()) for _ in range(3)]
    in_threads(*(alerter.check_and_send for alerter in alerters))
    for alerter in alerters:
        alerter.check_and_send()
    keys = list(Alert.objects.values_list("key", flat=True))
    assert len(keys) == len(set(keys)) == 20
    assert Alert.objects.filter(sent_at=None).count() == 0


@pytest.mark.parametrize("channel", ["gone", "invalid"])
def test_general_rules_apply_if_the_channel_of_a_job_rule_is_missing_or_invalid(
    service: Service, settings: Settings, channel: str
) -> None:
    settings.DCRON_ALERTS = FAILED
    settings.DCRON_ALERT_CHANNELS |= {"invalid": {"apprise": 8899}}
    Alerter(Leader()).check_and_send()
    job = make_idle_job(name="grind")
    Job.objects.filter(pk=job.pk).update(alerts=[{"on": "failed", "to": [channel]}])
    finish_run(job)
    Alerter(Leader()).check_and_send()
    assert service.subjects == ["[dcron] grind failed"]


@pytest.mark.parametrize(
    ("own", "applied"),
    [
        ([("failed", "ops chat")], [("failed", "ops")]),
        ([("failed", "gone ops")], [("failed", "ops")]),
        ([("failed", "chat"), ("paused", "ops")], [("paused", "ops"), ("failed", "mail")]),
        ([("paused", "chat"), ("failed", "ops")], [("failed", "ops")]),
        ([("paused", "gone")], [("failed", "mail"), ("missed", "mail")]),
        ([], []),
    ],
)
def test_only_a_job_rule_without_any_usable_channel_is_replaced(
    settings: Settings,
    caplog: pytest.LogCaptureFixture,
    own: list[tuple[str, str]],
    applied: list[tuple[str, str]],
) -> None:
    settings.DCRON_ALERT_CHANNELS = {
        "ops": {"mail": "ops@example.com"},
        "mail": {"mail": "all@example.com"},
        "chat": {"apprise": 8899},
    }
    settings.DCRON_ALERTS = [
        {"on": kind, "to": ["mail"]} for kind in ("failed", "missed", "unhealthy")
    ]
    value = [{"on": kind, "to": channels.split()} for kind, channels in own]
    found = rules.rules_of_job("grind", value, rules.rules_of_settings())
    assert [(rule.on, *rule.to) for rule in found] == applied
    named = {channel for _kind, channels in own for channel in channels.split()}
    assert len(logged(caplog, "alert_rules", job="grind")) == len(named & {"chat", "gone"})
    assert len(logged(caplog, "alert_rules", "'chat' has")) == len(named & {"chat"})


def test_job_rule_applies_although_its_channel_sends_nothing(
    service: Service, settings: Settings
) -> None:
    settings.DCRON_ALERTS = FAILED
    settings.DCRON_ALERT_CHANNELS |= {"nobody": {"mail": []}}
    Alerter(Leader()).check_and_send()
    finish_run(make_idle_job(name="grind", alerts=[{"on": "failed", "to": ["nobody"]}]))
    Alerter(Leader()).check_and_send()
    assert service.subjects == []
    assert Alert.objects.count() == 0


def test_node_of_a_namespace_reports_only_its_jobs(service: Service, settings: Settings) -> None:
    settings.DCRON_ALERTS = FAILED
    Alerter(Leader()).check_and_send()
    finish_run(make_idle_job(name="theirs"))
    finish_run(make_idle_job(name="ours", namespace="shop"))
    leader = Leader()
    leader.namespace = "shop"
    Alerter(leader).check_and_send()
    assert service.subjects == ["[dcron] shop/ours failed"]


def test_check_of_successful_jobs_needs_few_queries(
    settings: Settings, django_assert_max_num_queries: DjangoAssertNumQueries, service: Service
) -> None:
    settings.DCRON_ALERTS = FAILED
    alerter = Alerter(Leader())
    alerter.check_and_send()
    for _ in range(10):
        finish_run(make_idle_job(), State.SUCCEEDED)
    alerter.check_and_send()
    with django_assert_max_num_queries(4):  # the clock, the jobs, and the outbox with its own clock
        alerter.check_and_send()
    assert set(AlertCheck.objects.values_list("succeeded", flat=True)) == {0}, (
        "successes are not recorded individually"
    )
    assert service.received == []


def test_late_run_is_reported_once(service: Service, settings: Settings) -> None:
    settings.DCRON_ALERTS = [{"on": "late", "to": ["ops"], "within": "10m"}]
    now = database_now("default")
    job, patient = (
        make_idle_job(name="grind"),
        make_idle_job(name="patient", alerts=[{"on": "late", "to": ["ops"], "within": "2h"}]),
    )
    long_ago = now - timedelta(hours=1)
    make_run(job, "running", scheduled_at=long_ago.replace(microsecond=0), claimed_at=long_ago)
    make_run(patient, "running", scheduled_at=long_ago.replace(microsecond=0), claimed_at=long_ago)
    make_run(job, "succeeded", scheduled_at=long_ago + timedelta(seconds=3), claimed_at=long_ago)
    make_run(
        job,
        "running",
        trigger="backfill",
        scheduled_at=long_ago - timedelta(days=9),
        claimed_at=now,
    )
    for _ in range(2):
        Alerter(Leader()).check_and_send()
    assert service.subjects == ["[dcron] grind is late"]
    assert {"10m.", "running."} <= set(service.received[0]["message"].split())


def test_silent_job_is_reported_once_for_each_silence(service: Service, settings: Settings) -> None:
    settings.DCRON_ALERTS = [{"on": "silent", "to": ["ops"], "for": "1d"}]
    job, paused = make_idle_job(name="grind"), make_idle_job(name="paused")
    control.pause(paused)
    Alerter(Leader()).check_and_send()
    assert service.received == [], "both jobs were checked for the first time"

    def two_days_pass() -> None:
        past = database_now("default") - timedelta(days=2)
        AlertCheck.objects.update(success_at=past)
        Job.objects.update(updated_at=past - timedelta(days=1))

    two_days_pass()
    for _ in range(2):
        Alerter(Leader()).check_and_send()
    assert service.subjects == ["[dcron] grind has had no success for 1d"]

    finish_run(job, State.SUCCEEDED)
    Alerter(Leader()).check_and_send()
    assert AlertCheck.objects.get(job=job).success_at > database_now("default") - timedelta(
        minutes=5
    )
    two_days_pass()
    Alerter(Leader()).check_and_send()
    assert service.subjects == ["[dcron] grind has had no success for 1d"] * 2

    control.resume(paused)
    Alerter(Leader()).check_and_send()
    assert len(service.received) == 2, "a paused job isn't expected to run"


def test_silence_is_the_time_since_the_last_success(service: Service, settings: Settings) -> None:
    settings.DCRON_ALERTS = [{"on": "silent", "to": ["ops"], "for": "2d"}]
    job = make_idle_job(name="grind")
    Alerter(Leader()).check_and_send()
    finish_run(job, State.SUCCEEDED)
    day = timedelta(days=1)
    Run.objects.update(finished_at=F("finished_at") - day)
    AlertCheck.objects.update(success_at=database_now("default") - 2 * day)
    finish_run(job)
    Alerter(Leader()).check_and_send()
    assert abs(
        AlertCheck.objects.get().success_at - Run.objects.get(state="succeeded").finished_at
    ) < timedelta(seconds=1)


def fail_in_incident(job: Job, message: str) -> Run:
    """Fail a run as a worker does, so that it belongs to an incident."""
    run = make_run(job, "running")
    assert end_attempt(run, 1, Ending(Outcome.FAILED, exception_class="Jam", message=message))
    return run


def mute_incident(job: Job, message: str) -> None:
    group_failed_attempts(job_id=job.pk)
    incident = Incident.objects.get(job=job, message=message)
    control.set_incident_state(incident, IncidentState.MUTED)


def test_alert_links_to_its_incident_job_and_run(service: Service, settings: Settings) -> None:
    settings.DCRON_ALERTS = FAILED
    settings.DCRON_SITE_URL = "https://shop.example/"
    alerter = Alerter(Leader())
    alerter.check_and_send()
    job = make_idle_job()
    run = fail_in_incident(job, "no more beans")
    alerter.check_and_send()
    alert, incident = Alert.objects.get(), Incident.objects.get()
    assert (alert.incident, alert.run, alert.job) == (incident, run.pk, job)
    text = service.received[0]["message"]
    for model, key in (("incident", incident.pk), ("run", run.pk), ("job", job.pk)):
        assert f"https://shop.example/admin/django_dcron/{model}/{key}/change/" in text


def test_muted_incident_sends_no_alerts_not_even_about_recovery(
    service: Service, settings: Settings
) -> None:
    settings.DCRON_ALERTS = [{"on": kind, "to": ["ops"]} for kind in ("failed", "recovered")]
    alerter = Alerter(Leader())
    job = make_idle_job(name="grind")
    fail_in_incident(job, "a")
    alerter.check_and_send()
    finish_run(job, State.SUCCEEDED)
    alerter.check_and_send()
    assert len(Alert.objects.all()) == 2
    mute_incident(job, "a")
    for _ in range(2):
        fail_in_incident(job, "a")
        alerter.check_and_send()
    finish_run(job, State.SUCCEEDED)
    alerter.check_and_send()
    assert len(Alert.objects.all()) == 2


@pytest.mark.parametrize("is_muted_at_first", [False, True])
def test_auto_pause_is_reported_again_although_its_failures_are_muted(
    service: Service, settings: Settings, is_muted_at_first: bool
) -> None:
    settings.DCRON_ALERTS = [{"on": "paused", "to": ["ops"]}]
    alerter = Alerter(Leader())
    job = make_idle_job(pause_after_failures=2)
    alerter.check_and_send()

    def fail_until_paused() -> None:
        for _ in range(2):
            fail_in_incident(job, "a")
        assert not Job.objects.get().enabled

    fail_until_paused()
    if is_muted_at_first:
        mute_incident(job, "a")
    alerter.check_and_send()
    assert Alert.objects.count() == 1
    control.resume(Job.objects.get())
    finish_run(job, State.SUCCEEDED)
    if not is_muted_at_first:
        mute_incident(job, "a")
    fail_until_paused()
    alerter.check_and_send()
    assert Alert.objects.count() == 2


def test_other_failure_among_muted_ones_is_reported(service: Service, settings: Settings) -> None:
    settings.DCRON_ALERTS = [{"on": "failed", "to": ["ops"], "after": 2}]
    alerter = Alerter(Leader())
    job = make_idle_job()
    fail_in_incident(job, "a")
    alerter.check_and_send()
    mute_incident(job, "a")
    # One failure counted before its incident was muted.
    for message in ("a", "a"):
        fail_in_incident(job, message)
        alerter.check_and_send()
    assert not Alert.objects.exists()
    other = fail_in_incident(job, "b")
    fail_in_incident(job, "a")
    alerter.check_and_send()
    alert = Alert.objects.get()
    assert (alert.run, alert.incident) == (other.pk, Incident.objects.get(message="b"))


def test_every_failure_but_the_muted_ones_is_reported(service: Service, settings: Settings) -> None:
    settings.DCRON_ALERTS = [{"on": "failed", "to": ["ops"], "after": "every"}]
    alerter = Alerter(Leader())
    job = make_idle_job()
    fail_in_incident(job, "a")
    mute_incident(job, "a")
    alerter.check_and_send()
    for message in ("a", "b", "a", "b"):
        fail_in_incident(job, message)
        alerter.check_and_send()
    assert Alert.objects.count() == 2
    assert {alert.incident for alert in Alert.objects.all()} == {Incident.objects.get(message="b")}
