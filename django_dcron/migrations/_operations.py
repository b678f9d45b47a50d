"""Operations for migrations of tables that the database and Django's state describe differently."""

from __future__ import annotations

from typing import Any

from django.db import migrations


class RemovePartialConstraint(migrations.RemoveConstraint):
    """Remove a unique constraint of runs that is a partial unique index on PostgreSQL.

    Use it instead of ``RemoveConstraint`` for the constraints in ``0001_initial``'s
    ``use_partial_indexes``. PostgreSQL knows no constraints of these names.
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
