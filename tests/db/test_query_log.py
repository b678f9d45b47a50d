"""With DEBUG on, nodes and workers keep no log of queries; requests and tests keep theirs."""

from collections.abc import Callable

import pytest
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from django_dcron.db.query_log import forget_queries
from django_dcron.dispatch.thread import ThreadDispatcher
from django_dcron.models import Job
from django_dcron.utils.threads import DcronThread
from tests.scheduler.stand_ins import due_run
from tests.threads import in_threads

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def debug(settings: Settings) -> None:
    settings.DEBUG = True


def logged(query: Callable[[], object], kind: type[DcronThread] | None) -> int:
    """Return how many queries the log of a thread has after ``query``."""
    lengths: list[int] = []

    def work() -> None:
        query()
        lengths.append(len(connection.queries_log))
        connections.close_all()

    if kind is None:
        in_threads(work)
    else:
        thread = kind(target=work)
        thread.start()
        thread.join()
    return lengths[0]


def test_thread_of_a_node_logs_no_queries() -> None:
    assert logged(Job.objects.count, None) > 0
    assert logged(Job.objects.count, DcronThread) == 0


def test_log_is_emptied_unless_a_test_captures_it() -> None:
    Job.objects.count()
    assert len(connection.queries_log) > 0
    forget_queries()
    assert len(connection.queries_log) == 0
    with CaptureQueriesContext(connection) as queries:
        Job.objects.count()
        forget_queries()
    assert len(queries) == 1


def test_log_of_an_executing_thread_is_emptied_after_each_run() -> None:
    lengths: list[int] = []

    def execute(*_: object, **__: object) -> None:
        before = len(connection.queries_log)
        Job.objects.count()
        lengths.extend((before, len(connection.queries_log)))

    dispatcher = ThreadDispatcher(execute, 1, 1)
    dispatcher.publish([due_run("a"), due_run("b")])
    dispatcher.close(wait=True)
    assert lengths[0] == lengths[2] == 0
    assert lengths[1] > 0, "the job's own queries are logged"
