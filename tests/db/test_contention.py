"""The classification of database errors."""

import threading

import pytest
from django.db import IntegrityError, InternalError, OperationalError, connections, transaction

from django_dcron.db.contention import is_contention
from django_dcron.db.errors import UNAVAILABLE
from django_dcron.models import Job
from tests.factories import make_idle_job
from tests.waiting import TIMEOUT


def caused(error: Exception, **codes: object) -> Exception:
    """An error as Django raises it, caused by an error of the driver with these attributes."""
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
def test_contention_is_detected_by_error_code_in_any_language(
    error: Exception, expected: bool
) -> None:
    assert is_contention(error) is expected


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_locked_row_counts_as_contention() -> None:
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
        thread.join(TIMEOUT)
    (error,) = errors
    assert is_contention(error)


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_read_only_database_counts_as_unreachable() -> None:
    """After a failover, for example, connections may still point to the old primary."""
    with connections["default"].cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")
    try:
        with pytest.raises(UNAVAILABLE) as refused:
            make_idle_job()
        assert not is_contention(refused.value)
    finally:
        connections["default"].close()
