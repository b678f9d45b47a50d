"""Limits for locks and for idle transactions."""

import threading
from datetime import timedelta

import pytest
from django.db import connections, transaction

from django_dcron.db.contention import is_contention
from django_dcron.db.errors import UNAVAILABLE
from django_dcron.db.session_limits import WaitLimits, brief_transaction, limited_reads
from django_dcron.models import Job
from tests.factories import make_idle_job
from tests.lock_holder import has_usual_lock_limit
from tests.waiting import TIMEOUT


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_idle_transaction_is_ended_so_that_others_get_its_locks() -> None:
    """For example, a process is suspended. It gets the error when it resumes."""
    job = make_idle_job()
    locked, lock_was_taken_over = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def silent() -> None:
        try:
            with brief_transaction("default", timedelta(seconds=1)):
                Job.objects.select_for_update().get(pk=job.pk)
                locked.set()
                lock_was_taken_over.wait(TIMEOUT)
                Job.objects.filter(pk=job.pk).update(description="too late")
        except Exception as error:
            errors.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=silent)
    thread.start()
    assert locked.wait(TIMEOUT)
    with transaction.atomic():
        assert Job.objects.select_for_update().get(pk=job.pk).description == ""
    lock_was_taken_over.set()
    thread.join(TIMEOUT)
    (error,) = errors
    assert isinstance(error, UNAVAILABLE)
    assert not is_contention(error)
    assert Job.objects.get(pk=job.pk).description == ""


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_idle_limit_is_reset_after_the_transaction() -> None:
    """The project uses the same connection, and its own transactions may take longer."""
    query = {
        "postgresql": "SHOW idle_in_transaction_session_timeout",
        "mysql": "SELECT @@SESSION.idle_transaction_timeout",
    }[connections["default"].vendor]

    def limit() -> object:
        with connections["default"].cursor() as cursor:
            cursor.execute(query)
            return cursor.fetchone()[0]

    before = limit()
    with brief_transaction("default", timedelta(seconds=7)):
        assert limit() in ("7s", 7)
    assert limit() == before
    with pytest.raises(ZeroDivisionError), brief_transaction("default", timedelta(seconds=7)):
        raise ZeroDivisionError
    assert limit() == before


QUERIES = {
    "postgresql": (
        "SELECT current_setting('lock_timeout'), "
        "current_setting('idle_in_transaction_session_timeout')"
    ),
    "mysql": (
        "SELECT @@SESSION.innodb_lock_wait_timeout, @@SESSION.idle_transaction_timeout, "
        "@@SESSION.lock_wait_timeout"
    ),
}


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_thread_limits_apply_to_new_connections_until_lifted() -> None:
    def limits() -> object:
        with connections["default"].cursor() as cursor:
            cursor.execute(QUERIES[connections["default"].vendor])
            return cursor.fetchone()

    before, wait_limits = limits(), WaitLimits("default")
    for _ in range(2):
        wait_limits.impose(lock=timedelta(seconds=3), silence=timedelta(seconds=7))
        assert limits() in (("3s", "7s"), (3, 7, 3))
    connections["default"].close()
    wait_limits.impose(lock=timedelta(seconds=3), silence=timedelta(seconds=7))
    assert limits() in (("3s", "7s"), (3, 7, 3))
    wait_limits.lift()
    assert limits() == before
    wait_limits.lift()
    assert limits() == before


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_nested_brief_transaction_keeps_outer_limits() -> None:
    def limit() -> object:
        with connections["default"].cursor() as cursor:
            cursor.execute(QUERIES[connections["default"].vendor])
            return cursor.fetchone()[1]

    before = limit()
    with transaction.atomic():
        with brief_transaction("default", timedelta(seconds=7)):
            assert limit() == before
        assert limit() == before


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_limited_reads_set_no_limits_within_a_transaction_of_the_caller() -> None:
    with limited_reads("default"):
        assert not has_usual_lock_limit()
    with transaction.atomic(), limited_reads("default"):
        assert has_usual_lock_limit()
