"""Cases of the file lock alone: other users, cleanup, reboots, half-written files."""

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
from django_dcron.locks.file import LEASE_FILE, FileLock
from tests.logs import logged

LONG = timedelta(minutes=5)


@pytest.fixture
def lock(file_lock_directory: Path) -> FileLock:
    return FileLock(timeout=timedelta(milliseconds=50))


@pytest.fixture
def leases(lock: FileLock) -> Path:
    lock.hold(["1"], "a", LONG)
    return lock.directory / LEASE_FILE


def test_only_the_owner_can_read_the_files(leases: Path) -> None:
    assert stat.S_IMODE(leases.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(leases.stat().st_mode) == 0o600


class TestFileLocking:
    @pytest.fixture
    def suspended_process(self, leases: Path) -> Iterator[None]:
        """A process that was suspended while it held the file lock."""
        directory = os.open(leases.parent, os.O_RDONLY)
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
        os.close(directory)

    @pytest.mark.usefixtures("suspended_process")
    def test_hold_fails_while_a_suspended_process_locks_the_file(self, lock: FileLock) -> None:
        started = time.monotonic()
        with pytest.raises(LockUnavailable):
            lock.hold(["1"], "a", LONG)
        assert time.monotonic() - started < 1

    def test_forked_child_does_not_keep_the_file_locked(self, lock: FileLock) -> None:
        with lock._locked_directory() as directory:
            inherited = os.dup(directory)  # as a fork does
        try:
            assert lock.hold(["1"], "a", LONG)
        finally:
            os.close(inherited)


class TestLeaseFile:
    def test_lease_from_before_reboot_is_void(self, lock: FileLock, leases: Path) -> None:
        future = time.monotonic() + 1000
        leases.write_text(json.dumps({"1": ["a", future, future + 300]}))
        assert lock.holders(["1"]) == {}
        assert lock.hold(["1"], "b", LONG)

    @pytest.mark.parametrize(
        "content", ["", "{", "[]", '{"1": 2}', '{"1": ["a", "x", 3]}', "\0\0\0"]
    )
    def test_unreadable_file_frees_all_locks_and_is_logged(
        self, lock: FileLock, leases: Path, content: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        leases.write_text(content)
        assert lock.hold(["1"], "b", LONG)
        assert logged(caplog, "leases_unreadable")
        assert lock.holders(["1"]) == {"1": "b"}

    def test_half_written_file_of_a_crash_is_ignored(self, lock: FileLock, leases: Path) -> None:
        leases.with_name(f"{LEASE_FILE}.new").write_text('{"2": ["b", 0')
        assert not lock.hold(["1"], "b", LONG)
        assert lock.hold(["2"], "b", LONG)

    def test_directory_is_recreated_after_removal(self, lock: FileLock, leases: Path) -> None:
        leases.unlink()
        leases.parent.rmdir()
        assert lock.hold(["1"], "b", LONG)

    def test_expired_leases_are_removed_from_the_file(self, lock: FileLock, leases: Path) -> None:
        leases.write_text(json.dumps({f"old:{number}": ["a", 0, 0] for number in range(1000)}))
        lock.hold(["1"], "a", LONG)
        assert list(json.loads(leases.read_text())) == ["1"]

    def test_symbolic_link_in_place_of_the_file_is_not_followed(
        self, lock: FileLock, leases: Path, tmp_path: Path
    ) -> None:
        secret = tmp_path / "secret"
        secret.write_text("{}")
        leases.unlink()
        leases.symlink_to(secret)
        with pytest.raises(LockUnavailable):
            lock.hold(["1"], "a", LONG)
        assert secret.read_text() == "{}"

    def test_temporary_file_is_not_written_through_a_symbolic_link(
        self, lock: FileLock, leases: Path, tmp_path: Path
    ) -> None:
        secret = tmp_path / "secret"
        secret.write_text("{}")
        leases.with_name(f"{leases.name}.new").symlink_to(secret)
        with pytest.raises(LockUnavailable):
            lock.hold(["1"], "a", LONG)
        assert secret.read_text() == "{}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the owner of a directory")
def test_directory_owned_by_another_user_is_refused(lock: FileLock) -> None:
    lock.directory.mkdir()
    os.chown(lock.directory, 12345, 12345)
    with pytest.raises(LockUnavailable, match=" 12345"):
        lock.hold(["1"], "a", LONG)
