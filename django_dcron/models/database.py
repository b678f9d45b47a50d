"""The database the tables are in, and its clock: what every node, worker and web process means by "now"."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Any, TypeVar

from django.db import (
    DatabaseError,
    InterfaceError,
    InternalError,
    OperationalError,
    connections,
    models,
    router,
    transaction,
)
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.functions import Now
from django.db.models.sql import Query

from django_dcron.domain import clock
from django_dcron.models.connection_sockets import notice_silence
from django_dcron.url_credentials import without_credentials

logger = logging.getLogger("django_dcron.scheduler")

AWAY = (OperationalError, InterfaceError, InternalError)
"""What a database raises that is away, locked or (InternalError, on PostgreSQL) read-only after a failover."""

CONTENTION_STATES = frozenset({"40001", "40P01", "55P03"})
"""PostgreSQL's: could not serialize, deadlock, lock not available."""
CONTENTION_NUMBERS = frozenset({1020, 1205, 1213})
"""MariaDB's: changed since it was read, lock wait timeout, deadlock."""
CONTENTION_TEXTS = (
    "database is locked",
    "table is locked",
    "deadlock",
    "could not serialize",
    "lock wait timeout",
)
"""Of an error that carries no code: SQLite's, and one that somebody has wrapped."""


STANDING = {"postgresql": "CAST(%s AS timestamp with time zone)", "mysql": "CAST(%s AS datetime(6))"}
"""How a time that a test has set is spelled, where the database has to be told that it is one."""


class UtcNow(Now):
    """Django's ``Now``, but in UTC on MariaDB: there Django's is in the session's time zone, which may differ between
    two sessions and jumps twice a year."""

    def as_mysql(self, compiler: Any, connection: BaseDatabaseWrapper, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template="UTC_TIMESTAMP(6)", **context)

    def as_sql(self, compiler: Any, connection: BaseDatabaseWrapper, **context: Any) -> Any:  # type: ignore[override]
        at = clock.stands_at
        if at is None:
            return super().as_sql(compiler, connection, **context)
        return STANDING.get(connection.vendor, "%s"), (connection.ops.adapt_datetimefield_value(at),)


T = TypeVar("T")
CONTENTIONS = 3
"""How often a transaction that was in another's way is made again."""


def is_contention(error: BaseException) -> bool:
    """Whether the database is there and only somebody else's transaction was in the way: trying again soon helps."""
    if not isinstance(error, OperationalError):
        return False
    cause = error.__cause__  # the driver's own
    if state := getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None):
        return state in CONTENTION_STATES
    if error.args and isinstance(error.args[0], int):
        return error.args[0] in CONTENTION_NUMBERS
    return any(text in str(error).lower() for text in CONTENTION_TEXTS)


def despite_contention(work: Callable[[], T], using: str) -> T:
    """Do ``work``, a transaction of its own, again if another transaction was in the way; a few times."""
    for _ in range(CONTENTIONS):
        try:
            return work()
        except OperationalError as error:
            # A transaction around this one is lost with it.
            if connections[using].in_atomic_block or not is_contention(error):
                raise
    return work()


def in_one_line(error: BaseException) -> str:
    """For a log or a column: databases say what happened in several lines, or in none. Without the credentials of URLs."""
    return without_credentials(" ".join(str(error).split())) or type(error).__name__


@contextmanager
def leaving_for_later(what: object, using: str) -> Iterator[None]:
    """Do what is inside unless another transaction is in the way: then say so and go on, for ``what`` comes again."""
    try:
        yield
    except OperationalError as error:
        if connections[using].in_atomic_block or not is_contention(error):
            raise
        logger.info(
            "%s is left for later, another transaction is in the way: %s",
            what,
            in_one_line(error),
            extra={"event": "contention"},
        )


@contextmanager
def keeping_the_others_going(what: str, using: str) -> Iterator[None]:
    """Do what is inside for one of many, whose own trouble must not keep the others from theirs: contention is left for later,
    and any error but the database's is logged."""
    try:
        with leaving_for_later(what, using):
            yield
    except (DatabaseError, InterfaceError):
        raise
    except Exception:
        logger.exception("%s failed", what, extra={"event": "failed"})


class WaitLimits:
    """Of a thread that has its connection to itself, until ``lift``: how long a statement waits for a lock, then it gives
    up (as contention), as whoever has the lock may be frozen; and how long the thread may itself say nothing half way
    through a transaction, then the database ends that and the connection, for the sake of others. Over TCP the kernel ends the
    connection, once the database has been silent for longer.

    SQLite has its ``timeout``, and no such limit of silence; nor has MySQL.
    """

    def __init__(self, using: str) -> None:
        self._using = using
        self._connection: Any = None
        """The driver's, to which the limits apply."""
        self._before: tuple[Any, ...] = ()

    def impose(self, *, lock: timedelta, silence: timedelta) -> None:
        """Once for each connection, however often it is called."""
        connection = connections[self._using]
        connection.ensure_connection()
        if connection.connection is self._connection:
            return
        notice_silence(connection, silence)
        limits = (lock, silence)
        if connection.vendor == "postgresql":
            self._before = self._read("current_setting('{}')")
            self._set(tuple(f"{limit // timedelta(milliseconds=1)}ms" for limit in limits))
        elif connection.vendor == "mysql":
            self._before = self._read("@@SESSION.{}")
            self._set(tuple(ceil(limit / timedelta(seconds=1)) for limit in limits))
        self._connection = connection.connection

    def lift(self) -> None:
        """The connection, if it is still the same, may be the project's own, or go back to a pool."""
        if self._before and connections[self._using].connection is self._connection:
            with suppress(DatabaseError, InterfaceError):
                self._set(self._before)
        self._connection, self._before = None, ()

    def _names(self) -> list[str]:
        connection = connections[self._using]
        if connection.vendor == "postgresql":
            return ["lock_timeout", "idle_in_transaction_session_timeout"]
        if connection.vendor != "mysql":
            return []
        idle = ["idle_transaction_timeout"] if getattr(connection, "mysql_is_mariadb", False) else []
        return ["innodb_lock_wait_timeout", *idle]

    def _read(self, spelling: str) -> tuple[Any, ...]:
        with connections[self._using].cursor() as cursor:
            cursor.execute("SELECT " + ", ".join(spelling.format(name) for name in self._names()))
            return tuple(cursor.fetchone())

    def _set(self, values: tuple[Any, ...]) -> None:
        if connections[self._using].vendor == "postgresql":
            verb, spelling = "SELECT ", "set_config('{}', %s, false)"
        else:
            verb, spelling = "SET ", "SESSION {} = %s"
        names = self._names()
        with connections[self._using].cursor() as cursor:
            cursor.execute(verb + ", ".join(spelling.format(name) for name in names), values[: len(names)])


@contextmanager
def brief_transaction(using: str, patience: timedelta, *, savepoint: bool = True) -> Iterator[None]:
    """A transaction that the database ends once this process says nothing for ``patience`` half way through: it is frozen,
    or cut off, and others need what it has locked. SQLite and MySQL know no such limit. Within another transaction it is a
    part of that one, whose limits are not ours."""
    if connections[using].in_atomic_block:
        with transaction.atomic(using=using, savepoint=savepoint):
            yield
        return
    with _silence_limited(using, patience), transaction.atomic(using=using):
        if connections[using].vendor == "postgresql":
            with connections[using].cursor() as cursor:
                limit = patience // timedelta(milliseconds=1)
                cursor.execute(f"SET LOCAL idle_in_transaction_session_timeout = {limit}")
        yield


@contextmanager
def _silence_limited(using: str, patience: timedelta) -> Iterator[None]:
    """MariaDB's limit is the connection's, which may be the project's own: it gets its own back."""
    connection = connections[using]
    if not getattr(connection, "mysql_is_mariadb", False):
        yield
        return
    seconds = ceil(patience / timedelta(seconds=1))
    with connection.cursor() as cursor:
        cursor.execute(
            f"SET @dcron_idle = @@SESSION.idle_transaction_timeout, SESSION idle_transaction_timeout = {seconds}"
        )
    try:
        yield
    finally:
        with suppress(DatabaseError, InterfaceError), connection.cursor() as cursor:
            cursor.execute("SET SESSION idle_transaction_timeout = @dcron_idle")


def alias_for(model: type[models.Model]) -> str:
    """The database that rows of ``model`` are written to. Reads that decide something go there too, not to a replica."""
    return router.db_for_write(model)


def database_name(using: str) -> str:
    """The database for people to read, without user and password: ``database default (postgresql shop on db1:5432)``."""
    connection = connections[using]
    settings = connection.settings_dict
    address = ":".join(str(settings[part]) for part in ("HOST", "PORT") if settings.get(part))
    return f"database {using} ({connection.vendor} {settings['NAME']}{' on ' if address else ''}{address})"


def lacks_table(model: type[models.Model], using: str) -> bool:
    """Whether the database answers and has no table of this model: its migrations were never applied."""
    connection = connections[using]
    if connection.in_atomic_block and connection.needs_rollback:
        return False
    try:
        return model._meta.db_table not in connection.introspection.table_names()
    except (DatabaseError, InterfaceError):
        return False


def database_now(using: str) -> datetime:
    """The clock of database ``using``, aware UTC. One round trip."""
    if (at := clock.stands_at) is not None:
        return at
    connection = connections[using]
    now = UtcNow()
    sql, params = Query(None).get_compiler(using).compile(now)  # the spelling of this database
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {sql}", params)
        value: Any = cursor.fetchone()[0]
    for converter in connection.ops.get_db_converters(now):
        value = converter(value, now, connection)
    return value.astimezone(UTC)  # type: ignore[no-any-return]  # converters are untyped
