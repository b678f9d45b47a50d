"""Empty the database after a test that commits, faster than Django's ``flush``.

``flush`` truncates every table and creates content types and permissions again, which takes 0.1 s
per test. Most tests fill few tables, so this module deletes only their rows. Content types and
permissions stay.

A process that outlives the test may insert a row meanwhile that refers to a deleted one. Then the
rows are deleted again.
"""

from functools import cache, partial

from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.db import IntegrityError, OperationalError, connections, transaction
from django.test import TransactionTestCase

from tests.waiting import wait_until

KEPT = {Permission._meta.db_table, ContentType._meta.db_table, "django_migrations"}


def delete_rows(test_case: TransactionTestCase) -> None:
    """Replace ``TransactionTestCase._fixture_teardown``."""
    for alias in test_case._databases_names(include_mirrors=False):
        errors: list[str] = []
        try:
            wait_until(partial(_all_deleted, alias, errors), what="the tables to be empty")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{errors[-1]}") from None


def _all_deleted(alias: str, errors: list[str]) -> bool:
    try:
        _delete_all(alias)
    except (IntegrityError, OperationalError) as error:
        errors.append(str(error))
        connections[alias].close_if_unusable_or_obsolete()  # the test may have cut its connection
        return False
    return True


def _delete_all(alias: str) -> None:
    connection = connections[alias]
    quote = connection.ops.quote_name
    with transaction.atomic(alias), connection.cursor() as cursor:
        queries = [
            f"SELECT '{table}' WHERE EXISTS (SELECT 1 FROM {quote(table)})"  # noqa: S608 - names of our tables
            for table in _tables(alias)
        ]
        cursor.execute(" UNION ALL ".join(queries))
        filled = [table for (table,) in cursor.fetchall()]
        if connection.vendor == "mysql":
            cursor.execute("SET foreign_key_checks = 0")
        try:
            for table in filled:
                cursor.execute(f"DELETE FROM {quote(table)}")  # noqa: S608 - a name of our tables
        finally:
            if connection.vendor == "mysql":
                cursor.execute("SET foreign_key_checks = 1")


@cache
def _tables(alias: str) -> list[str]:
    names = connections[alias].introspection.django_table_names(
        only_existing=True, include_views=False
    )
    return [name for name in names if name not in KEPT]
