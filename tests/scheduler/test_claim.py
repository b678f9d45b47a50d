"""Test the claim on a real database: each occurrence becomes exactly one row."""

import threading
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from unittest import mock

import pytest
from django.db import OperationalError, connection, connections, transaction
from django.test.utils import CaptureQueriesContext
from pytest_django import DjangoAssertNumQueries, Settings

from django_dcron import control
from django_dcron.db.contention import is_contention
from django_dcron.db.session_limits import WaitLimits
from django_dcron.exceptions import Conflict
from django_dcron.jobs import cursors, placement
from django_dcron.jobs.cursors import move_outdated_cursors, retry_quarantined
from django_dcron.models import Cursor, Job, Run, Statistics
from django_dcron.models.job_states import EXHAUSTED
from django_dcron.policies.jitter import jitter_delay
from django_dcron.scheduler import claim as scheduler_claim
from django_dcron.scheduler.claim import Claim, claim
from django_dcron.schedules.schedule import parse_schedule
from tests.factories import make_job, make_run
from tests.lock_holder import keeping_locked, keeping_open
from tests.logs import logged
from tests.waiting import TIMEOUT

ALL = range(64)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)

T = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
"""The current time in these tests: a whole hour. A claim uses the time that it is given."""

MANY = 200
"""More batches than any test here needs."""

pytestmark = pytest.mark.django_db


def job_due_at(next_at: datetime, **fields: object) -> Job:
    """Return a job whose cursor is at ``next_at``."""
    job = make_job(**fields)
    Cursor.objects.filter(pk=job.pk).update(next_at=next_at, previous_at=None)
    return job


def claim_at(now: datetime, **options: object) -> Claim:
    return claim(options.pop("shards", ALL), now, node="a", **options)  # type: ignore[arg-type]


def claim_all(now: datetime) -> None:
    for _ in range(MANY):
        if not claim_at(now).considered:
            return
    raise AssertionError(f"something is always due: {list(Cursor.objects.values())}")


def scheduled(job: Job) -> list[datetime]:
    return list(
        Run.objects.filter(job=job).order_by("scheduled_at").values_list("scheduled_at", flat=True)
    )


def next_at(job: Job) -> datetime | None:
    return Cursor.objects.get(pk=job.pk).next_at


# --- each occurrence exactly once ---------------------------------------------------------------


def test_each_occurrence_gets_one_run_whenever_ticks_happen() -> None:
    job = job_due_at(T)
    claimed = []
    for milliseconds in (0, 1, 400, 400, 999, 1000, 3700, 3700, 12_345):
        claimed += claim_at(T + timedelta(milliseconds=milliseconds)).runs
    expected = [T + n * SECOND for n in range(23)]  # up to 12 s, plus the look-ahead of 10 s
    assert scheduled(job) == expected
    assert sorted(run.due_at for run in claimed) == expected
    assert {run.run_id for run in claimed} == set(Run.objects.values_list("pk", flat=True))
    assert next_at(job) == T + 23 * SECOND


def test_occurrences_are_claimed_up_to_the_look_ahead(settings: Settings) -> None:
    settings.DCRON_LOOK_AHEAD = timedelta(seconds=3)
    job = job_due_at(T)
    claim_at(T + timedelta(microseconds=1))
    assert scheduled(job) == [T + n * SECOND for n in range(4)]
    claim_at(T - HOUR)
    assert len(scheduled(job)) == 4


def test_claim_fills_in_the_fields_of_the_run() -> None:
    job = job_due_at(T, schedule="0 * * * *", queue="q", priority=3, timeout=timedelta(seconds=90))
    (due,) = claim_at(T).runs
    run = Run.objects.get()
    assert (run.state, run.trigger, run.attempt, run.node, run.slot) == (
        "pending",
        "schedule",
        1,
        "a",
        None,
    )
    assert (run.scheduled_at, run.due_at, run.claimed_at) == (T, T, T)
    assert (run.missed_before, run.missed_from, run.deliveries) == (0, None, 0)
    assert (due.key, due.job_id, due.job_name) == ((run.pk, 1), job.pk, job.name)
    assert (due.target, due.queue, due.priority, due.timeout) == (
        "tests.app.tasks.ok",
        "q",
        3,
        job.timeout,
    )


def test_interval_keeps_its_phase_after_an_outage() -> None:
    job = job_due_at(T, schedule="@every 7s", misfire_grace=SECOND)
    claim_at(T)
    claim_at(T + 1000 * SECOND)
    claim_at(T + 1003 * SECOND)
    assert {(at - T) % (7 * SECOND) for at in [*scheduled(job), next_at(job)] if at} == {
        timedelta()
    }
    assert next_at(job) == T + 1015 * SECOND


def test_oldest_cursors_are_claimed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_claim, "CLAIMED_AT_ONCE", 3)
    jobs = [job_due_at(T - n * MINUTE, schedule="* * * * *") for n in range(7)]
    first = claim_at(T)
    assert first.considered == 3
    assert {run.job_id for run in first.runs} == {job.pk for job in jobs[-3:]}
    assert [claim_at(T).considered for _ in range(3)] == [3, 1, 0]
    assert all(T in scheduled(job) for job in jobs)


def test_occurrence_with_a_run_gets_no_second_run() -> None:
    job = job_due_at(T)
    made = make_run(job, "succeeded", scheduled_at=T + SECOND)
    claim_at(T)
    assert scheduled(job) == [T + n * SECOND for n in range(11)]
    made.refresh_from_db()
    assert made.state == "succeeded"
    assert Run.objects.filter(job=job, scheduled_at=T + SECOND).count() == 1
    assert next_at(job) == T + 11 * SECOND


def test_only_led_shards_are_claimed() -> None:
    jobs = [job_due_at(T) for _ in range(6)]
    led = {jobs[0].pk % 64, jobs[3].pk % 64}
    claim_at(T, shards=led)
    assert {run.job_id for run in Run.objects.all()} == {jobs[0].pk, jobs[3].pk}
    assert claim_at(T, shards=()).considered == 0


def test_occurrences_of_other_nodes_cost_one_query(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    job = job_due_at(T, namespace="shop")
    with django_assert_num_queries(1):
        claim_at(T, shards=set(ALL) - {job.pk % 64})
    with django_assert_num_queries(1):
        claim_at(T, namespace="other")


def test_only_the_served_namespace_is_claimed() -> None:
    own, other = job_due_at(T, namespace="shop"), job_due_at(T, namespace="other")
    claim_at(T, namespace="shop")
    assert (len(scheduled(own)), len(scheduled(other))) == (11, 0)
    claim_at(T)
    assert len(scheduled(other)) == 11


def test_hash_in_a_schedule_depends_on_namespace_and_name() -> None:
    first, second = (job_due_at(T, schedule="H H * * *", namespace=name) for name in ("a", "b"))
    assert first.hash_key == f"a/{first.name}"
    for job in (first, second):
        claim_at(T, namespace=job.namespace)
        assert next_at(job) == parse_schedule("H H * * *", hash_key=job.hash_key).next_after(T)
    assert next_at(first) != next_at(second)


def test_jitter_delays_only_the_due_time() -> None:
    job = job_due_at(T, schedule="0 * * * *", jitter=MINUTE)
    (due,) = claim_at(T).runs
    run = Run.objects.get()
    assert run.scheduled_at == T
    assert run.due_at == due.due_at == T + jitter_delay(job.pk, T, MINUTE)
    assert T <= run.due_at <= T + MINUTE


def test_paused_job_is_not_claimed() -> None:
    job = make_job()
    control.pause(job)
    assert claim_at(T + timedelta(days=3650)).considered == 0


# Two of the queries set the limit for idle transactions.
@pytest.mark.parametrize(("outage", "limit"), [(timedelta(), 7), (HOUR, 9)])
def test_number_of_queries_does_not_grow_with_the_number_of_jobs(
    outage: timedelta, limit: int
) -> None:
    def queries(jobs: int) -> int:
        Run.objects.all().delete()
        for _ in range(jobs):
            make_job(schedule="*/10 * * * *")
        Cursor.objects.update(next_at=T)
        with CaptureQueriesContext(connection) as captured:
            claimed = claim_at(T + outage)
        assert claimed.considered >= jobs
        assert bool(claimed.missed) is bool(outage)
        return len(captured)

    few, many = queries(10), queries(200)
    # SQLite limits the number of parameters of one statement.
    if connection.features.max_query_params:
        assert many <= few + 400 * 30 // connection.features.max_query_params
    else:
        assert few == many <= limit


# --- after an outage ----------------------------------------------------------------------------
# A job that runs every minute wasn't claimed for an hour. Its misfire grace is one minute, so
# T - 60 min to T - 2 min are late.


def test_run_latest_runs_one_late_occurrence_and_counts_the_others() -> None:
    job = job_due_at(T - HOUR, schedule="* * * * *", misfire_policy="run_latest")
    claimed = claim_at(T)
    latest, in_grace, present = Run.objects.filter(job=job).order_by("scheduled_at")
    assert (latest.scheduled_at, latest.state) == (T - 2 * MINUTE, "pending")
    assert (latest.missed_before, latest.missed_from) == (58, T - HOUR)
    assert [run.missed_before for run in (in_grace, present)] == [0, 0]
    assert (in_grace.scheduled_at, present.scheduled_at) == (T - MINUTE, T)
    assert (len(claimed.runs), claimed.missed) == (3, 58)
    assert next_at(job) == T + MINUTE


def test_skip_records_late_occurrences_as_missed() -> None:
    job = job_due_at(T - HOUR, schedule="* * * * *", misfire_policy="skip")
    claimed = claim_at(T)
    missed, *others = Run.objects.filter(job=job).order_by("scheduled_at")
    assert (missed.scheduled_at, missed.state) == (T - 2 * MINUTE, "missed")
    assert (missed.missed_before, missed.missed_from) == (58, T - HOUR)
    assert missed.finished_at == T
    assert "within 1m" in missed.reason
    assert [run.state for run in others] == ["pending", "pending"]
    assert (len(claimed.runs), claimed.missed) == (2, 59)
    assert missed.pk not in {run.run_id for run in claimed.runs}
    statistics = Statistics.objects.get(pk=job.pk)
    assert (statistics.missed, statistics.last_state) == (59, "missed")


def test_run_all_runs_the_oldest_late_occurrences_up_to_the_limit() -> None:
    job = job_due_at(T - HOUR, schedule="* * * * *", misfire_policy="run_all", catchup_limit=5)
    claim_at(T)
    runs = list(Run.objects.filter(job=job).order_by("scheduled_at"))
    assert [run.scheduled_at for run in runs[:5]] == [T - HOUR + n * MINUTE for n in range(5)]
    assert [run.state for run in runs] == ["pending"] * 5 + ["missed"] + ["pending"] * 2
    assert (runs[5].scheduled_at, runs[5].missed_before) == (T - 2 * MINUTE, 53)
    assert runs[5].missed_from == T - HOUR + 5 * MINUTE


@pytest.mark.parametrize("policy", ["run_latest", "skip", "run_all"])
def test_every_occurrence_of_an_outage_is_accounted_for_once(policy: str) -> None:
    job = job_due_at(T - HOUR, schedule="*/7 * * * * *", misfire_policy=policy, catchup_limit=50)
    claim_all(T)
    accounted = sum(run.missed_before + 1 for run in Run.objects.filter(job=job))
    occurrences = job.parsed_schedule.occurrences(T - HOUR - SECOND, T + 10 * SECOND)
    assert accounted == len(list(occurrences))


# --- the end of a schedule ----------------------------------------------------------------------


def test_one_time_job_runs_once_and_is_disabled() -> None:
    job = make_job(schedule="@at 2050-01-01T00:00")
    at = datetime(2050, 1, 1, tzinfo=UTC)
    assert claim_at(at - 11 * SECOND).considered == 0
    (due,) = claim_at(at - 5 * SECOND).runs
    assert due.due_at == at
    job.refresh_from_db()
    cursor = Cursor.objects.get(pk=job.pk)
    assert (job.enabled, job.pause_reason) == (False, EXHAUSTED)
    assert (cursor.enabled, cursor.next_at, cursor.previous_at) == (False, None, at)
    assert placement.matches_definition(cursor, job)
    claim_at(at + HOUR)
    assert [run.state for run in Run.objects.all()] == ["pending"]


def test_stale_save_does_not_enable_an_exhausted_job() -> None:
    job = make_job(schedule="@at 2050-01-01T00:00")
    claim_at(datetime(2050, 1, 1, tzinfo=UTC))
    job.description = "edited meanwhile"
    with pytest.raises(Conflict):
        control.save(job)
    job.refresh_from_db()
    assert (job.enabled, job.description) == (False, "")


def test_no_occurrence_is_claimed_after_ends_at() -> None:
    job = make_job(ends_at=datetime(2050, 1, 1, tzinfo=UTC))
    end = datetime(2050, 1, 1, tzinfo=UTC)
    Cursor.objects.filter(pk=job.pk).update(next_at=end - 2 * SECOND)
    claim_at(end)
    assert scheduled(job) == [end - 2 * SECOND, end - SECOND, end]
    job.refresh_from_db()
    assert not job.enabled


# --- invalid rows -------------------------------------------------------------------------------


def test_job_changed_without_save_is_not_claimed_by_its_old_schedule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = job_due_at(T)
    monkeypatch.setattr(cursors, "database_now", lambda using: T - MINUTE)
    Job.objects.filter(pk=job.pk).update(schedule="0 0 * * * *")
    assert claim_at(T).considered == 0
    assert move_outdated_cursors(T - MINUTE, Job.objects.using("default")) == 1
    claim_at(T)
    assert scheduled(job) == [T]


@pytest.mark.parametrize(
    "change",
    [
        {"schedule": "0 0 1 1 *"},
        {"timezone": "Europe/Berlin"},
        {"starts_at": T + timedelta(days=36500)},
        {"ends_at": T + timedelta(days=36500)},
        {"enabled": False},
        {"name": "another"},
        {"namespace": "another"},
    ],
)
def test_change_of_job_without_save_is_noticed(change: dict[str, object]) -> None:
    job = job_due_at(T)
    Job.objects.filter(pk=job.pk).update(**change)
    assert claim_at(T).considered == 0
    assert move_outdated_cursors(T, Job.objects.using("default")) == 1
    move_outdated_cursors(T, Job.objects.using("default"))
    assert move_outdated_cursors(T, Job.objects.using("default")) == 0
    assert placement.matches_definition(Cursor.objects.get(pk=job.pk), Job.objects.get(pk=job.pk))


def test_job_with_unreadable_schedule_is_quarantined(caplog: pytest.LogCaptureFixture) -> None:
    bad, good = job_due_at(T), job_due_at(T)
    for rows in (Job.objects.filter(pk=bad.pk), Cursor.objects.filter(pk=bad.pk)):
        rows.update(timezone="Mars/Olympus")
    claimed = claim_at(T)
    assert (claimed.quarantined, claimed.considered) == (1, 2)
    assert len(scheduled(good)) == 11
    assert not scheduled(bad)
    cursor = Cursor.objects.get(pk=bad.pk)
    assert cursor.next_at == T
    assert "Mars/Olympus" in cursor.problem
    assert logged(caplog, "quarantined", "Mars/Olympus", job=bad.name)
    assert claim_at(T + MINUTE).quarantined == 0


def test_job_with_unknown_policy_is_quarantined_until_it_is_saved() -> None:
    bad, good = job_due_at(T), job_due_at(T)
    Job.objects.filter(pk=bad.pk).update(misfire_policy="whatever")
    assert claim_at(T).quarantined == 1
    assert len(scheduled(good)) == 11
    problem = Cursor.objects.get(pk=bad.pk).problem
    assert problem.startswith("ValueError: ")
    assert "whatever" in problem
    bad.refresh_from_db()
    bad.misfire_policy = "skip"
    control.save(bad)
    cursor = Cursor.objects.get(pk=bad.pk)
    assert cursor.problem == ""
    assert cursor.next_at is not None
    assert cursor.next_at > T + HOUR, "it continues from now"
    assert Run.objects.filter(job=bad, state="missed", missed_from=T).exists(), (
        "and the occurrences that were due are accounted for"
    )


@pytest.mark.parametrize("policy", ["run_latest", "skip", "run_all"])
def test_occurrences_during_quarantine_are_accounted_for_afterwards(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, a node with old time zone data quarantines a job that another node can read."""
    job = job_due_at(T, schedule="* * * * *", misfire_policy=policy, catchup_limit=7)
    with monkeypatch.context() as old:
        old.setattr(scheduler_claim, "read_schedule", lambda *args, **options: 1 / 0)
        assert claim_at(T).quarantined == 1
    jobs = Job.objects.using("default")
    assert claim_at(T + HOUR).considered == 0, "until the quarantine is retried"
    assert retry_quarantined(T + HOUR, jobs) == 1
    assert retry_quarantined(T + HOUR, jobs) == 0
    claim_all(T + HOUR)
    assert Cursor.objects.get().problem == ""
    assert sum(run.missed_before + 1 for run in Run.objects.filter(job=job)) == 61


def test_quarantine_continues_while_the_schedule_is_unreadable() -> None:
    job = job_due_at(T)
    for rows in (Job.objects.filter(pk=job.pk), Cursor.objects.filter(pk=job.pk)):
        rows.update(timezone="Mars/Olympus")
    for _ in range(3):
        assert claim_at(T).quarantined == 1
        retry_quarantined(T, Job.objects.using("default"))
    Job.objects.update(enabled=False)
    Cursor.objects.update(problem="bad")
    assert retry_quarantined(T, Job.objects.using("default")) == 0


def test_deleted_job_is_ignored() -> None:
    job = job_due_at(T)
    good = job_due_at(T)
    job.delete()
    claim_at(T)
    assert len(scheduled(good)) == 11


def test_claim_counts_quarantined_jobs_and_missed_occurrences() -> None:
    for _ in range(2):
        bad = job_due_at(T)
        Job.objects.filter(pk=bad.pk).update(misfire_policy="whatever")
        job_due_at(T - HOUR, schedule="* * * * *", misfire_policy="skip")
    claimed = claim_at(T)
    assert (claimed.considered, claimed.quarantined, claimed.missed) == (4, 2, 118)


def test_jobs_with_same_schedule_and_occurrence_share_a_timetable() -> None:
    same = [job_due_at(T, schedule="0 * * * *") for _ in range(3)]
    others = [
        job_due_at(T, schedule="0 */2 * * *"),
        job_due_at(T - HOUR, schedule="0 * * * *"),
        job_due_at(T, schedule="0 * * * *", ends_at=T + timedelta(days=36500)),
        job_due_at(T, schedule="0 * * * *", misfire_grace=HOUR),
    ]
    with mock.patch.object(
        scheduler_claim, "Timetable", wraps=scheduler_claim.Timetable
    ) as timetables:
        assert claim_at(T).considered == 7
    assert timetables.call_count == 5
    assert {next_at(job) for job in same} == {T + HOUR}
    assert [next_at(job) for job in others] == [T + 2 * HOUR, T + HOUR, T + HOUR, T + HOUR]


# --- locked rows --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("skips_locked", "in_transaction", "contention", "again"),
    [
        (True, False, True, True),
        (False, False, True, False),
        (True, True, True, False),
        (True, False, False, False),
    ],
)
def test_claim_blocked_by_a_lock_is_retried_without_locked_rows(
    skips_locked: bool,
    in_transaction: bool,
    contention: bool,
    again: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    locked, claimed = OperationalError("locked"), Claim(considered=1)
    connected = SimpleNamespace(in_atomic_block=in_transaction)
    work = mock.Mock(side_effect=[locked, claimed])
    monkeypatch.setattr(scheduler_claim, "connections", {"default": connected})
    monkeypatch.setattr(scheduler_claim, "can_skip_locked_rows", lambda using: skips_locked)
    monkeypatch.setattr(
        scheduler_claim, "is_contention", lambda error: contention and error is locked
    )
    monkeypatch.setattr(scheduler_claim, "_claim", work)
    job_due_at(T, namespace="shop")
    if again:
        assert claim_at(T, namespace="shop") is claimed
    else:
        with pytest.raises(OperationalError):
            claim_at(T, namespace="shop")
    calls = [mock.call(ALL, T, "a", "shop", skip_locked_rows=skips) for skips in (False, True)]
    assert work.mock_calls == calls[: 1 + again]


@pytest.mark.postgresql
@pytest.mark.parametrize("names_tables", [True, False])
def test_claim_locks_only_cursors_and_skips_locked_ones(
    names_tables: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection.features, "has_select_for_update_of", names_tables)
    with CaptureQueriesContext(connection) as captured:
        list(scheduler_claim._due_cursors(ALL, T, "", "default"))
    table = f' OF "{Cursor._meta.db_table}"' if names_tables else ""
    assert captured[-1]["sql"].endswith(f" FOR UPDATE{table} SKIP LOCKED")


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_job_with_a_foreign_key_lock_does_not_count_as_locked() -> None:
    job = job_due_at(T)
    with keeping_open(lambda: make_run(job)), transaction.atomic():
        cursors = list(scheduler_claim._due_cursors(ALL, T, "", "default"))
        assert len(cursors) == 1
        assert scheduler_claim._without_locked_rows(cursors, "default") == cursors
    connection.close()


def test_batch_size_is_reasonable() -> None:
    assert 500 <= scheduler_claim.CLAIMED_AT_ONCE <= 5000


# --- concurrency --------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_concurrent_claims_create_each_run_exactly_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_claim, "CLAIMED_AT_ONCE", 7)
    jobs = [make_job() for _ in range(30)]
    Cursor.objects.update(next_at=T)
    together = threading.Barrier(4)
    claimed: list[tuple[int, datetime]] = []
    failures: list[BaseException] = []

    def node(name: str) -> None:
        together.wait(TIMEOUT)
        try:
            for second in range(0, 20, 2):
                for _ in range(MANY):
                    try:
                        result = claim(ALL, T + second * SECOND, node=name)
                    except OperationalError as error:
                        if not is_contention(error):
                            raise
                        continue
                    claimed.extend((run.job_id, run.due_at) for run in result.runs)
                    if not result.considered:
                        break
        except BaseException as error:
            failures.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=node, args=(f"node-{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert not failures
    claim_all(T + 18 * SECOND)  # claims rows that each thread skipped because they were locked
    expected = [T + n * SECOND for n in range(29)]
    for job in jobs:
        assert scheduled(job) == expected
        assert next_at(job) == T + 29 * SECOND
    assert len(claimed) == len(set(claimed))


@pytest.mark.django_db(transaction=True)
def test_failed_claim_is_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_due_at(T)
    with monkeypatch.context() as broken:
        broken.setattr(
            scheduler_claim,
            "update_by_key",
            lambda *_: (_ for _ in ()).throw(OperationalError("gone")),
        )
        with pytest.raises(OperationalError):
            claim_at(T)
    assert not Run.objects.exists()
    assert next_at(job) == T
    claim_at(T)
    assert len(scheduled(job)) == 11


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_locked_row_of_one_job_does_not_block_claims_of_others() -> None:
    """A suspended worker or a long request locks rows of the job that the claim needs, too."""
    locked, others = job_due_at(T - HOUR), [job_due_at(T - HOUR) for _ in range(2)]
    limits = WaitLimits("default")
    limits.impose(lock=SECOND, silence=MINUTE)
    with keeping_locked(Job.objects.filter(pk=locked.pk)):
        assert claim_at(T).considered == 2
        assert not scheduled(locked)
        assert all(scheduled(job) for job in others)
        assert claim_at(T).considered == 0
    assert claim_at(T).considered == 1
    assert scheduled(locked)
    connection.close()
