"""Select the tests that run on every database.

`make test` runs the whole suite on PostgreSQL. On SQLite and MariaDB, `.ci/run` runs only the tests
marked ``every_database``.

Invariant: a test whose result can depend on the database has the marker. Rules set the marker,
so there is no list to maintain:

- The test covers the engine (a folder of ``ENGINE``) and uses the database. Its result depends on
  prepared SQL, locks and transactions.
- The test commits (``transaction=True``) in its own process. Tests that start nodes and workers set
  the marker themselves if they need it.
- Tests of RabbitMQ run on PostgreSQL only, because the broker decides their results.
- The test's own code uses raw SQL, locks, savepoints, query plans or database errors
  (``TOUCHES_SQL``).
- The test is marked for single databases (``sqlite``, ``postgresql``, ``mariadb``).
"""

import inspect
import re
from collections.abc import Callable
from functools import cache

import pytest

from tests import settings

ENGINE = (
    "tests/contrib/checkins/",
    "tests/db/",
    "tests/dispatch/",
    "tests/execution/",
    "tests/jobs/",
    "tests/locks/",
    "tests/management/test_prune",
    "tests/policy_matrix/",
    "tests/runs/",
    "tests/scheduler/",
    "tests/stateful/",
    "tests/test_",
)
TOUCHES_SQL = re.compile(
    r"\.vendor\b|\.cursor\(|select_for_update|\.raw\(|\batomic\(|EXPLAIN|explain\("
    r"|savepoint|OperationalError|IntegrityError|lock_timeout"
)


def mark(item: pytest.Item) -> None:
    """Add the marker ``every_database`` to ``item`` if a rule requires it."""
    if _can_depend_on_the_database(item):
        item.add_marker(pytest.mark.every_database)


def _can_depend_on_the_database(item: pytest.Item) -> bool:
    if any(item.get_closest_marker(name) for name in settings.ENGINES):
        return True
    fixtures = getattr(item, "fixturenames", ())
    if "start_process" in fixtures or "rabbitmq_server" in fixtures:
        return False
    marker = item.get_closest_marker("django_db")
    commits = "transactional_db" in fixtures or bool(marker and marker.kwargs.get("transaction"))
    if commits or (marker and item.nodeid.startswith(ENGINE)):
        return True
    function = getattr(item, "function", None)
    return function is not None and _touches_sql(function)


@cache  # most functions have many cases, and finding their source takes milliseconds
def _touches_sql(function: Callable[..., object]) -> bool:
    return bool(TOUCHES_SQL.search(inspect.getsource(function)))
