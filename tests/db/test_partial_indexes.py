"""On PostgreSQL, some indexes contain only the rows that have a value."""

from typing import Any
from uuid import uuid4

import pytest
from django.db import connection, transaction
from django.db.migrations import RunPython
from django.db.migrations.loader import MigrationLoader
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_dcron.migrations._operations import RemovePartialConstraint
from django_dcron.models import Attempt, Run, Statistics
from django_dcron.policies.slots import Slot

pytestmark = [pytest.mark.django_db, pytest.mark.postgresql]

INITIAL = ("django_dcron", "0001_initial")

LOOKUPS: dict[str, tuple[Any, dict[str, Any]]] = {
    "dcron_run_idempotency": (Run, {"job": 1, "idempotency_key": "a key"}),
    "dcron_run_slot": (Run, {"job": 1, "slot": Slot.RUNNING}),
    "dcron_run_rerun": (Run, {"rerun_of": uuid4()}),
    "dcron_attempt_incident": (Attempt, {"incident": 0}),
}


@pytest.mark.parametrize("name", LOOKUPS)
def test_index_serves_its_lookup_without_the_rows_that_have_no_value(name: str) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT indexdef FROM pg_indexes WHERE indexname = %s", [name])
        (definition,) = cursor.fetchone()
        assert definition.endswith("IS NOT NULL)")
        cursor.execute("SET LOCAL enable_seqscan = off")
        model, lookup = LOOKUPS[name]
        assert name in model.objects.filter(**lookup).order_by().explain()


def test_statistics_are_updated_in_place() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT reloptions FROM pg_class WHERE relname = %s", [Statistics._meta.db_table]
        )
        assert cursor.fetchone() == (["fillfactor=50"],)


@pytest.mark.parametrize("name", ["dcron_run_idempotency", "dcron_run_slot"])
def test_partial_constraint_can_be_removed_and_added_again(name: str) -> None:
    def definition() -> tuple[str] | None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT indexdef FROM pg_indexes WHERE indexname = %s", [name])
            return cursor.fetchone()

    before = MigrationLoader(None).project_state([INITIAL])
    operation = RemovePartialConstraint("run", name)
    after = before.clone()
    operation.state_forwards("django_dcron", after)

    initial = definition()
    assert initial is not None
    for _ in range(2):
        with connection.schema_editor() as editor:
            operation.database_forwards("django_dcron", editor, before, after)
        assert definition() is None
        with connection.schema_editor() as editor:
            operation.database_backwards("django_dcron", editor, after, before)
        assert definition() == initial


class RunsElsewhere:
    """A router that creates this package's tables on another database."""

    def allow_migrate(
        self, db: str, app_label: str, model_name: str | None = None, **hints: Any
    ) -> bool | None:
        return False if model_name in ("run", "attempt", "statistics") else None


@override_settings(DATABASE_ROUTERS=[RunsElsewhere()])
def test_hand_written_operations_follow_routers_by_model() -> None:
    migration = MigrationLoader(None).disk_migrations[INITIAL]
    operations = [each for each in migration.operations if isinstance(each, RunPython)]
    state = MigrationLoader(None).project_state([INITIAL])
    with CaptureQueriesContext(connection) as queries, connection.schema_editor() as editor:
        for operation in operations:
            operation.database_forwards("django_dcron", editor, state, state)
    assert len(operations) == 3
    assert [each["sql"] for each in queries if "django_dcron" in each["sql"]] == []
