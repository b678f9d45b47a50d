"""Keep no log of queries in processes that run for months.

With ``DEBUG = True``, Django keeps the texts of the last 9,000 queries of each connection. It
empties this log at the start of each request. The threads of nodes and workers handle no requests.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from django_dcron.utils.threads import DcronThread


def disable_query_log_in_own_threads() -> None:
    """Let new connections of django-dcron's own threads log nothing."""
    connection_created.connect(_disable_log, dispatch_uid="django_dcron.query_log")


def _disable_log(connection: BaseDatabaseWrapper, **_: Any) -> None:
    if isinstance(threading.current_thread(), DcronThread):
        connection.queries_log = deque(maxlen=0)


def forget_queries() -> None:
    """Empty the log of this thread, unless a test captures its queries.

    Threads that execute jobs call this after a run instead of disabling the log, because the job's
    code may read it.
    """
    for connection in connections.all(initialized_only=True):
        if not connection.force_debug_cursor:
            connection.queries_log.clear()
