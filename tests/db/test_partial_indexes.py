"""On PostgreSQL, three indexes of the runs contain only the rows that have a value."""

from typing import Any
from uuid import uuid4

import pytest
from django.db import connection, transaction

from django_dcron.models import Run, Statistics
from django_dcron.policies.slots import Slot

pytestmark = [pytest.mark.django_db, pytest.mark.postgresql]

LOOKUPS: dict[str, dict[str, Any]] = {
    "dcron_run_idempotency": {"job": 1, "idempotency_key": "a key"},
    "dcron_run_slot": {"job": 1, "slot": Slot.RUNNING},
    "dcron_run_rerun": {"rerun_of": uuid4()},
}


@pytest.mark.parametrize("name", LOOKUPS)
def test_index_serves_its_lookup_without_the_rows_that_have_no_value(name: str) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT indexdef FROM pg_indexes WHERE indexname = %s", [name])
        (definition,) = cursor.fetchone()
        assert definition.endswith("IS NOT NULL)")
        cursor.execute("SET LOCAL enable_seqscan = off")
        assert name in Run.objects.filter(**LOOKUPS[name]).order_by().explain()


def test_statistics_are_updated_in_place() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT reloptions FROM pg_class WHERE relname = %s", [Statistics._meta.db_table]
        )
        assert cursor.fetchone() == (["fillfactor=50"],)
