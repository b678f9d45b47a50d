"""A database cursor that bypasses the layers of Django, which take longer than SQLite itself.

Statements and errors are converted as in Django's SQLite backend.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from unittest.mock import patch

from django.db.backends.sqlite3.base import FORMAT_QMARK_REGEX


@contextmanager
def direct_cursor(backend: Any, statement: Callable[..., Any]) -> Iterator[None]:
    """Execute the backend's statements with ``statement``, which has the signature of a wrapper
    for ``connection.execute_wrapper``.
    """

    class Cursor(sqlite3.Cursor):
        def __enter__(self) -> Cursor:
            return self

        def __exit__(self, *error: object) -> None:
            self.close()

        def execute(self, sql: str, parameters: Any = None) -> Any:
            return statement(self._execute, sql, parameters, False, None)

        def executemany(self, sql: str, parameters: Iterable[Any]) -> Any:
            return statement(self._execute, sql, parameters, True, None)

        def _execute(self, sql: str, parameters: Any, many: bool, context: None) -> Any:
            backend.validate_no_broken_transaction()
            execute: Any = super().executemany if many else super().execute
            try:
                if parameters is None:
                    return execute(sql)
                return execute(with_question_marks(sql), parameters)
            except sqlite3.Error:
                with backend.wrap_database_errors:
                    raise

    def cursor() -> Any:
        return backend.connection.cursor(factory=Cursor)

    with patch.object(backend, "cursor", cursor):
        yield


@lru_cache(maxsize=2000)
def with_question_marks(statement: str) -> str:
    return FORMAT_QMARK_REGEX.sub("?", statement).replace("%%", "%")
