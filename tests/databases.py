"""Which tests run on every database.

`make test` runs the whole suite on PostgreSQL. On SQLite and MariaDB, `.ci/run` runs only the tests marked ``every_database``.

Invariant: a test whose result can depend on the database carries the marker. The marker comes from rules, so nobody has to remember it:

- The test covers the engine (a folder of ``ENGINE``) and uses the database: prepared SQL, locks and transactions decide its result.
- The test commits (``transaction=True``), in its own process. Tests that start nodes and workers choose: they carry the marker, or not.
- The test's own code touches raw SQL, locks, savepoints, query plans or database errors (``TOUCHES_SQL``).
- The test is marked for single databases (``sqlite``, ``postgresql``, ``mariadb``).
"""

import inspect
import re

import pytest

from tests import settings

ENGINE = (
    "tests/dispatch/",
    "tests/execution/",
    "tests/locks/",
    "tests/policies/",
    "tests/scheduler/",
    "tests/stateful/",
    "tests/test_",
)
TOUCHES_SQL = re.compile(
    r"\.vendor\b|\.cursor\(|select_for_update|\.raw\(|\batomic\(|EXPLAIN|explain\("
    r"|savepoint|OperationalError|IntegrityError|lock_timeout"
)


def mark(item: pytest.Item) -> None:
    """Give ``item`` the marker ``every_database`` if a rule asks for it."""
    if _can_depend_on_the_database(item):
        item.add_marker(pytest.mark.every_database)


def _can_depend_on_the_database(item: pytest.Item) -> bool:
    if any(item.get_closest_marker(name) for name in settings.ENGINES):
        return True
    fixtures = getattr(item, "fixturenames", ())
    if "start_process" in fixtures:
        return False
    marker = item.get_closest_marker("django_db")
    commits = "transactional_db" in fixtures or bool(marker and marker.kwargs.get("transaction"))
    if commits or (marker and item.nodeid.startswith(ENGINE)):
        return True
    function = getattr(item, "function", None)
    return function is not None and bool(TOUCHES_SQL.search(inspect.getsource(function)))
