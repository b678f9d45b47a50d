"""Another session locks the same rows in the opposite order, so that MariaDB breaks deadlocks."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import OperationalError, connection, transaction

from django_dcron.db.contention import is_contention
from django_dcron.models import Cursor, Run, Statistics
from tests.cluster.cluster import TIMEOUT, Cluster, shorter_durations
from tests.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.mariadb, pytest.mark.nightly]

DEADLOCKS = 20


def deadlocks() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT variable_value FROM information_schema.global_status "
            "WHERE variable_name = 'Innodb_deadlocks'"
        )
        return int(cursor.fetchone()[0])


class Disturber:
    """Lock statistics and cursors first and runs afterwards.

    Nodes and workers lock the run first.
    """

    def __init__(self) -> None:
        self._ended = threading.Event()
        self.rollbacks = 0
        """How often MariaDB rolled back the disturber's own transaction."""

    def run(self) -> None:
        while not self._ended.wait(0.01):
            try:
                with transaction.atomic():
                    len(Statistics.objects.select_for_update().order_by("-pk"))
                    len(Cursor.objects.select_for_update().order_by("-pk"))
                    unfinished = Run.objects.filter(state__in=("pending", "queued", "running"))
                    len(unfinished.select_for_update().order_by("-pk"))
            except OperationalError as error:
                if not is_contention(error):
                    raise
                self.rollbacks += 1
        connection.close()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        thread = threading.Thread(target=self.run)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()


def test_no_run_is_lost_by_deadlocks(cluster: Cluster) -> None:
    env = shorter_durations(REDELIVER_AFTER=5)
    cluster.start(jobs=8, node_env=env, worker_env=env)
    before, disturber = deadlocks(), Disturber()
    with disturber.at_work():
        wait_until(
            lambda: deadlocks() - before - disturber.rollbacks >= DEADLOCKS,
            TIMEOUT,
            what="nodes and workers to be victims of deadlocks",
        )
    cluster.wait_for_recovery("MariaDB deadlocks")
    cluster.account()
