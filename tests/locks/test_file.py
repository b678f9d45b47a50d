"""Cases that only the lock in a file has: other users, cleanup, reboots, half-written files."""

import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from django_dcron.exceptions import LockUnavailable
from django_dcron.locks.file import LEASES, FileLock
from tests.logs import logged

LONG = timedelta(minutes=5)


@pytest.fixture
def lock(file_lock_directory: Path) -> FileLock:
    return FileLock(timeout=timedelta(milliseconds=50))


@pytest.fixture
def leases(lock: FileLock) -> Path:
    lock.hold(["1"], "a", LONG)
    return lock.directory / LEASES


def test_nobody_else_may_look(leases: Path) -> None:
    assert stat.S_IMODE(leases.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(leases.stat().st_mode) == 0o600


class TestTurns:
    @pytest.fixture
    def somebody_in(self, leases: Path) -> Iterator[None]:
        """A process that froze while it held the file lock."""
        directory = os.open(leases.parent, os.O_RDONLY)
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
        os.close(directory)

    @pytest.mark.usefixtures("somebody_in")
    def test_waiting_for_ones_turn_has_an_end(self, lock: FileLock) -> None:
        started = time.monotonic()
        with pytest.raises(LockUnavailable):
            lock.hold(["1"], "a", LONG)
        assert time.monotonic() - started < 1

    def test_a_child_forked_meanwhile_does_not_keep_it(self, lock: FileLock) -> None:
        with lock._turn() as directory:
            inherited = os.dup(directory)  # as a fork does
        try:
            assert lock.hold(["1"], "a", LONG)
        finally:
            os.close(inherited)


class TestLeaseFile:
    def test_a_lease_of_before_the_reboot_is_void(self, lock: FileLock, leases: Path) -> None:
        future = time.monotonic() + 1000
        leases.write_text(json.dumps({"1": ["a", future, future + 300]}))
        assert lock.holders(["1"]) == {}
        assert lock.hold(["1"], "b", LONG)

    @pytest.mark.parametrize(
        "content", ["", "{", "[]", '{"1": 2}', '{"1": ["a", "x", 3]}', "\0\0\0"]
    )
    def test_an_unreadable_file_frees_all_and_says_so(
        self, lock: FileLock, leases: Path, content: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        leases.write_text(content)
        assert lock.hold(["1"], "b", LONG)
        assert logged(caplog, "leases_unreadable")
        assert lock.holders(["1"]) == {"1": "b"}

    def test_what_a_crash_left_half_written_is_no_obstacle(
        self, lock: FileLock, leases: Path
    ) -> None:
        leases.with_name(f"{LEASES}.new").write_text('{"2": ["b", 0')
        assert not lock.hold(["1"], "b", LONG)
        assert lock.hold(["2"], "b", LONG)

    def test_a_cleaner_may_take_the_whole_directory(self, lock: FileLock, leases: Path) -> None:
        leases.unlink()
        leases.parent.rmdir()
        assert lock.hold(["1"], "b", LONG)

    def test_expired_leases_are_swept_out(self, lock: FileLock, leases: Path) -> None:
        leases.write_text(json.dumps({f"old:{number}": ["a", 0, 0] for number in range(1000)}))
        lock.hold(["1"], "a", LONG)
        assert list(json.loads(leases.read_text())) == ["1"]

    def test_a_link_planted_in_its_place_is_not_followed(
        self, lock: FileLock, leases: Path, tmp_path: Path
    ) -> None:
        secret = tmp_path / "secret"
        secret.write_text("{}")
        leases.unlink()
        leases.symlink_to(secret)
        with pytest.raises(LockUnavailable):
            lock.hold(["1"], "a", LONG)
        assert secret.read_text() == "{}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_somebody_else_made_is_refused(lock: FileLock) -> None:
    lock.directory.mkdir()
    os.chown(lock.directory, 12345, 12345)
    with pytest.raises(LockUnavailable, match="belongs to user 12345"):
        lock.hold(["1"], "a", LONG)
