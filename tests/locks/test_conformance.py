"""The guarantees of every lock, checked with the real store of each backend.

The numbers in comments are those of ``locks.base``.
"""

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import django.db
import pytest
import redis
from django.db import connections

from django_dcron.exceptions import LockUnavailable
from django_dcron.locks import Lock
from tests import services
from tests.locks.conftest import Backend
from tests.locks.contender import Beliefs, assert_mutual_exclusion, contend
from tests.waiting import wait_until

LONG = timedelta(minutes=5)
SHORT = timedelta(milliseconds=50)
ALL = [f"shard:{number:02}" for number in range(64)]


def held(lock: Lock, names: list[str], holder: str, lease: timedelta = LONG) -> list[str]:
    return [each.name for each in lock.hold(names, holder, lease)]


class TestHold:
    def test_hold_takes_all_free_locks_in_one_call(self, lock: Lock) -> None:
        before = time.monotonic()
        leases = lock.hold(ALL, "a", LONG)
        assert [each.name for each in leases] == ALL
        assert {each.holder for each in leases} == {"a"}
        for each in leases:
            # (4) the lease counts from before the request was sent
            assert before < each.expires_at <= time.monotonic() + LONG.total_seconds()
            assert each.valid(before)
            assert each.valid(time.monotonic())
            assert not each.valid(each.expires_at)

    def test_hold_returns_no_locks_of_other_holders(self, lock: Lock) -> None:
        assert held(lock, ["1", "2"], "a") == ["1", "2"]
        assert held(lock, ["1", "2", "3"], "b") == ["3"]
        assert held(lock, ["1", "2", "3"], "a") == ["1", "2"]
        assert lock.holders(["1", "2", "3", "4"]) == {"1": "a", "2": "a", "3": "b"}

    def test_hold_can_be_repeated(self, lock: Lock) -> None:
        for _ in range(3):
            assert held(lock, ["1", "2"], "a") == ["1", "2"]
        assert held(lock, ["1", "2"], "b") == []

    def test_duplicate_lock_name_is_taken_once(self, lock: Lock) -> None:
        assert held(lock, ["1", "1"], "a") == ["1"]

    def test_renewed_lease_starts_now(self, lock: Lock) -> None:
        lock.hold(["1"], "a", SHORT)
        [short] = lock.hold(["1"], "a", SHORT)
        [long] = lock.hold(["1"], "a", LONG)
        wait_until(lambda: not short.valid(time.monotonic()), interval=0.005)
        assert long.valid(time.monotonic())
        assert held(lock, ["1"], "b") == []

    def test_renewal_can_shorten_the_lease(self, lock: Lock) -> None:
        lock.hold(["1"], "a", LONG)
        [short] = lock.hold(["1"], "a", SHORT)
        assert short.expires_at <= time.monotonic() + SHORT.total_seconds()
        wait_until(lambda: held(lock, ["1"], "b"), interval=0.005)

    def test_hold_takes_and_renews_locks_in_one_call(self, lock: Lock) -> None:
        lock.hold(["2"], "a", LONG)
        assert held(lock, ["3", "2", "1"], "a") == ["1", "2", "3"]


class TestExpiry:
    def test_lock_is_free_only_after_lease_expires(self, lock: Lock) -> None:
        for _ in range(10):
            [lease] = lock.hold(["1"], "a", SHORT)
            wait_until(lambda: held(lock, ["1"], "b"), interval=0.001)
            assert not lease.valid(time.monotonic())  # (4)
            lock.release(["1"], "b")

    def test_expired_lock_has_no_holder(self, lock: Lock) -> None:
        lock.hold(["1"], "a", SHORT)
        wait_until(lambda: lock.holders(["1"]) == {}, interval=0.005)

    def test_former_holder_can_take_expired_lock_again(self, lock: Lock) -> None:
        lock.hold(["1"], "a", SHORT)
        wait_until(lambda: not lock.holders(["1"]), interval=0.005)
        assert held(lock, ["1"], "a") == ["1"]
        assert held(lock, ["1"], "b") == []

    def test_wall_clock_of_client_is_ignored(
        self, lock: Lock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lock.hold(["1"], "a", LONG)
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda: 4_000_000_000.0)
            assert held(lock, ["1"], "b") == []
            assert held(lock, ["2"], "b") == ["2"]
        assert held(lock, ["2"], "a") == []

    def test_lock_is_free_after_store_is_flushed(self, backend: Backend, lock: Lock) -> None:
        lock.hold(["1", "2"], "a", LONG)
        backend.clear()
        assert lock.holders(["1", "2"]) == {}
        assert held(lock, ["1"], "b") == ["1"]
        assert held(lock, ["1", "2"], "a") == ["2"]


class TestRelease:
    def test_released_lock_is_free_immediately(self, lock: Lock) -> None:
        lock.hold(["1", "2"], "a", LONG)
        lock.release(["1"], "a")
        assert held(lock, ["1", "2"], "b") == ["1"]

    def test_release_keeps_the_lock_of_another_holder(self, lock: Lock) -> None:
        lock.hold(["1"], "a", LONG)
        lock.release(["1", "unknown"], "b")
        assert lock.holders(["1", "unknown"]) == {"1": "a"}

    def test_release_keeps_an_expired_lock_taken_by_another_holder(self, lock: Lock) -> None:
        lock.hold(["1"], "a", SHORT)
        wait_until(lambda: held(lock, ["1"], "b"), interval=0.005)
        lock.release(["1"], "a")
        assert lock.holders(["1"]) == {"1": "b"}

    def test_release_can_be_repeated(self, lock: Lock) -> None:
        lock.hold(["1"], "a", LONG)
        lock.release(["1"], "a")
        lock.release(["1"], "a")
        assert lock.holders(["1"]) == {}


# A careless comparison regards some of these neighbors as equal.
LOOKALIKES = [
    "node",
    "Node",
    "nöde",
    "no\u0308de",
    "node ",
    " node",
    "节点",
    "🦫" * 100,
    "%s",
    "n*de",
    "{n}",
    "'\"\\",
]


class TestTexts:
    @pytest.mark.parametrize("one", LOOKALIKES, ids=lambda one: ascii(one)[:20])
    def test_holders_are_compared_exactly(self, lock: Lock, one: str) -> None:
        lock.hold(["1"], one, LONG)
        assert lock.holders(["1"]) == {"1": one}
        for other in LOOKALIKES:
            lock.release(["1"], other) if other != one else None
            assert held(lock, ["1"], other) == (["1"] if other == one else [])

    def test_names_are_compared_exactly(self, lock: Lock) -> None:
        holders = {name: f"holder of {name}" for name in LOOKALIKES}
        for name, holder in holders.items():
            assert held(lock, [name], holder) == [name]
        assert lock.holders(LOOKALIKES) == holders

    @pytest.mark.parametrize("text", ["", "x" * 191, "a\0b", "\ud800"])
    def test_every_backend_refuses_text_that_one_backend_cannot_store(
        self, lock: Lock, text: str
    ) -> None:
        for unfit in ({"names": [text], "holder": "a"}, {"names": ["1"], "holder": text}):
            with pytest.raises(ValueError, match=re.escape(repr(text))):
                lock.hold(**unfit, lease=LONG)  # type: ignore[arg-type]
            with pytest.raises(ValueError, match=re.escape(repr(text))):
                lock.release(**unfit)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=re.escape(repr(text))):
            lock.holders([text])

    def test_longest_texts_fit(self, lock: Lock) -> None:
        longest = "🦫" * 190
        assert held(lock, [longest], longest) == [longest]
        assert lock.holders([longest]) == {longest: longest}

    def test_string_instead_of_names_is_refused(self, lock: Lock) -> None:
        with pytest.raises(TypeError, match="'shard'"):
            lock.hold("shard", "a", LONG)

    def test_lease_of_zero_length_is_refused(self, lock: Lock) -> None:
        with pytest.raises(ValueError, match="timedelta"):
            lock.hold(["1"], "a", timedelta(0))


class TestUnreachableStore:
    @pytest.fixture
    def unreachable(self, backend: Backend) -> Lock:
        return backend.unreachable()

    def test_lock_unavailable_is_raised_promptly_with_its_cause(self, unreachable: Lock) -> None:
        started = time.monotonic()
        for ask in (
            lambda: unreachable.hold(["1"], "a", LONG),
            lambda: unreachable.release(["1"], "a"),
            lambda: unreachable.holders(["1"]),
        ):
            with pytest.raises(LockUnavailable) as raised:
                ask()
            assert isinstance(raised.value.__cause__, (redis.RedisError, django.db.Error, OSError))
        assert time.monotonic() - started < 5

    def test_empty_request_does_not_contact_the_store(self, unreachable: Lock) -> None:
        assert unreachable.hold([], "a", LONG) == []
        assert unreachable.holders([]) == {}
        unreachable.release([], "a")


class TestRaces:
    """Four contenders take, renew, release and abandon the same six locks for a second."""

    SECONDS = 1.0

    def test_only_one_of_several_threads_holds_a_lock(self, lock: Lock) -> None:
        until = time.monotonic() + self.SECONDS

        def run(holder: str) -> Beliefs:
            try:
                return contend(lock, holder, until)
            finally:
                connections.close_all()

        with ThreadPoolExecutor(4) as pool:
            assert_mutual_exclusion(pool.map(run, "abcd"))

    def test_only_one_of_several_processes_holds_a_lock(
        self, backend: Backend, tmp_path: Path
    ) -> None:
        processes = [
            services.python_process(
                f"contender-{backend.kind}-{holder}",
                *["-m", "tests.locks.contender", backend.kind, holder, str(tmp_path)],
            )
            for holder in "abcd"
        ]
        try:
            for process in processes:
                process.start()
            wait_until(
                lambda: len(list(tmp_path.glob("*.ready"))) == len(processes),
                what="all contenders to be ready",
            )
            until = tmp_path / "until.new"
            until.write_text(str(time.monotonic() + self.SECONDS))
            until.rename(tmp_path / "until")
            for process in processes:
                assert process.wait() == 0, process.log
        finally:
            for process in processes:
                process.stop()
        assert_mutual_exclusion(
            json.loads((tmp_path / f"{holder}.json").read_text()) for holder in "abcd"
        )

    def test_thread_does_not_rely_on_longer_lease_of_another_thread(self, lock: Lock) -> None:
        """One thread requests long leases, the other short ones. Neither relies on the other's."""

        def renew(lease: timedelta) -> float:
            try:
                # A lease that expires before its response arrives isn't returned.
                held = [each for _ in range(50) for each in lock.hold(["1"], "a", lease)]
                return max(each.expires_at - time.monotonic() for each in held)
            finally:
                connections.close_all()

        with ThreadPoolExecutor(2) as pool:
            remaining = list(pool.map(renew, [SHORT, LONG]))
        assert remaining[0] <= SHORT.total_seconds()
