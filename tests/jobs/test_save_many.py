"""``save_many`` gives the results of ``save`` of each job, in few statements."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import connection, transaction
from django.db.models.signals import post_save, pre_save
from django.test.utils import CaptureQueriesContext
from hypothesis import given, settings
from hypothesis import strategies as st

from django_dcron import control
from django_dcron.exceptions import BulkSaveError, Conflict
from django_dcron.jobs import batch, chains, saving
from django_dcron.models import Calendar, Cursor, Job, Link, Run, Statistics
from django_dcron.testing import set_clock
from tests.depth import examples
from tests.factories import make_idle_job
from tests.threads import in_threads
from tests.waiting import TIMEOUT

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 5, 4, 12, 0, 30, tzinfo=UTC)
TARGET = "tests.app.tasks.ok"
COMPARED = {
    Job: {"id", "created_at", "updated_at"},
    Cursor: {"job_id"},
    Statistics: {"job_id"},
    Run: {"id", "job_id"},
}
"""The models to compare, each with the columns that differ between two equal saves."""


def new(name: str, **fields: Any) -> Job:
    return Job(**{"name": name, "target": TARGET, "schedule": "0 0 1 1 *"} | fields)


# --- the same as one by one -----------------------------------------------------------------------

NAMES = ("a", "b", "c", "d", "e", "x", "y")
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from((*NAMES, "not/valid")),
        "schedule": st.sampled_from(
            ("* * * * *", "@every 5m", "61 * * * *", "@at 2020-01-01T00:00", "@never")
        ),
        "after": st.dictionaries(
            st.sampled_from((*NAMES, "nobody")), st.sampled_from(("succeeded", "ended")), max_size=2
        ),
        "enabled": st.booleans(),
        "description": st.sampled_from(("", "one", "two")),
        "import_key": st.sampled_from((None, "first", "second")),
        "calendar_id": st.sampled_from((None, "holidays", "missing")),
        "tags": st.sampled_from(([], ["t"], [True], [1])),
        "paused_until": st.sampled_from((None, NOW + timedelta(hours=1))),
        "declared": st.sampled_from((None, {"schedule": "@daily"})),
    },
)
ENTRIES = st.lists(
    st.tuples(
        st.one_of(
            st.sampled_from(("new", *NAMES[:5])),
            st.integers(0, 5),  # the instance of that position again
        ),
        st.sampled_from((None, None, None, 1, 2)),
        FIELDS,
    ),
    min_size=1,
    max_size=8,
)


def set_up() -> None:
    Calendar.objects.create(name="holidays", dates="12-25")
    control.save(new("a"))
    control.save(new("b", after={"a": "succeeded"}))
    control.save(new("c", import_source="s", import_key="first", schedule="* * * * *"))
    control.save(new("d", enabled=False, paused_until=NOW - timedelta(minutes=3)))
    control.save(new("e", schedule="* * * * *", misfire_policy="run_all"))
    Cursor.objects.filter(name="e").update(next_at=NOW - timedelta(minutes=4, seconds=30))
    Statistics.objects.update(consecutive_failures=2)


def build(entries: Sequence[tuple[Any, int | None, dict[str, Any]]]) -> list[Job]:
    jobs: list[Job] = []
    for number, (source, _version, fields) in enumerate(entries):
        if isinstance(source, int) and source < number:
            job = jobs[source]
        elif source in NAMES:
            job = Job.objects.get(name=source)
        else:
            job = new(f"new-{number}")
        for name, value in fields.items():
            setattr(job, name, value)
        job.import_source = "s" if job.import_key else ""
        jobs.append(job)
    return jobs


def snapshot() -> dict[str, Any]:
    names = dict(Job.objects.values_list("pk", "name"))

    def rows(model: Any, ignored: set[str]) -> list[Any]:
        found = [
            {name: value for name, value in row.items() if name not in ignored}
            | {"of": names[row.get("job_id") or row["id"]]}
            for row in model.objects.values()
        ]
        return sorted(found, key=repr)

    links = Link.objects.values_list("job__name", "after__name", "on")
    return {model.__name__: rows(model, ignored) for model, ignored in COMPARED.items()} | {
        "Link": sorted(links)
    }


def described(error: Exception) -> Any:
    if isinstance(error, ValidationError):
        return error.message_dict
    return type(error), getattr(error, "code", ""), getattr(error, "params", "")


def state_of(jobs: Sequence[Job]) -> list[Any]:
    return [(job.version, job.pk is None, job._state.adding, job.paused_until) for job in jobs]


@contextmanager
def undone() -> Iterator[None]:
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


@settings(max_examples=examples(300))
@given(entries=ENTRIES, at_once=st.sampled_from((2, 500)))
def test_save_many_has_the_same_results_as_saving_each_job(
    entries: list[tuple[Any, int | None, dict[str, Any]]], at_once: int
) -> None:
    versions = [version for _source, version, _fields in entries]
    with undone(), set_clock(NOW), pytest.MonkeyPatch.context() as patch:
        patch.setattr(saving, "SAVED_AT_ONCE", at_once)
        set_up()
        before = snapshot()
        with undone():
            one_by_one, errors = build(entries), {}
            for position, (job, version) in enumerate(zip(one_by_one, versions, strict=True)):
                try:
                    control.save(job, expected_version=version)
                except (ValidationError, Conflict) as error:
                    errors[position] = described(error)
            saved, states = snapshot(), state_of(one_by_one)
        with undone():
            jobs = build(entries)
            refused = control.save_many(jobs, expected_versions=versions, keep_going=True)
            assert {position: described(error) for position, error in refused.items()} == errors
            assert snapshot() == saved
            assert state_of(jobs) == states
        with undone():
            jobs = build(entries)
            was = [each[:3] for each in state_of(jobs)]
            if not errors:
                control.save_many(jobs, expected_versions=versions)
                assert (snapshot(), state_of(jobs)) == (saved, states)
                return
            with pytest.raises(BulkSaveError) as raised:
                control.save_many(jobs, expected_versions=versions)
            found = raised.value.errors.items()
            assert {position: described(error) for position, error in found} == errors
            assert snapshot() == before
            assert [each[:3] for each in state_of(jobs)] == was


@pytest.mark.parametrize("at_once", [1, 500])
def test_jobs_of_one_list_depend_on_each_other(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "SAVED_AT_ONCE", at_once)
    old, other = make_idle_job(name="old"), make_idle_job(name="other")
    renamed = Job.objects.get(pk=old.pk)
    renamed.name = "renamed"
    cyclic = Job.objects.get(pk=other.pk)
    cyclic.after = {"follower": "ended"}
    refused = control.save_many(
        [
            new("first"),
            new("follower", after={"first": "succeeded", "other": "ended"}),
            new("first"),
            renamed,
            new("old", after={"renamed": "ended"}),
            cyclic,
            new("early", after={"late": "ended"}),
            new("late"),
        ],
        keep_going=True,
    )
    assert sorted(refused) == [2, 5, 6]
    codes = {
        position: [each.code for errors in error.error_dict.values() for each in errors]
        for position, error in refused.items()
        if isinstance(error, ValidationError)
    }
    assert codes == {2: ["unique_together"], 5: ["cycle"], 6: [None]}
    links = set(Link.objects.values_list("job__name", "after__name", "on"))
    assert links == {
        ("follower", "first", "succeeded"),
        ("follower", "other", "ended"),
        ("old", "renamed", "ended"),
    }
    followed = Statistics.objects.filter(followed=True).values_list("job__name", flat=True)
    assert set(followed) == {"first", "other", "renamed"}


def test_two_jobs_exchange_their_names() -> None:
    one, two = make_idle_job(name="one"), make_idle_job(name="two")
    parked, two.name, one.name = Job.objects.get(pk=one.pk), "one", "two"
    parked.name = "parked"
    control.save_many([parked, two, one], expected_versions=[None, None, 2])
    assert dict(Job.objects.values_list("pk", "name")) == {one.pk: "two", two.pk: "one"}


def test_renaming_a_job_increments_the_versions_of_its_followers() -> None:
    first = make_idle_job(name="first")
    follower = make_idle_job(name="follower", after={"first": "ended"})
    first.name, follower.description = "renamed", "changed"
    refused = control.save_many([first, follower], keep_going=True)
    assert [type(error) for error in refused.values()] == [Conflict]
    assert Job.objects.get(pk=follower.pk).after == {"renamed": "ended"}


def test_job_renamed_later_in_the_list_is_followed_by_its_new_name() -> None:
    old = make_idle_job(name="old")
    old.name = "renamed"
    control.save_many([new("follower", after={"old": "ended"}), old])
    follower = Job.objects.get(name="follower")
    assert (follower.after, follower.version) == ({"renamed": "ended"}, 2)


# --- all or nothing, one by one -------------------------------------------------------------------


def test_nothing_is_saved_if_a_job_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "SAVED_AT_ONCE", 2)
    kept = make_idle_job(description="old")
    kept.description = "new"
    jobs = [kept, *(new(f"new-{n}") for n in range(4)), new("bad", schedule="61 * * * *")]
    with pytest.raises(BulkSaveError) as refused:
        control.save_many(jobs)
    assert list(refused.value.errors) == [5]
    assert Job.objects.values_list("description", "version").get() == ("old", 1)
    assert Cursor.objects.count() == 1
    assert [(job.pk, job.version) for job in jobs] == [(kept.pk, 1), *[(None, 1)] * 5]
    jobs.pop()
    control.save_many(jobs)
    assert (Job.objects.count(), kept.version) == (5, 2)


@pytest.mark.parametrize("keep_going", [True, False])
def test_a_value_that_only_the_database_refuses_is_found(keep_going: bool) -> None:
    jobs = [new(f"new-{n}") for n in range(9)]
    jobs[4].pause_reason = None  # type: ignore[assignment]  # NOT NULL
    if keep_going:
        assert list(control.save_many(jobs, keep_going=True)) == [4]
    else:
        with pytest.raises(BulkSaveError) as refused:
            control.save_many(jobs)
        assert list(refused.value.errors) == [4]
    assert Job.objects.count() == 8 * keep_going
    assert jobs[4].pk is None


def test_a_name_taken_during_the_save_is_an_error_of_its_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_idle_job(name="new-2")
    monkeypatch.setattr(chains, "read_ids", lambda keys, using: {})
    refused = control.save_many([new(f"new-{n}") for n in range(4)], keep_going=True)
    assert {position: type(error) for position, error in refused.items()} == {2: ValidationError}
    assert Job.objects.count() == 4


def test_unexpected_error_is_raised_after_earlier_jobs_were_saved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = batch.placement.decide_placement

    def decide(job: Job, *args: Any, **options: Any) -> Any:
        if job.name == "new-2":
            raise RuntimeError("unexpected")
        return original(job, *args, **options)

    monkeypatch.setattr(batch.placement, "decide_placement", decide)
    jobs = [new(f"new-{n}") for n in range(4)]
    with pytest.raises(RuntimeError):
        control.save_many(jobs, keep_going=True)
    assert [job.pk is None for job in jobs] == [False, False, True, True]
    assert Job.objects.count() == 2


def test_progress_is_reported_batch_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "SAVED_AT_ONCE", 2)
    done: list[int] = []
    control.save_many([new(f"new-{n}") for n in range(5)], on_progress=done.append)
    assert done == [2, 4, 5]


def test_an_empty_list_needs_no_statement_on_jobs() -> None:
    assert control.save_many([]) == {}


# --- other transactions ---------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("keep_going", [True, False])
def test_a_job_changed_since_it_was_read_is_refused(keep_going: bool) -> None:
    jobs = [make_idle_job() for _ in range(4)]
    changed_by_other = Job.objects.get(pk=jobs[2].pk)
    changed_by_other.description = "other"
    for job in jobs:
        job.description = "new"
    # Both are called after the jobs were read, and before the transaction.
    module, name = (batch, "clean_each") if keep_going else (saving, "despite_contention")
    original, changed = getattr(module, name), threading.Event()

    def change_first(*args: Any) -> Any:
        if not changed.is_set():
            changed.set()
            in_threads(lambda: control.save(changed_by_other))
        return original(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, change_first)
        if keep_going:
            refused = control.save_many(jobs, keep_going=True)
        else:
            with pytest.raises(BulkSaveError) as raised:
                control.save_many(jobs)
            refused = raised.value.errors
    assert {position: type(error) for position, error in refused.items()} == {2: Conflict}
    descriptions = [job.description for job in Job.objects.order_by("pk")]
    assert descriptions == (["new", "new", "other", "new"] if keep_going else ["", "", "other", ""])


@pytest.mark.django_db(transaction=True)
def test_only_one_of_several_concurrent_saves_of_a_list_succeeds() -> None:
    made = [make_idle_job().pk for _ in range(6)]

    def save(name: str) -> Callable[[], str]:
        def work() -> str:
            jobs = list(Job.objects.filter(pk__in=made).order_by("?"))
            together.wait(TIMEOUT)
            for job in jobs:
                job.description = name
            try:
                control.save_many(jobs)
            except BulkSaveError as error:
                refused.update(map(type, error.errors.values()))
                return ""
            return name

        return work

    together, refused = threading.Barrier(3), set[type[Exception]]()
    won = [name for name in in_threads(*(save(f"admin-{n}") for n in range(3))) if name]
    assert (len(won), refused) == (1, {Conflict})
    assert set(Job.objects.values_list("description", "version")) == {(won[0], 2)}


# --- signals --------------------------------------------------------------------------------------


def test_signals_are_sent_as_by_a_save_of_each() -> None:
    sent: list[tuple[str, str, Any]] = []

    def before(instance: Job, **kwargs: Any) -> None:
        sent.append(("before", instance.name, None))
        instance.description = "by a receiver"

    def after(instance: Job, created: bool, **kwargs: Any) -> None:
        sent.append(("after", instance.name, created))

    old = make_idle_job(name="old")
    pre_save.connect(before, sender=Job)
    post_save.connect(after, sender=Job)
    try:
        control.save_many([old, new("new")])
    finally:
        pre_save.disconnect(before, sender=Job)
        post_save.disconnect(after, sender=Job)
    assert sorted(sent, key=repr) == [
        ("after", "new", True),
        ("after", "old", False),
        ("before", "new", None),
        ("before", "old", None),
    ]
    assert set(Job.objects.values_list("description", flat=True)) == {"by a receiver"}


def test_writes_of_signal_receivers_for_a_refused_job_are_undone() -> None:
    def write(instance: Job, **kwargs: Any) -> None:
        Calendar.objects.create(name=instance.name, dates="12-25")

    other = make_idle_job(name="other")
    jobs = [new("a", after={"other": "ended"}), new("b", after={"nobody": "ended"}), new("c")]
    pre_save.connect(write, sender=Job)
    try:
        refused = control.save_many(jobs, keep_going=True)
    finally:
        pre_save.disconnect(write, sender=Job)
    assert list(refused) == [1]
    assert set(Calendar.objects.values_list("name", flat=True)) == {"a", "c"}
    assert Link.objects.get().after_id == other.pk


# --- statements -----------------------------------------------------------------------------------


def statements(work: Callable[[], object]) -> int:
    with CaptureQueriesContext(connection) as queries:
        work()
    return len(queries)


def test_number_of_statements_does_not_grow_with_the_jobs() -> None:
    Calendar.objects.create(name="holidays", dates="12-25")

    def create(number: int, prefix: str) -> int:
        jobs = [new(f"{prefix}-{n}", calendar_id="holidays") for n in range(number)]
        jobs += [new(f"{each.name}-then", after={each.name: "ended"}) for each in jobs]
        return statements(lambda: control.save_many(jobs))

    def change(prefix: str) -> int:
        jobs = list(Job.objects.filter(name__startswith=f"{prefix}-"))
        for job in jobs:
            job.schedule, job.description = "0 0 2 1 *", job.name
            job.calendar_id = None
        return statements(lambda: control.save_many(jobs))

    few, many = create(3, "few"), create(60, "many")
    # SQLite limits the parameters of a statement, and so the rows of an INSERT.
    more_inserts = 20 if connection.vendor == "sqlite" else 0
    assert many <= few + more_inserts
    assert change("many") <= change("few") + more_inserts


def test_invalid_jobs_need_no_statements_of_their_own() -> None:
    make_idle_job(name="taken")

    def save(number: int) -> int:
        jobs = [new("taken", schedule="61 * * * *" if n % 2 else "@daily") for n in range(number)]
        return statements(lambda: control.save_many(jobs, keep_going=True))

    assert save(2) == save(50)
