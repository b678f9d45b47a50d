"""The disk of PostgreSQL is full for a while: tables can't grow, and later nor can the WAL.

If a table can't grow, statements fail. If the WAL can't grow, the server panics and can't recover
before there is space. The data directory is on a small tmpfs, which needs the right to mount.
"""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from django.db import OperationalError, connection, connections

from tests import services, settings
from tests.cluster.cluster import SECOND, TIMEOUT, WITNESS, Cluster, now, shorter_durations
from tests.cluster.database_copy import DatabaseCopy, use
from tests.factories import make_job
from tests.fault_proxy import FaultProxy
from tests.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.postgresql, pytest.mark.nightly]

FAULT = 8.0
"""How long the disk is full, in seconds: longer than the lease, 6 s, and than the run lease."""
QUICK = shorter_durations(REDELIVER_AFTER=5, RUN_LEASE=5)
SIZE = 512 * 2**20
FREE = 96 * 2**20
"""Free bytes of the disk when it isn't full."""
NO_SPACE = "No space left on device"
PANIC = "PANIC: "


class Disk:
    """A tmpfs that can be filled up. It needs memory only for its files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._filler = root / "filler"

    def available(self) -> int:
        usage = os.statvfs(self.root)
        return usage.f_bavail * usage.f_frsize

    def fill(self, *, leave: int = 0) -> None:
        """Write a file, or more of it, until only ``leave`` bytes are available."""
        with self._filler.open("ab") as file:
            while (left := self.available() - leave) > 0:
                file.write(bytes(min(left, 2**20)))
                file.flush()

    def free(self) -> None:
        """Make ``FREE`` bytes available."""
        self._filler.unlink(missing_ok=True)
        self.fill(leave=FREE)


@pytest.fixture
def disk(transactional_db: None) -> Iterator[Disk]:
    root = settings.DIRECTORY / "disk"
    root.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={SIZE},mode=755", "dcron-tests"]
    try:
        done = subprocess.run(["mount", *options, root], capture_output=True, text=True)
        refused = done.stderr.partition("\n")[0] if done.returncode else ""
    except OSError as error:
        refused = str(error)
    if refused:
        root.rmdir()
        pytest.skip(f"a full disk needs the right to mount a tmpfs: {refused}")
    yield Disk(root)
    subprocess.run(["umount", "--lazy", root], check=True)
    root.rmdir()


@pytest.fixture
def database(disk: Disk, database_server: services.Server | None) -> Iterator[DatabaseCopy]:
    """A PostgreSQL whose data is on the disk. This process uses it until the test ends."""
    assert database_server is not None
    server = DatabaseCopy("postgresql-on-disk", database_server, disk.root / "data")
    disk.free()
    server.start()
    use(server)
    yield server
    use(database_server)
    server.stop()


@pytest.fixture
def proxy(database: DatabaseCopy) -> Iterator[FaultProxy]:
    proxy = FaultProxy(database.answers_at)
    yield proxy
    proxy.close()


def keep_full(disk: Disk, seconds: float) -> None:
    """Keep the disk full, even if the server deletes files."""
    end = time.monotonic() + seconds

    def over() -> bool:
        disk.fill()
        return time.monotonic() >= end

    wait_until(over, seconds + TIMEOUT, what="the end of the fault", interval=0.1)


def fill_the_wal(database: DatabaseCopy) -> None:
    """Begin new files of the WAL until there is no space for one, so that the server panics."""

    def panicked() -> bool:
        with suppress(OperationalError), connection.cursor() as cursor:
            cursor.execute("SELECT pg_switch_wal()")
        return PANIC in database.log

    wait_until(panicked, TIMEOUT, what="the server to panic", interval=0.1)
    connections.close_all()


def test_no_run_is_lost_while_the_disk_of_the_database_is_full(
    disk: Disk, database: DatabaseCopy, proxy: FaultProxy, cluster: Cluster
) -> None:
    # Some of these runs execute when the disk gets full. Their outcomes must be recorded later.
    make_job(name="long", target=WITNESS, schedule="*/5 * * * * *", kwargs={"seconds": 3})
    cluster.doctor_env = {"DCRON_TEST_DATABASE_PORT": str(proxy.port)}
    env = QUICK | cluster.doctor_env
    cluster.start(jobs=4, node_env=env, worker_env=env)
    cluster.run_for(5)

    disk.fill()
    members = [*cluster.nodes, *cluster.workers]
    wait_until(
        lambda: any(NO_SPACE in member.process.log for member in members),
        TIMEOUT,
        what="a node or worker to fail, because a table can't grow",
    )
    keep_full(disk, FAULT)
    assert PANIC not in database.log
    disk.free()
    cluster.wait_for_recovery("disk of PostgreSQL full: tables can't grow")

    disk.fill()
    fill_the_wal(database)
    keep_full(disk, FAULT)
    disk.free()
    freed = time.monotonic()
    if not database.running:  # it couldn't recover
        database.start()
    wait_until(database.answers, TIMEOUT, what="the database to answer")
    freed_at = now() - (time.monotonic() - freed) * SECOND
    cluster.wait_for_recovery("disk of PostgreSQL full: no WAL", since=freed_at)
    cluster.account()
