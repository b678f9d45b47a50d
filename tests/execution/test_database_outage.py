"""Workers wait until the database is back, whatever state a job left its connection in."""

import contextlib
import logging
from typing import Any

import pytest
from django.db import (
    DataError,
    InterfaceError,
    InternalError,
    OperationalError,
    connection,
    connections,
    transaction,
)

from django_dcron.db.open_transactions import own_transactions_only
from django_dcron.execution import database_outage
from django_dcron.execution.database_outage import retry_until_available
from django_dcron.models import Job
from tests.execution.conftest import cut_connection
from tests.factories import make_idle_job


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the pauses instead of sleeping."""
    made: list[float] = []
    monkeypatch.setattr(database_outage.time, "sleep", made.append)
    return made


class FailingWork:
    """Work that fails with ``error`` the first ``times`` times."""

    def __init__(self, times: int, error: Exception) -> None:
        self.times = times
        self.error = error
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.times:
            raise self.error
        return "done"


def retry(work: Any, **options: Any) -> Any:
    return retry_until_available(work, "a test", "default", **options)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "error",
    [OperationalError("gone"), InterfaceError("closed"), InternalError("read-only")],
    ids=repr,
)
def test_work_is_retried_until_the_database_answers(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []
    monkeypatch.setattr(connection, "close", lambda: closed.append(1))
    work = FailingWork(7, error)
    assert retry(work) == "done"
    assert (work.calls, len(closed)) == (8, 7)


@pytest.mark.django_db
def test_pauses_grow_up_to_a_limit(pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "close", lambda: None)
    retry(FailingWork(20, OperationalError()))
    assert pauses[0] <= database_outage.FIRST_PAUSE
    assert sorted(pauses[:6]) == pauses[:6]
    assert database_outage.LONGEST_PAUSE / 2 <= pauses[-1] <= database_outage.LONGEST_PAUSE


@pytest.mark.django_db
def test_only_a_long_outage_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "close", lambda: None)
    retry(FailingWork(2, OperationalError("gone")))
    assert not caplog.records
    retry(FailingWork(8, OperationalError("gone")))
    assert {(record.levelno, vars(record)["event"]) for record in caplog.records} == {
        (logging.WARNING, "waits_for_database")
    }


@pytest.mark.django_db
def test_retries_end_after_the_given_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "close", lambda: None)
    elapsed = iter(range(1000))
    monkeypatch.setattr(database_outage.time, "monotonic", lambda: float(next(elapsed)))
    work = FailingWork(1000, OperationalError("gone"))
    with pytest.raises(OperationalError, match="gone"):
        retry(work, give_up_after=10)
    assert 10 <= work.calls <= 12


@pytest.mark.django_db
def test_data_error_is_raised_at_once() -> None:
    work = FailingWork(1, DataError())
    with pytest.raises(DataError):
        retry(work)
    assert work.calls == 1


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_closed_connection_is_replaced() -> None:
    make_idle_job()
    cut_connection()
    assert retry(Job.objects.count) == 1


# --- transactions left open ---------------------------------------------------------------------


def leave_autocommit_off() -> None:
    transaction.set_autocommit(False)
    Job.objects.update(description="never committed")


def leave_a_transaction_open() -> None:
    transaction.atomic().__enter__()
    Job.objects.update(description="never committed")


def leave_connection_broken() -> None:
    transaction.atomic().__enter__()
    cut_connection()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "leave",
    [
        leave_autocommit_off,
        leave_a_transaction_open,
        pytest.param(leave_connection_broken, marks=[pytest.mark.postgresql, pytest.mark.mariadb]),
    ],
)
def test_writes_after_a_job_that_left_a_transaction_open_are_committed(leave: Any) -> None:
    job = make_idle_job()
    with own_transactions_only():
        leave()
    with transaction.atomic():
        Job.objects.update(pause_reason="committed")
    connections["default"].close()  # drops everything that wasn't committed
    job.refresh_from_db()
    assert (job.description, job.pause_reason) == ("", "committed")


@pytest.mark.django_db(transaction=True)
def test_connection_is_kept_if_the_job_leaves_no_transaction() -> None:
    connection.ensure_connection()
    before = connections["default"]
    with own_transactions_only(), transaction.atomic():
        make_idle_job()
    assert connections["default"] is before


@pytest.mark.django_db(transaction=True)
def test_autocommit_is_restored_after_an_exception() -> None:
    with contextlib.suppress(ZeroDivisionError), own_transactions_only():
        transaction.set_autocommit(False)
        raise ZeroDivisionError
    assert transaction.get_autocommit()
