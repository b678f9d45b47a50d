"""What the database's errors mean."""

import threading
from datetime import timedelta

import pytest
from django.db import IntegrityError, InternalError, OperationalError, connections, transaction

from django_dcron.models import Job
from django_dcron.models.database import AWAY, WaitLimits, brief_transaction, is_contention
from tests.factories import make_idle_job


def caused(error: Exception, **codes: object) -> Exception:
    """An error of Django's, as it wraps the driver's."""
    driver = Exception("Verklemmung entdeckt")
    for name, value in codes.items():
        setattr(driver, name, value)
    error.__cause__ = driver
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (caused(OperationalError("Verklemmung entdeckt"), sqlstate="40P01"), True),
        (caused(OperationalError("impossible de sérialiser"), sqlstate="40001"), True),
        (caused(OperationalError("verrou"), pgcode="55P03"), True),
        (caused(OperationalError("it was not a deadlock"), sqlstate="57P01"), False),
        (caused(OperationalError(1213, "Verklemmung")), True),
        (caused(OperationalError(1205, "zu lange gewartet")), True),
        (caused(OperationalError(2006, "Server has gone away")), False),
        (caused(OperationalError("database is locked")), True),
        (OperationalError("deadlock detected"), True),
        (OperationalError("connection refused"), False),
        (OperationalError(), False),
        (IntegrityError("deadlock"), False),
        (InternalError("cannot execute UPDATE in a read-only transaction"), False),
    ],
    ids=str,
)
def test_contention_is_told_by_codes_whatever_the_language(error: Exception, expected: bool) -> None:
    assert is_contention(error) is expected


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_a_row_somebody_else_has_locked_is_contention() -> None:
    job = make_idle_job()
    errors: list[BaseException] = []

    def other() -> None:
        try:
            with transaction.atomic():
                Job.objects.select_for_update(nowait=True).get(pk=job.pk)
        except Exception as error:
            errors.append(error)
        finally:
            connections.close_all()

    with transaction.atomic():
        Job.objects.select_for_update().get(pk=job.pk)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(10)
    (error,) = errors
    assert is_contention(error)


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_who_falls_silent_within_a_transaction_keeps_others_waiting_no_longer() -> None:
    """As a frozen process does. It learns of it when it goes on."""
    job = make_idle_job()
    locked, others_had_it = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def silent() -> None:
        try:
            with brief_transaction("default", timedelta(seconds=1)):
                Job.objects.select_for_update().get(pk=job.pk)
                locked.set()
                others_had_it.wait(30)
                Job.objects.filter(pk=job.pk).update(description="too late")
        except Exception as error:
            errors.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=silent)
    thread.start()
    assert locked.wait(30)
    with transaction.atomic():
        assert Job.objects.select_for_update().get(pk=job.pk).description == ""
    others_had_it.set()
    thread.join(30)
    (error,) = errors
    assert isinstance(error, AWAY)
    assert not is_contention(error)
    assert Job.objects.get(pk=job.pk).description == ""


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_the_limit_of_silence_ends_with_the_transaction() -> None:
    """The connection is the project's, too, and its own transactions may take their time."""
    question = {
        "postgresql": "SHOW idle_in_transaction_session_timeout",
        "mysql": "SELECT @@SESSION.idle_transaction_timeout",
    }[connections["default"].vendor]

    def limit() -> object:
        with connections["default"].cursor() as cursor:
            cursor.execute(question)
            return cursor.fetchone()[0]

    before = limit()
    with brief_transaction("default", timedelta(seconds=7)):
        assert limit() in ("7s", 7)
    assert limit() == before
    with pytest.raises(ZeroDivisionError), brief_transaction("default", timedelta(seconds=7)):
        raise ZeroDivisionError
    assert limit() == before


QUESTIONS = {
    "postgresql": "SELECT current_setting('lock_timeout'), current_setting('idle_in_transaction_session_timeout')",
    "mysql": "SELECT @@SESSION.innodb_lock_wait_timeout, @@SESSION.idle_transaction_timeout",
}


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_the_limits_of_a_thread_hold_for_each_of_its_connections_until_they_are_lifted() -> None:
    def limits() -> object:
        with connections["default"].cursor() as cursor:
            cursor.execute(QUESTIONS[connections["default"].vendor])
            return cursor.fetchone()

    before, ours = limits(), WaitLimits("default")
    for _ in range(2):
        ours.impose(lock=timedelta(seconds=3), silence=timedelta(seconds=7))
        assert limits() in (("3s", "7s"), (3, 7))
    connections["default"].close()
    ours.impose(lock=timedelta(seconds=3), silence=timedelta(seconds=7))
    assert limits() in (("3s", "7s"), (3, 7))
    ours.lift()
    assert limits() == before
    ours.lift()
    assert limits() == before


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_a_brief_transaction_within_another_leaves_that_ones_limits_alone() -> None:
    def limit() -> object:
        with connections["default"].cursor() as cursor:
            cursor.execute(QUESTIONS[connections["default"].vendor])
            return cursor.fetchone()[1]

    before = limit()
    with transaction.atomic():
        with brief_transaction("default", timedelta(seconds=7)):
            assert limit() == before
        assert limit() == before


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_a_database_that_became_read_only_is_away() -> None:
    """As after a failover, when the connections still lead to the old primary."""
    with connections["default"].cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")
    try:
        with pytest.raises(AWAY) as refused:
            make_idle_job()
        assert not is_contention(refused.value)
    finally:
        connections["default"].close()
