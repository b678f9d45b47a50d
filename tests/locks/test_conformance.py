"""The guarantees of every lock, checked with the real store of each backend.

The numbers in comments are those of ``locks.base``.
"""

import json
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
from tests.locks.contender import Beliefs, assert_never_two, contend
from tests.waiting import wait_until

LONG = timedelta(minutes=5)
SHORT = timedelta(milliseconds=50)
ALL = [f"shard:{number:02}" for number in range(64)]


def held(lock: Lock, names: list[str], holder: str, lease: timedelta = LONG) -> list[str]:
    return [each.name for each in lock.hold(names, holder, lease)]


class TestHold:
    def test_takes_all_that_is_free_in_one_go(self, lock: Lock) -> None:
        before = time.monotonic()
        leases = lock.hold(ALL, "a", LONG)
        assert [each.name for each in leases] == ALL
        assert {each.holder for each in leases} == {"a"}
        for each in leases:
            # (4) the belief starts before the request is sent
            assert before < each.expires_at <= time.monotonic() + LONG.total_seconds()
            assert each.valid(before)
            assert each.valid(time.monotonic())
            assert not each.valid(each.expires_at)

    def test_leaves_out_what_others_hold(self, lock: Lock) -> None:
        assert held(lock, ["1", "2"], "a") == ["1", "2"]
        assert held(lock, ["1", "2", "3"], "b") == ["3"]
        assert held(lock, ["1", "2", "3"], "a") == ["1", "2"]
        assert lock.holders(["1", "2", "3", "4"]) == {"1": "a", "2": "a", "3": "b"}

    def test_may_be_repeated(self, lock: Lock) -> None:
        for _ in range(3):
            assert held(lock, ["1", "2"], "a") == ["1", "2"]
        assert held(lock, ["1", "2"], "b") == []

    def test_a_name_given_twice_is_held_once(self, lock: Lock) -> None:
        assert held(lock, ["1", "1"], "a") == ["1"]

    def test_renewal_counts_from_now(self, lock: Lock) -> None:
        lock.hold(["1"], "a", SHORT)
        [short] = lock.hold(["1"], "a", SHORT)
        [long] = lock.hold(["1"], "a", LONG)
        wait_until(lambda: not short.valid(time.monotonic()), interval=0.005)
        assert long.valid(time.monotonic())
        assert held(lock, ["1"], "b") == []

    def test_a_lease_may_be_shortened(self, lock: Lock) -> None:
        lock.hold(["1"], "a", LONG)
        [short] = lock.hold(["1"], "a", SHORT)
        assert short.expires_at <= time.monotonic() + SHORT.total_seconds()
        wait_until(lambda: held(lock, ["1"], "b"), interval=0.005)

    def test_mixes_taking_and_renewing(self, lock: Lock) -> None:
        lock.hold(["2"], "a", LONG)
        assert held(lock, ["3", "2", "1"], "a") == ["1", "2", "3"]


class TestExpiry:
    def test_an_expired_lock_is_free_but_never_early(self, lock: Lock) -> None:
        for _ in range(10):
            [lease] = lock.hold(["1"], "a", SHORT)
            wait_until(lambda: held(lock, ["1"], "b"), interval=0.001)
            assert not lease.valid(time.monotonic())  # (4)
            lock.release(["1"], "b")

    def test_an_expired_lock_has_no_holder(self, lock: Lock) -> None:
        lock.hold(["1"], "a", SHORT)
        wait_until(lambda: lock.holders(["1"]) == {}, interval=0.005)

    def test_its_former_holder_may_take_it_again(self, lock: Lock) -> None:
        lock.hold(["1"], "a", SHORT)
        wait_until(lambda: not lock.holders(["1"]), interval=0.005)
        assert held(lock, ["1"], "a") == ["1"]
        assert held(lock, ["1"], "b") == []

    def test_the_wall_clock_of_the_client_does_not_matter(
        self, lock: Lock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lock.hold(["1"], "a", LONG)
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda: 4_000_000_000.0)
            assert held(lock, ["1"], "b") == []
            assert held(lock, ["2"], "b") == ["2"]
        assert held(lock, ["2"], "a") == []

    def test_a_forgotten_lock_is_free(self, backend: Backend, lock: Lock) -> None:
        lock.hold(["1", "2"], "a", LONG)
        backend.forget()
        assert lock.holders(["1", "2"]) == {}
        assert held(lock, ["1"], "b") == ["1"]
        assert held(lock, ["1", "2"], "a") == ["2"]


class TestRelease:
    def test_frees_at_once(self, lock: Lock) -> None:
        lock.hold(["1", "2"], "a", LONG)
        lock.release(["1"], "a")
        assert held(lock, ["1", "2"], "b") == ["1"]

    def test_never_frees_what_another_holds(self, lock: Lock) -> None:
        lock.hold(["1"], "a", LONG)
        lock.release(["1", "unknown"], "b")
        assert lock.holders(["1", "unknown"]) == {"1": "a"}

    def test_of_what_expired_and_was_taken_does_nothing(self, lock: Lock) -> None:
        lock.hold(["1"], "a", SHORT)
        wait_until(lambda: held(lock, ["1"], "b"), interval=0.005)
        lock.release(["1"], "a")
        assert lock.holders(["1"]) == {"1": "b"}

    def test_may_be_repeated(self, lock: Lock) -> None:
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
    def test_what_some_keeper_could_not_store_is_refused_by_all(
        self, lock: Lock, text: str
    ) -> None:
        for unfit in ({"names": [text], "holder": "a"}, {"names": ["1"], "holder": text}):
            with pytest.raises(ValueError, match="allowed: 1 to"):
                lock.hold(**unfit, lease=LONG)  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="allowed: 1 to"):
                lock.release(**unfit)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="allowed: 1 to"):
            lock.holders([text])

    def test_the_longest_texts_fit(self, lock: Lock) -> None:
        longest = "🦫" * 190
        assert held(lock, [longest], longest) == [longest]
        assert lock.holders([longest]) == {longest: longest}

    def test_one_text_is_no_collection_of_names(self, lock: Lock) -> None:
        with pytest.raises(TypeError, match="'shard'"):
            lock.hold("shard", "a", LONG)

    def test_a_lease_must_have_a_length(self, lock: Lock) -> None:
        with pytest.raises(ValueError, match="longer than zero"):
            lock.hold(["1"], "a", timedelta(0))


class TestKeeperOutOfReach:
    @pytest.fixture
    def unreachable(self, backend: Backend) -> Lock:
        return backend.unreachable()

    def test_is_lock_unavailable_with_its_cause_and_soon(self, unreachable: Lock) -> None:
        started = time.monotonic()
        for ask in (
            lambda: unreachable.hold(["1"], "a", LONG),
            lambda: unreachable.release(["1"], "a"),
            lambda: unreachable.holders(["1"]),
        ):
            with pytest.raises(LockUnavailable, match="the locks in") as raised:
                ask()
            assert isinstance(raised.value.__cause__, (redis.RedisError, django.db.Error, OSError))
        assert time.monotonic() - started < 5

    def test_nothing_wanted_is_nothing_asked(self, unreachable: Lock) -> None:
        assert unreachable.hold([], "a", LONG) == []
        assert unreachable.holders([]) == {}
        unreachable.release([], "a")


class TestRaces:
    """Four contenders take, renew, release and abandon the same six locks for a second."""

    SECONDS = 1.0

    def test_threads_sharing_a_lock(self, lock: Lock) -> None:
        until = time.monotonic() + self.SECONDS

        def run(holder: str) -> Beliefs:
            try:
                return contend(lock, holder, until)
            finally:
                connections.close_all()

        with ThreadPoolExecutor(4) as pool:
            assert_never_two(pool.map(run, "abcd"))

    def test_processes(self, backend: Backend, tmp_path: Path) -> None:
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
                what="all to be ready",
            )
            until = tmp_path / "until.new"
            until.write_text(str(time.monotonic() + self.SECONDS))
            until.rename(tmp_path / "until")
            for process in processes:
                assert process.wait() == 0, process.log
        finally:
            for process in processes:
                process.stop()
        assert_never_two(json.loads((tmp_path / f"{holder}.json").read_text()) for holder in "abcd")

    def test_two_threads_of_one_holder_believe_no_longer_than_the_keeper(self, lock: Lock) -> None:
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
