"""Shards and their leaders: every node computes the same leaders, and few shards move."""

import random
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_dcron.policies.sharding import (
    leaders,
    shard_lock_name,
    shard_of_job,
    shard_of_lock,
    shards_led_by,
)
from tests import depth

SHARDS = 64
names = st.text("abc-0123", min_size=1, max_size=6)
nodes = st.lists(names, unique=True, min_size=1, max_size=8)


@given(nodes)
def test_every_shard_is_led_by_exactly_one_node(live: list[str]) -> None:
    led = [shard for node in live for shard in shards_led_by(node, live, SHARDS)]
    assert sorted(led) == list(range(SHARDS))


def test_shard_of_a_job_depends_on_its_key() -> None:
    assert [shard_of_job(key, SHARDS) for key in (1, 63, 64, 130)] == [1, 63, 0, 2]


@given(st.sampled_from(["", "shop", "a:b"]), st.integers(0, SHARDS - 1))
def test_name_of_a_lock_contains_its_shard(namespace: str, shard: int) -> None:
    assert shard_of_lock(shard_lock_name(namespace, shard, SHARDS)) == shard


@given(nodes)
def test_leaders_do_not_depend_on_the_order_of_nodes(live: list[str]) -> None:
    assert leaders(live, SHARDS) == leaders(sorted(live, reverse=True), SHARDS)


@given(nodes, names)
def test_new_node_moves_no_shards_between_other_nodes(live: list[str], new: str) -> None:
    before, after = leaders(live, SHARDS), leaders({*live, new}, SHARDS)
    assert {now for then, now in zip(before, after, strict=True) if then != now} <= {new}


@given(nodes, st.data())
def test_only_shards_of_a_removed_node_move(live: list[str], data: st.DataObject) -> None:
    removed = data.draw(st.sampled_from(live))
    staying = [node for node in live if node != removed]
    if staying:
        pairs = zip(leaders(live, SHARDS), leaders(staying, SHARDS), strict=True)
        assert {then for then, now in pairs if then != now} <= {removed}


def test_shards_have_no_leader_without_live_nodes() -> None:
    assert leaders([], SHARDS) == []
    assert shards_led_by("a", [], SHARDS) == frozenset()


def test_node_that_is_not_live_leads_no_shards() -> None:
    assert shards_led_by("gone", ["a", "b"], SHARDS) == frozenset()


def clusters(size: int, number: int) -> Iterator[list[str]]:
    """Yield clusters of nodes with realistic names: the host and a random part."""
    draw = random.Random(size)
    for _ in range(number):
        yield [f"web-{n % 2}-{draw.getrandbits(32):08x}" for n in range(size)]


def shares(live: list[str]) -> list[int]:
    counts = Counter(leaders(live, SHARDS))
    return [counts[node] for node in live]


def test_each_of_three_nodes_leads_20_to_47_percent() -> None:
    """A few clusters exceed this. No stable assignment avoids that for all sets of three nodes."""
    found = [shares(live) for live in clusters(3, depth.examples(3000))]
    uneven = [
        counts for counts in found if min(counts) < 0.20 * SHARDS or max(counts) > 0.47 * SHARDS
    ]
    assert len(uneven) <= 3
    assert all(min(counts) > 0.15 * SHARDS and max(counts) < 0.52 * SHARDS for counts in uneven)


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_new_node_takes_about_its_fair_share(size: int) -> None:
    moved = []
    for live in clusters(size, 300):
        before, after = leaders(live[:-1], SHARDS), leaders(live, SHARDS)
        moved.append(sum(then != now for then, now in zip(before, after, strict=True)))
    fair = SHARDS / size
    assert sum(moved) / len(moved) == pytest.approx(fair, rel=0.05)
    assert max(moved) <= fair + 10


def test_leaders_are_the_same_in_every_release() -> None:
    """Nodes of two releases run side by side during a deploy, so they must agree."""
    assert "".join(leaders(["a", "b", "c"], 16)) == "abcbcabbcbcacabc"
