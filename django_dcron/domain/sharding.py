"""Jobs are cut into a fixed number of shards; each shard is led by one node at a time.

Rendezvous hashing (Thaler and Ravishankar, 1998) names the leader: each node gives every shard a rank of its own, drawn by
the hash of (shard, node), and the live node that ranks a shard highest leads it. Invariants:

- Every node computes the same answer from the same list.
- When a node comes or goes, only the shards it gains or held move, never one between two nodes that both stay.
- A node's ranks are all numbers from 0 on, each once, so that none thinks highly of many shards by luck. Of 64 shards each of
  three nodes leads 20-47 %, but for one triple in some thousands; by hashes alone it is one in 25. (It cannot hold for all:
  whoever never moves a shard between two that stay goes by one fixed order of all nodes for each shard, and among enough nodes
  there are three that all shards have in the same order, or its reverse. Then one of them leads none.)
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b

NODES_KEPT = 256
HASH_BITS = 64


def leaders(nodes: Iterable[str], shards: int) -> list[str]:
    """The node that should lead each shard; none, when there is no node."""
    ranked = [(_ranks(node, shards), node) for node in sorted(nodes)]
    return [
        max((ranks[shard], node) for ranks, node in ranked)[1] for shard in range(shards if ranked else 0)
    ]


def shards_led_by(node: str, nodes: Iterable[str], shards: int) -> frozenset[int]:
    """The shards that ``node`` should lead among the live ``nodes``."""
    return frozenset(shard for shard, leader in enumerate(leaders(nodes, shards)) if leader == node)


@lru_cache(NODES_KEPT)
def _ranks(node: str, shards: int) -> tuple[int, ...]:
    """How highly the node ranks each shard. The hash follows the rank: two nodes often give a shard the same."""
    hashes = [_hash(shard, node) for shard in range(shards)]
    ranks = [0] * shards
    for rank, shard in enumerate(sorted(range(shards), key=hashes.__getitem__)):
        ranks[shard] = rank << HASH_BITS | hashes[shard]
    return tuple(ranks)


def _hash(shard: int, node: str) -> int:
    return int.from_bytes(blake2b(f"{shard}:{node}".encode(), digest_size=HASH_BITS // 8).digest())
