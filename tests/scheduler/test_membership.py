"""Membership: several nodes share the shards, with real locks and the database's clock."""

import logging
import os
import platform
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import pytest
from django.db import OperationalError, ProgrammingError, connection
from pytest_django import Settings

from django_dcron.db import clock
from django_dcron.db.clock import ClusterClock
from django_dcron.db.now import database_now
from django_dcron.exceptions import LockUnavailable
from django_dcron.locks import Lease, Lock, get_lock
from django_dcron.locks.database import DatabaseLock
from django_dcron.models import Node
from django_dcron.models.lease import LockLease
from django_dcron.scheduler import foreign_locks
from django_dcron.scheduler import membership as module
from django_dcron.scheduler.dead_nodes import server_node_name
from django_dcron.scheduler.membership import Membership
from tests import services
from tests.factories import make_node
from tests.logs import events, logged
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

ALL = frozenset(range(64))


@pytest.fixture(params=["database", "redis"])
def lock(request: pytest.FixtureRequest, redis_server: services.Server) -> Lock:
    return get_lock(request.param)


class FailingLock:
    """A lock whose server the test can make unreachable."""

    def __init__(self) -> None:
        self.unreachable = False
        self.held: dict[str, str] = {}

    def hold(self, names: Collection[str], holder: str, lease: timedelta) -> list[Lease]:
        self._reach()
        self.held |= {name: holder for name in names if self.held.get(name, holder) == holder}
        return [Lease(name, holder, 1e12) for name in names if self.held[name] == holder]

    def release(self, names: Collection[str], holder: str) -> None:
        self._reach()
        for name in names:
            self.held.pop(name)

    def holders(self, names: Collection[str]) -> dict[str, str]:
        return self.held

    def _reach(self) -> None:
        if self.unreachable:
            raise LockUnavailable("no route to the lock")


def node(lock: Lock, name: str = "a", namespace: str = "") -> Membership:
    membership = Membership(name, namespace, lock, ClusterClock())
    membership.register()
    return membership


def beat(*nodes: Membership, times: int = 2) -> None:
    """Beat twice, because a node takes released shards only at its next beat."""
    for _ in range(times):
        for each in nodes:
            each.beat(agenda=0)


def test_single_node_leads_all_shards_at_once(lock: Lock) -> None:
    a = node(lock)
    assert a.shards == ALL
    assert not a.beat(agenda=3), "the shards didn't change"
    row = Node.objects.get()
    assert (row.name, row.shards, row.agenda, row.degraded) == ("a", 64, 3, False)
    assert abs(row.skew) < timedelta(seconds=5)
    assert row.id.startswith("a-")
    assert row.locks_in_database == isinstance(lock, DatabaseLock)


def test_two_nodes_share_the_shards(lock: Lock) -> None:
    a = node(lock, "a")
    b = node(lock, "b")
    assert b.shards == frozenset()
    assert (a.pause, b.pause) == (2.0, 0.5), "a node that waits for its share beats more often"
    a.beat(agenda=0)
    assert b.beat(agenda=0)
    assert (a.pause, b.pause) == (2.0, 2.0)
    assert a.shards | b.shards == ALL
    assert not a.shards & b.shards
    assert a.shards
    assert b.shards


def test_locks_of_a_node_of_another_database_are_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two sites share a Redis without a ``KEY_PREFIX``."""
    lock = FailingLock()
    lock.held = {f":shard:{shard}/64": "vm-00000000" for shard in range(64)}
    a = node(lock)
    beat(a)
    assert a.shards == frozenset()
    assert "foreign_locks" not in events(caplog), "the holder may just have ended"
    monkeypatch.setattr(foreign_locks, "FOREIGN_AFTER", 0.0)
    beat(a, times=3)
    assert events(caplog).count("foreign_locks") == 1
    assert a.foreign_locks.holder == "vm-00000000"
    lock.held = {f":shard:{shard}/64": "vm-11111111" for shard in range(64)}
    beat(a, times=2)
    assert events(caplog).count("foreign_locks") == 2, "another node leads the shards"
    assert a.foreign_locks.holder == "vm-11111111"
    lock.held.clear()
    beat(a)
    assert a.shards == ALL
    assert not a.foreign_locks.holder


def test_locks_of_a_node_of_the_copied_database_are_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A copy of production's database contains the rows of production's nodes."""
    lock = FailingLock()
    production = node(lock, "production")
    expire_nodes("production")
    lock.held = {f":shard:{shard}/64": production.id for shard in range(64)}
    a = node(lock)
    monkeypatch.setattr(foreign_locks, "FOREIGN_AFTER", 0.0)
    with monkeypatch.context() as unreachable:
        unreachable.setattr(lock, "holders", Mock(side_effect=LockUnavailable("gone")))
        beat(a)
    beat(a)
    assert events(caplog).count("foreign_locks") == 1, "a failed look is repeated"


def test_locks_of_another_live_node_are_not_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(foreign_locks, "FOREIGN_AFTER", 0.0)
    lock = FailingLock()
    a = node(lock, "a")
    beat(a)
    b = node(lock, "b")
    beat(b, times=3)
    assert b.shards == frozenset()
    assert "foreign_locks" not in events(caplog)


def test_clean_leave_frees_the_shards_at_once(lock: Lock) -> None:
    a, b = node(lock, "a"), node(lock, "b")
    beat(a, b)
    a.leave()
    assert a.shards == frozenset()
    assert b.beat(agenda=0)
    assert b.shards == ALL
    assert [row.name for row in Node.objects.all()] == ["b"]


def expire_nodes(*names: str, host: str = "") -> None:
    """Make nodes look dead: set their last heartbeat to a minute ago."""
    long_ago = database_now("default") - timedelta(minutes=1)
    dead = Node.objects.filter(name__in=names)
    dead.update(heartbeat_at=long_ago, host=host or platform.node())


def names() -> list[str]:
    return sorted(Node.objects.values_list("name", flat=True))


def test_node_that_starts_again_replaces_its_dead_row(lock: Lock) -> None:
    for name in ("a", "b"):
        node(lock, name)
    node(lock, "a", "shop")
    node(lock, "a")  # Two live nodes may have the same name.
    assert names() == ["a", "a", "a", "b"]
    expire_nodes("a", "b")
    node(lock, "a")
    assert names() == ["a", "a", "b"], "only the dead nodes of the same name and namespace"
    expire_nodes("a", host="elsewhere")  # The replaced container had another host name.
    node(lock, "a")
    assert names() == ["a", "a", "b"]


def test_node_that_died_logs_its_downtime_when_it_starts_again(
    lock: Lock, caplog: pytest.LogCaptureFixture
) -> None:
    node(lock, "a")
    node(lock, "b").leave()
    expire_nodes("a")
    node(lock, "b")
    assert not logged(caplog, "restarted_after_death"), "b had stopped cleanly"
    died_at = Node.objects.get(name="a").heartbeat_at
    node(lock, "a")
    (message,) = logged(caplog, "restarted_after_death", node="a", since=died_at)
    assert "down_for=1m" in message
    node(lock, "a")
    assert len(logged(caplog, "restarted_after_death")) == 1, "the row was replaced"


def test_node_of_a_server_replaces_dead_nodes_of_servers_on_its_host(lock: Lock) -> None:
    host = platform.node()
    node(lock, "by hand")
    for pid in (1, 2):
        node(lock, server_node_name(host, pid))
        Node.objects.filter(name=server_node_name(host, pid)).update(pid=pid)
    expire_nodes("by hand", server_node_name(host, 1))
    node(lock, "b")
    assert len(names()) == 4
    node(lock, server_node_name(host, os.getpid()))
    expected = [server_node_name(host, pid) for pid in (2, os.getpid())]
    assert names() == sorted([*expected, "b", "by hand"])


def test_row_of_node_killed_just_before_the_restart_is_deleted_later(
    lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    node(lock, "a")
    again = node(lock, "a")
    expire_nodes("a")
    beat(again)
    assert names() == ["a", "a"]
    monkeypatch.setattr(again, "_registered_at", float("-inf"))
    beat(again)
    assert names() == ["a"]


def test_node_that_stops_soon_after_the_restart_deletes_its_dead_row(lock: Lock) -> None:
    for name in ("a", "b", "c"):
        node(lock, name)
    again = node(lock, "a")
    expire_nodes("a", "b")
    again.leave()
    assert names() == ["b", "c"]


def test_last_node_that_stops_deletes_the_rows_of_dead_nodes(lock: Lock) -> None:
    """If no node is live, the latest heartbeat is that of the node that ended last."""
    nodes = {name: node(lock, name) for name in ("a", "b", "c")}
    node(lock, "a", "shop")
    last = node(lock, "d", "shop")
    expire_nodes("a")
    nodes["b"].leave()
    assert names() == ["a", "a", "c", "d"], "c is live"
    nodes["c"].leave()
    assert {(row.name, row.namespace) for row in Node.objects.all()} == {
        ("a", "shop"),
        ("d", "shop"),
    }
    expire_nodes("a")
    last.leave()
    assert names() == []


def test_ring_changes_when_a_node_joins_leaves_or_dies(lock: Lock) -> None:
    a = node(lock, "a")
    assert not a.ring_changed()
    node(lock, "of another ring", "shop")
    assert not a.ring_changed()
    b = node(lock, "b")
    assert a.ring_changed()
    beat(a, b)
    assert not a.ring_changed()
    b.leave()
    assert a.ring_changed()
    assert a.beat(agenda=0)
    assert a.shards == ALL
    assert not a.ring_changed()
    c = node(lock, "c")
    beat(a, c)
    Node.objects.filter(pk=c.id).update(heartbeat_at=database_now("default") - timedelta(minutes=1))
    assert a.ring_changed()


def test_shards_of_a_dead_node_move_when_its_leases_expire(lock: Lock, settings: Settings) -> None:
    settings.DCRON_LEASE = timedelta(seconds=0.5)
    a, b = node(lock, "a"), node(lock, "b")
    beat(a, b)
    kept = b.shards
    # From here on "a" is dead. Its row is expired already, its locks only after their lease.
    Node.objects.filter(pk=a.id).update(heartbeat_at=database_now("default") - timedelta(seconds=1))

    def leads_all() -> bool:
        b.beat(agenda=0)
        assert kept <= b.shards
        return b.shards == ALL

    wait_until(leads_all, what="the live node to lead all shards")
    assert a.shards == frozenset(), "it doesn't trust expired leases"


def test_suspended_node_leads_nothing_until_its_next_heartbeat(
    lock: Lock,
) -> None:
    a, b = node(lock, "a"), node(lock, "b")
    beat(a, b)
    monotonic = a._clock.monotonic
    a._clock.monotonic = lambda: monotonic() + 60  # type: ignore[method-assign]
    assert a.shards == frozenset()
    a._clock.monotonic = monotonic  # type: ignore[method-assign]
    Node.objects.filter(pk=a.id).delete()  # pruned meanwhile
    b.beat(agenda=0)
    assert b.shards < ALL, "the suspended node's leases haven't expired"
    a.beat(agenda=7)
    assert Node.objects.filter(pk=a.id).exists()
    beat(a, b)
    assert a.shards
    assert a.shards | b.shards == ALL


def test_namespaces_have_separate_rings(lock: Lock, caplog: pytest.LogCaptureFixture) -> None:
    a, b = node(lock, "a", "shop"), node(lock, "b", "billing")
    beat(a, b)
    assert a.shards == b.shards == ALL
    assert events(caplog, "namespaces_overlap") == []


def test_overlap_of_served_namespaces_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    lock = FailingLock()
    everything, shop = node(lock, "a"), node(lock, "b", "shop")
    beat(everything, shop, times=3)
    warnings = [vars(record) for record in caplog.records if record.levelno == logging.WARNING]
    assert [(record["event"], record["node"]) for record in warnings] == [
        ("namespaces_overlap", "b"),
        ("namespaces_overlap", "a"),
    ]
    assert logged(caplog, "namespaces_overlap", "=shop", node="b")


def test_rows_of_dead_nodes_are_kept_for_a_day() -> None:
    for name, hours in (("x", 23), ("y", 25)):
        make_node(name, age=timedelta(hours=hours))
    node(FailingLock())
    assert sorted(Node.objects.values_list("name", flat=True)) == ["a", "x"]


# --- degraded -----------------------------------------------------------------------------------


def test_node_leads_by_hashing_while_the_lock_is_unavailable(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "django_dcron.scheduler")
    lock = FailingLock()
    a, b = node(lock, "a"), node(lock, "b")
    beat(a, b)
    shares = a.shards, b.shards
    caplog.clear()
    lock.unreachable = True
    beat(a, b, times=3)
    assert (a.degraded, b.degraded) == (True, True)
    assert "no route to the lock" in a.lock_error
    assert (a.shards, b.shards) == shares
    assert list(Node.objects.values_list("degraded", flat=True)) == [True, True]
    assert all("no route to the lock" in row.lock_error for row in Node.objects.all())
    lock.unreachable = False
    beat(a, b, times=3)
    assert (a.degraded, b.degraded) == (False, False)
    assert a.lock_error == ""
    assert (a.shards, b.shards) == shares
    own = [vars(record)["event"] for record in caplog.records if vars(record)["node"] == "a"]
    assert own == ["degraded", "recovered"]
    assert logged(caplog, "degraded", "no route to the lock", node="a")


def test_shards_of_a_dead_node_move_while_the_lock_is_unavailable() -> None:
    lock = FailingLock()
    a, b = node(lock, "a"), node(lock, "b")
    beat(a, b)
    lock.unreachable = True
    Node.objects.filter(pk=a.id).update(heartbeat_at=database_now("default") - timedelta(minutes=1))
    assert b.beat(agenda=0)
    assert b.shards == ALL


def test_node_can_start_and_leave_while_the_lock_is_unavailable(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "django_dcron.scheduler")
    lock = FailingLock()
    lock.unreachable = True
    a = node(lock)
    assert a.shards == ALL
    a.leave()
    assert not Node.objects.exists()
    assert events(caplog, "recovered") == [], "the lock was never reachable"


def test_node_recovers_after_redis_restarts(redis_server: services.Server) -> None:
    lock = get_lock("redis")
    a, b = node(lock, "a"), node(lock, "b")
    beat(a, b)
    shares = a.shards, b.shards
    redis_server.kill()
    beat(a, b, times=1)
    assert a.degraded
    assert (a.shards, b.shards) == shares
    redis_server.start()
    beat(a, b)
    assert not a.degraded
    assert (a.shards, b.shards) == shares
    assert len(lock.holders([f":shard:{n}/64" for n in range(64)])) == 64


@pytest.mark.parametrize("fails_to_connect", [True, False])
def test_leases_are_renewed_while_the_database_is_unreachable(
    monkeypatch: pytest.MonkeyPatch, fails_to_connect: bool
) -> None:
    lock = FailingLock()
    a = node(lock)
    lock.held.clear()

    def gone(*using: str) -> None:
        raise OperationalError("gone")

    monkeypatch.setattr(module, "database_now", gone)
    with pytest.raises(OperationalError):
        a.beat(agenda=0, **{"connect": gone} if fails_to_connect else {})
    assert len(lock.held) == 64
    assert a.shards == ALL


def test_node_without_database_access_releases_its_shards(
    lock: Lock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The lock server still answers this node, so its leases would never expire."""
    a, b = node(lock, "a"), node(lock, "b")
    beat(a, b)
    monotonic, passed = a._clock.monotonic, [0.0]
    a._clock.monotonic = lambda: monotonic() + passed[0]  # type: ignore[method-assign]

    def refused(agenda: int) -> None:
        raise OperationalError("no access")

    with monkeypatch.context() as without_database:
        without_database.setattr(a, "_write_heartbeat", refused)
        for passed[0] in (2.0, 7.0, 9.0):
            with pytest.raises(OperationalError):
                a.beat(agenda=0)
    assert a.shards == frozenset()
    # The other nodes consider it dead by now. It must have released its leases, which would
    # expire only in six seconds.
    Node.objects.filter(pk=a.id).update(heartbeat_at=database_now("default") - timedelta(seconds=9))
    assert b.beat(agenda=0)
    assert b.shards == ALL
    assert [vars(each)["event"] for each in caplog.records if each.levelno == logging.WARNING] == [
        "heartbeat_expired"
    ]
    passed[0] = 0.0  # leases use the real clock
    beat(a, b)
    assert a.shards
    assert a.shards | b.shards == ALL
    assert not a.shards & b.shards


def test_node_without_database_and_lock_leads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    lock = FailingLock()
    a = node(lock)
    lock.unreachable = True
    monotonic = a._clock.monotonic
    a._clock.monotonic = lambda: monotonic() + 60  # type: ignore[method-assign]

    def gone(using: str) -> None:
        raise OperationalError("gone")

    monkeypatch.setattr(module, "database_now", gone)
    with pytest.raises(OperationalError):
        a.beat(agenda=0)
    assert a.degraded
    assert a.shards == frozenset()


@contextmanager
def database_outage() -> Iterator[None]:
    """Make every statement of this connection fail."""

    def fail(*args: Any) -> None:
        raise OperationalError("gone")

    with connection.execute_wrapper(fail):
        yield


def test_outage_of_a_database_with_the_locks_is_no_outage_of_the_locks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The node's tick logs the outage. A second message about the locks would be misleading."""
    caplog.set_level(logging.INFO, "django_dcron.scheduler")
    a = node(get_lock("database"))
    caplog.clear()
    with database_outage():
        for _ in range(2):
            with pytest.raises(OperationalError):
                a.beat(agenda=0)
            assert (a.degraded, a.shards) == (False, ALL), "the leases are still valid"
        a.withdraw()
        assert (a.degraded, a.shards) == (False, frozenset())
    beat(a, times=1)
    assert a.shards == ALL
    assert not Node.objects.get().degraded
    assert events(caplog, "degraded", "recovered") == []


PassTime = Callable[[timedelta], None]
QUARTER = timedelta(minutes=15)


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch) -> PassTime:
    """Set the time of all clocks forward. Between two calls, it stands still."""
    times = [database_now("default")]
    monkeypatch.setattr(clock, "fixed_at", times[0])

    def advance(span: timedelta) -> None:
        times[0] += span
        monkeypatch.setattr(clock, "fixed_at", times[0])

    return advance


def durations(*nodes: Membership) -> list[list[timedelta]]:
    """Return the durations of the outages that each node has found."""
    return [[outage.duration for outage in each.outages] for each in nodes]


def test_first_node_back_after_an_outage_of_the_database_finds_it_with_its_cause(
    pass_time: PassTime,
) -> None:
    a, b = node(FailingLock(), "a"), node(FailingLock(), "b")
    began = database_now("default")
    with database_outage():
        for seconds in (timedelta(seconds=10), QUARTER - timedelta(seconds=10)):
            pass_time(seconds)
            with pytest.raises(OperationalError) as raised:
                a.beat(agenda=0)
            a.record_failed_heartbeat(raised.value)
    beat(a, b)
    restarted = node(FailingLock(), "c")
    assert durations(a, b, restarted) == [[QUARTER], [], []]
    assert a.outages[0].since == began
    failure = a.outages[0].failure
    assert failure is not None
    assert (failure.at - began, failure.error) == (timedelta(seconds=10), "gone")
    pass_time(QUARTER)
    beat(b)
    assert b.outages[0].failure is None
    assert b.outages[0].since == a.outages[0].until


def test_node_that_starts_first_after_an_outage_finds_it(pass_time: PassTime) -> None:
    for name in ("a", "b"):
        node(FailingLock(), name)
    pass_time(QUARTER)
    again, late = node(FailingLock(), "a", "shop"), node(FailingLock(), "b")
    assert durations(again, late) == [[QUARTER], []]


def test_nodes_that_return_at_the_same_moment_find_the_same_outage(pass_time: PassTime) -> None:
    a, b = node(FailingLock(), "a"), node(FailingLock(), "b")
    began = database_now("default")
    pass_time(QUARTER)
    found = [each._outage_search.look_back() for each in (a, b)]
    assert [each.since for each in found if each] == [began, began]


def test_nodes_stopped_for_long_were_in_an_outage(pass_time: PassTime) -> None:
    a, b = node(FailingLock(), "a"), node(FailingLock(), "b")
    pass_time(timedelta(seconds=50))
    beat(a, b)
    for each in (a, b):
        pass_time(timedelta(seconds=5))
        each.leave()
    assert not Node.objects.exists()
    pass_time(timedelta(days=7))
    assert durations(node(FailingLock(), "c")) == [[timedelta(days=7)]]


@pytest.mark.parametrize("stop_cleanly", [True, False])
def test_node_that_makes_one_tick_leaves_an_outage_to_the_next_node(
    pass_time: PassTime, stop_cleanly: bool
) -> None:
    first = node(FailingLock(), "a")
    pass_time(timedelta(days=3))
    beat(first)
    if stop_cleanly:
        first.leave()
    for _ in range(2):
        pass_time(QUARTER)
        once = Membership("once", "", FailingLock(), ClusterClock())
        once.register(once=True)
        assert durations(once) == [[]]
        once.leave()
    assert not Node.objects.exists()
    pass_time(QUARTER)
    assert durations(node(FailingLock(), "b")) == [[3 * QUARTER]]


def test_overlapping_and_killed_nodes_that_make_one_tick_leave_an_outage_to_the_next_node(
    pass_time: PassTime,
) -> None:
    node(FailingLock(), "a")
    first, second, killed = (
        Membership(name, "", FailingLock(), ClusterClock()) for name in ("1", "2", "killed")
    )
    for once in (first, second, killed):
        pass_time(QUARTER)
        once.register(once=True)
        once.beat(agenda=0)
    first.leave()
    second.leave()
    pass_time(QUARTER)
    assert durations(node(FailingLock(), "b")) == [[4 * QUARTER]]


def test_pauses_without_outage(pass_time: PassTime) -> None:
    """A first start, a suspended node beside another one, and a deploy that restarts all nodes."""
    a, b = node(FailingLock(), "a"), node(FailingLock(), "b")
    for _ in range(3):
        pass_time(timedelta(seconds=50))
        beat(b)
    beat(a)
    a.leave()
    b.leave()
    pass_time(timedelta(seconds=50))
    c = node(FailingLock(), "c")
    assert durations(a, b, c) == [[], [], []]


def test_locks_that_fail_in_a_reachable_database_make_the_node_degraded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "django_dcron.scheduler")
    lock = get_lock("database")
    a = node(lock)

    def deny(execute: Callable[..., Any], sql: str, *args: Any) -> Any:
        if LockLease._meta.db_table in sql:
            raise ProgrammingError("permission denied")
        return execute(sql, *args)

    with connection.execute_wrapper(deny):
        beat(a)
        assert (a.degraded, a.shards) == (True, ALL)
    beat(a)
    assert not a.degraded
    assert events(caplog, "degraded", "recovered") == ["degraded", "recovered"]
    assert logged(caplog, "degraded", "permission denied", node="a")


def unreachable_for(membership: Membership, seconds: float) -> None:
    """Make the node look as if it hadn't reached the broker for this many seconds."""
    since = database_now("default") - timedelta(seconds=seconds)
    membership._broker_unreachable_since = since
    Node.objects.filter(pk=membership.id).update(broker_unreachable_since=since)


def test_node_without_broker_gives_its_shards_to_a_node_with_broker(
    lock: Lock, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = node(lock, "a"), node(lock, "b")
    beat(a, b)
    shares = a.shards, b.shards
    a.broker_error = lambda: "out of memory"
    beat(a, b)
    assert (a.shards, b.shards) == shares, "not at once: the outage may be brief"
    unreachable_for(a, 7)
    assert b.ring_changed()
    beat(a, b)
    assert (a.shards, b.shards) == (frozenset(), ALL)
    assert not a.ring_changed()
    assert Node.objects.get(pk=a.id).broker_error == "out of memory"
    assert "shards_without_broker" in [vars(record)["event"] for record in caplog.records]
    monotonic, passed = a._clock.monotonic, [0.0]
    a._clock.monotonic = lambda: monotonic() + passed[0]  # type: ignore[method-assign]
    a.broker_error = lambda: ""
    beat(a, b)
    assert a.shards == frozenset(), "the node doesn't return at once, either"
    passed[0] = 7.0
    a.beat(agenda=0)
    passed[0] = 0.0
    beat(a, b, a, b)
    assert (a.shards, b.shards) == shares


def test_no_shard_moves_if_no_node_reaches_the_broker(lock: Lock) -> None:
    a, b = node(lock, "a"), node(lock, "b")
    beat(a, b)
    shares = a.shards, b.shards
    for each in (a, b):
        each.broker_error = lambda: "out of memory"
        unreachable_for(each, 7)
    beat(a, b, times=3)
    assert (a.shards, b.shards) == shares
    for each in (a, b):
        each.broker_error = lambda: ""
    beat(a, b)
    assert (a.shards, b.shards) == shares
    assert not Node.objects.exclude(broker_unreachable_since=None, broker_error="").exists()


def test_heartbeat_stores_an_error_that_is_long_or_contains_nul(lock: Lock) -> None:
    a = node(lock, "a")
    a.broker_error = lambda: "\0" + 300 * "x"
    beat(a)
    stored = Node.objects.get().broker_error
    assert (len(stored), stored[:2]) == (200, "\N{REPLACEMENT CHARACTER}x")


def test_heartbeat_stores_the_clock_doubt(lock: Lock) -> None:
    a = node(lock, "a")
    for step in (timedelta(seconds=-6), timedelta()):
        a._clock.sample = lambda read: None  # type: ignore[method-assign, assignment]
        a._clock.doubt = step
        a.beat(agenda=0)
        assert Node.objects.get(pk=a.id).clock_doubt == step


def test_single_node_keeps_its_shards_without_broker(lock: Lock) -> None:
    a = node(lock, "a")
    a.broker_error = lambda: "out of memory"
    unreachable_for(a, 60)
    beat(a)
    assert a.shards == ALL


def test_nodes_with_different_shard_counts_lead_their_own_shards(
    lock: Lock, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """Nodes differ during a deploy that changes the number of shards.

    Every job has a leader, and nodes with the same number share the jobs.
    """
    settings.DCRON_SHARDS = 64
    a = node(lock, "a")
    settings.DCRON_SHARDS = 16
    b, c = node(lock, "b"), node(lock, "c")
    for _ in range(2):
        settings.DCRON_SHARDS = 64
        assert not a.beat(agenda=0)
        assert not a.ring_changed()
        assert a.shards == ALL
        settings.DCRON_SHARDS = 16
        beat(b, c)
        assert b.shards | c.shards == frozenset(range(16))
        assert not b.shards & c.shards
    assert len([each for each in caplog.records if each.levelno == logging.WARNING]) == 3
    for name, its, others in (("a", 64, 16), ("b", 16, 64), ("c", 16, 64)):
        assert logged(caplog, "shards_differ", f"shards={its} ", f"others={others};", node=name)
