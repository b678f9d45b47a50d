"""Test the path from a job's runs to a message in a channel."""

from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F
from pytest_django import DjangoAssertNumQueries, Settings

from django_dcron import control
from django_dcron.conf import settings as dcron
from django_dcron.contrib.alerts import job_alerts, messages
from django_dcron.contrib.alerts.alerter import Alerter
from django_dcron.contrib.alerts.outbox import Message
from django_dcron.db.now import database_now
from django_dcron.jobs.pausing import open_circuits
from django_dcron.models import Alert, Attempt, Job, Notice, Run, Statistics
from django_dcron.policies.alerting import Event
from django_dcron.policies.lifecycle import State
from django_dcron.runs import transitions
from tests.contrib.alerts.conftest import Service
from tests.factories import make_idle_job, make_run
from tests.threads import in_threads

pytestmark = pytest.mark.django_db

FAILED: list[dict[str, Any]] = [{"on": "failed", "to": ["ops"]}]


class Leader:
    """The parts of a node's membership that the alerter uses."""

    id = "here-1"
    name = "here"
    namespace = ""
    degraded = False

    def __init__(self) -> None:
        self.shards = frozenset(range(dcron.SHARDS))


def end(job: Job, state: State = State.FAILED, message: str = "no more beans") -> None:
    """Create a run of the job and finish it in this state."""
    run = make_run(job, "running")
    columns = {"outcome": state, "message": message}
    token = Attempt.objects.get(run=run).token
    assert transitions.finish(
        run, 1, state, message if state is State.FAILED else "", columns, token
    )


def miss(job: Job, number: int = 1) -> None:
    for _ in range(number):
        assert transitions.end_unstarted(make_run(job), State.MISSED, "its time was over")


def test_a_failure_is_reported_once_with_what_it_said(service: Service, settings: Settings) -> None:
    settings.DCRON_ALERTS = FAILED
    settings.DCRON_SITE_URL = "https://shop.example/"
    alerter = Alerter(Leader())
    alerter.look()
    job = make_idle_job(name="grind")
    end(job)
    alerter.look()
    alerter.look()
    assert service.subjects == ["[dcron] grind failed"]
    text = service.received[0]["message"]
    assert "no more beans" in text
    assert f"https://shop.example/admin/django_dcron/job/{job.pk}/change/" in text
    assert f"https://shop.example/admin/django_dcron/run/{job.runs.get().pk}/change/" in text

    end(job)
    alerter.look()
    assert len(service.received) == 1, "the streak was told of"


def test_recovery_misses_and_the_circuit(service: Service, settings: Settings) -> None:
    settings.DCRON_ALERTS = [
        {"on": kind, "to": ["ops"]} for kind in ("recovered", "missed", "paused")
    ]
    alerter = Alerter(Leader())
    alerter.look()
    job = make_idle_job(name="grind", pause_after_failures=2)
    end(job)
    miss(job, 3)
    alerter.look()
    end(job, State.SUCCEEDED)
    alerter.look()
    for _ in range(2):
        end(job)
    assert open_circuits(Job.objects.filter(pk=job.pk)) == 1
    alerter.look()
    assert service.subjects == [
        "[dcron] grind missed 3 occurrences",
        "[dcron] grind has recovered",
        "[dcron] grind was paused automatically",
    ]
    assert "paused itself after 2 failed runs in a row" in service.received[2]["message"]

    control.resume(Job.objects.get(pk=job.pk))
    end(job)
    end(job)
    assert open_circuits(Job.objects.filter(pk=job.pk)) == 1
    alerter.look()
    assert service.subjects[3:] == ["[dcron] grind was paused automatically"], "each time it does"


def test_the_circuit_is_reported_whatever_ends_after_it_has_opened(
    service: Service, settings: Settings
) -> None:
    settings.DCRON_ALERTS = [{"on": "paused", "to": ["ops"]}]
    alerter = Alerter(Leader())
    alerter.look()
    job = make_idle_job(name="grind", pause_after_failures=1)
    end(job)
    assert open_circuits(Job.objects.filter(pk=job.pk)) == 1
    assert transitions.end_unstarted(make_run(job), State.CANCELLED, "no use")
    alerter.look()
    assert service.subjects == ["[dcron] grind was paused automatically"]


def test_a_pause_that_somebody_made_is_none_of_the_circuit(
    service: Service, settings: Settings
) -> None:
    settings.DCRON_ALERTS = [{"on": "paused", "to": ["ops"]}]
    alerter = Alerter(Leader())
    alerter.look()
    job = make_idle_job(name="grind", pause_after_failures=2)
    end(job)
    control.pause(job, "while the mill is cleaned")
    end(job)
    alerter.look()
    assert service.received == []


def test_what_happened_while_no_node_was_up_is_reported_also_if_nothing_ever_was(
    service: Service, settings: Settings
) -> None:
    settings.DCRON_ALERTS = [{"on": "missed", "to": ["ops"]}, *FAILED]
    first = Alerter(Leader())
    first.look()
    job = make_idle_job(name="grind")
    first.look()
    miss(job, 2)
    end(job)
    end(job, State.SUCCEEDED)
    Alerter(Leader()).look()  # another node, later
    assert len(service.received) == 1
    assert "grind missed 2 occurrences" in service.received[0]["message"]
    assert "grind failed" in service.received[0]["message"]


def test_an_end_that_was_dated_long_before_it_was_seen_is_found_later(
    service: Service, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DCRON_ALERTS = FAILED
    job = make_idle_job(name="grind")
    alerter = Alerter(Leader())
    alerter.look()
    end(job)
    Statistics.objects.update(last_finished_at=database_now("default") - timedelta(hours=1))
    alerter.look()
    assert service.received == []
    monkeypatch.setattr("django_dcron.contrib.alerts.alerter.ALL_EVERY", 0)
    alerter._next.clear()
    alerter.look()
    assert service.subjects == ["[dcron] grind failed"]


@pytest.mark.django_db(transaction=True)
def test_a_job_that_goes_while_it_is_looked_at_keeps_nobody_from_theirs(
    service: Service, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DCRON_ALERTS = FAILED
    gone, job = make_idle_job(name="gone"), make_idle_job(name="grind")
    alerter = Alerter(Leader())
    alerter.look()
    end(gone)
    end(job)
    worded = job_alerts._message

    def word_while_it_goes(event: Event, statistics: Statistics) -> Message:
        Job.objects.filter(pk=gone.pk).delete()
        return worded(event, statistics)

    monkeypatch.setattr(job_alerts, "_message", word_while_it_goes)
    alerter.look()
    assert service.subjects == ["[dcron] grind failed"]


def test_what_could_not_be_written_down_is_noticed_again(
    service: Service, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DCRON_ALERTS = FAILED
    job = make_idle_job(name="grind")
    alerter = Alerter(Leader())
    alerter.look()
    end(job)

    def dies(messages: list[Message]) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(job_alerts, "put", dies)
        with pytest.raises(KeyboardInterrupt):
            alerter.look()
    assert Notice.objects.get(pk=job.pk).failed == 0
    Alerter(Leader()).look()
    assert service.subjects == ["[dcron] grind failed"]


def test_more_jobs_than_are_looked_at_at_once_are_all_reported(
    service: Service, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_alerts, "BATCH_SIZE", 2)
    settings.DCRON_ALERTS = FAILED
    jobs = [make_idle_job() for _ in range(5)]
    alerter = Alerter(Leader())
    alerter.look()
    for job in jobs:
        end(job)
    for _ in range(4):
        alerter.look()
    assert sorted(Alert.objects.values_list("job", flat=True)) == [job.pk for job in jobs]


def test_a_link_is_below_the_path_of_the_site(service: Service, settings: Settings) -> None:
    settings.DCRON_SITE_URL = "https://shop.example/back/"
    assert messages._link("job", 7) == "https://shop.example/back/admin/django_dcron/job/7/change/"


def test_a_job_s_own_rules_count_instead(service: Service, settings: Settings) -> None:
    settings.DCRON_ALERTS = FAILED
    alerter = Alerter(Leader())
    alerter.look()
    silent = make_idle_job(name="silent", alerts=[])
    patient = make_idle_job(name="patient", alerts=[{"on": "failed", "to": ["ops"], "after": 2}])
    for job in (silent, patient, patient):
        end(job)
    alerter.look()
    assert service.subjects == ["[dcron] patient failed 2 times in a row"]


def test_what_was_counted_before_alerting_began_is_past_but_for_streaks_that_last(
    service: Service, settings: Settings
) -> None:
    settings.DCRON_ALERTS = [
        *FAILED,
        {"on": "missed", "to": ["ops"]},
        {"on": "recovered", "to": ["ops"]},
    ]
    failing, well = make_idle_job(name="failing"), make_idle_job(name="well")
    for job, ended in ((failing, "sff"), (well, "ffs")):
        miss(job)
        for state in ended:
            end(job, State.SUCCEEDED if state == "s" else State.FAILED)
    alerter = Alerter(Leader())
    alerter.look()
    assert service.subjects == ["[dcron] failing failed 2 times in a row"]


def test_what_nobody_looked_at_for_a_while_is_found_by_whoever_takes_over(
    service: Service, settings: Settings
) -> None:
    settings.DCRON_ALERTS = FAILED
    Alerter(Leader()).look()
    first, second = make_idle_job(), make_idle_job()
    one, other = Leader(), Leader()
    one.shards = frozenset({first.pk % dcron.SHARDS})
    other.shards = frozenset({second.pk % dcron.SHARDS})
    theirs = Alerter(one)
    end(first)
    end(second)
    theirs.look()
    assert service.subjects == [f"[dcron] {first} failed"]
    one.shards |= other.shards
    theirs.look()
    assert service.subjects == [f"[dcron] {first} failed", f"[dcron] {second} failed"]


@pytest.mark.django_db(transaction=True)
def test_two_nodes_that_notice_at_once_tell_once(service: Service, settings: Settings) -> None:
    settings.DCRON_ALERTS = FAILED
    Alerter(Leader()).look()
    for _ in range(20):
        end(make_idle_job())
    alerters = [Alerter(Leader()) for _ in range(3)]
    in_threads(*(alerter.look for alerter in alerters))
    for alerter in alerters:
        alerter.look()
    keys = list(Alert.objects.values_list("key", flat=True))
    assert len(keys) == len(set(keys)) == 20
    assert Alert.objects.filter(sent_at=None).count() == 0


def test_a_job_whose_channel_is_gone_is_reported_by_the_general_rules(
    service: Service, settings: Settings
) -> None:
    settings.DCRON_ALERTS = FAILED
    Alerter(Leader()).look()
    job = make_idle_job(name="grind")
    Job.objects.filter(pk=job.pk).update(alerts=[{"on": "failed", "to": ["gone"]}])
    end(job)
    Alerter(Leader()).look()
    assert service.subjects == ["[dcron] grind failed"]


def test_a_namespace_s_node_tells_of_its_own(service: Service, settings: Settings) -> None:
    settings.DCRON_ALERTS = FAILED
    Alerter(Leader()).look()
    end(make_idle_job(name="theirs"))
    end(make_idle_job(name="ours", namespace="shop"))
    leader = Leader()
    leader.namespace = "shop"
    Alerter(leader).look()
    assert service.subjects == ["[dcron] shop/ours failed"]


def test_a_look_at_a_thousand_jobs_that_do_well_is_cheap(
    settings: Settings, django_assert_max_num_queries: DjangoAssertNumQueries, service: Service
) -> None:
    settings.DCRON_ALERTS = FAILED
    alerter = Alerter(Leader())
    alerter.look()
    for _ in range(10):
        end(make_idle_job(), State.SUCCEEDED)
    alerter.look()
    with django_assert_max_num_queries(4):  # the clock, the jobs, and the outbox with its own clock
        alerter.look()
    assert set(Notice.objects.values_list("succeeded", flat=True)) == {0}, (
        "successes are not written down one by one"
    )
    assert service.received == []


def test_a_run_that_does_not_end_is_reported_once(service: Service, settings: Settings) -> None:
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
        Alerter(Leader()).look()
    assert service.subjects == ["[dcron] grind is late"]
    assert {"10m.", "running."} <= set(service.received[0]["message"].split())


def test_a_silent_job_is_reported_once_for_each_silence(
    service: Service, settings: Settings
) -> None:
    settings.DCRON_ALERTS = [{"on": "silent", "to": ["ops"], "for": "1d"}]
    job, paused = make_idle_job(name="grind"), make_idle_job(name="paused")
    control.pause(paused)
    Alerter(Leader()).look()
    assert service.received == [], "both were seen first just now"

    def two_days_pass() -> None:
        past = database_now("default") - timedelta(days=2)
        Notice.objects.update(success_at=past)
        Job.objects.update(updated_at=past - timedelta(days=1))

    two_days_pass()
    for _ in range(2):
        Alerter(Leader()).look()
    assert service.subjects == ["[dcron] grind has had no success for 1d"]

    end(job, State.SUCCEEDED)
    Alerter(Leader()).look()
    assert Notice.objects.get(job=job).success_at > database_now("default") - timedelta(minutes=5)
    two_days_pass()
    Alerter(Leader()).look()
    assert service.subjects == ["[dcron] grind has had no success for 1d"] * 2

    control.resume(paused)
    Alerter(Leader()).look()
    assert len(service.received) == 2, "nothing was expected of it while it was paused"


def test_a_silence_counts_from_the_last_success_not_from_when_somebody_saw_it(
    service: Service, settings: Settings
) -> None:
    settings.DCRON_ALERTS = [{"on": "silent", "to": ["ops"], "for": "2d"}]
    job = make_idle_job(name="grind")
    Alerter(Leader()).look()
    end(job, State.SUCCEEDED)
    day = timedelta(days=1)
    Run.objects.update(finished_at=F("finished_at") - day)
    Notice.objects.update(success_at=database_now("default") - 2 * day)
    end(job)
    Alerter(Leader()).look()
    assert abs(
        Notice.objects.get().success_at - Run.objects.get(state="succeeded").finished_at
    ) < timedelta(seconds=1)
