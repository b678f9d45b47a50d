"""Operations for migrations of tables that the database and Django's state describe differently."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models


class RemovePartialConstraint(migrations.RemoveConstraint):
    """Remove a unique constraint of runs that is a partial unique index on PostgreSQL.

    Use it instead of ``RemoveConstraint`` for the constraints in ``0001_initial``'s
    ``use_partial_indexes``. PostgreSQL knows no constraints of these names. The reverse creates the
    partial index again.
    """

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        if schema_editor.connection.vendor != "postgresql":
            super().database_forwards(app_label, schema_editor, from_state, to_state)
            return
        model = to_state.apps.get_model(app_label, self.model_name)
        if self.allow_migrate_model(schema_editor.connection.alias, model):
            schema_editor.execute(f"DROP INDEX {schema_editor.quote_name(self.name)}")

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        if schema_editor.connection.vendor != "postgresql":
            super().database_backwards(app_label, schema_editor, from_state, to_state)
            return
        model = to_state.apps.get_model(app_label, self.model_name)
        if self.allow_migrate_model(schema_editor.connection.alias, model):
            (constraint,) = (each for each in model._meta.constraints if each.name == self.name)
            schema_editor.add_constraint(model, without_nulls(model, constraint))


def without_nulls(model: Any, constraint: Any) -> models.UniqueConstraint:
    """Return the constraint without the rows that have a null in it, which can't violate it."""
    nullable = [name for name in constraint.fields if model._meta.get_field(name).null]
    given = models.Q(*((f"{name}__isnull", False) for name in nullable))
    return models.UniqueConstraint(fields=constraint.fields, condition=given, name=constraint.name)
