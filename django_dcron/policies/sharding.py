"""Assign each shard to one of the live nodes.

Rendezvous hashing (Thaler and Ravishankar, 1998): each node ranks all shards by the hash of (shard,
node). The live node that ranks a shard highest leads it.

Invariants:

- Every node computes the same leaders from the same list of nodes.
- When a node joins or leaves, only the shards that it gains or loses move. No shard moves between
  two nodes that stay.
- A node's ranks are the numbers from 0 on, each used once, so no node ranks many shards high by
  chance.

With 64 shards and three nodes, each node leads 20-47 % of the shards. One triple of nodes in
several thousand is an exception; with plain hashes it would be one in 25. Exceptions are
inevitable: an assignment that never moves a shard between two nodes that stay uses one fixed order
of all nodes for each shard. Among enough nodes, there are three that every shard orders in the same
way or in reverse. If only these three are live, the middle one leads no shard.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b

NODES_KEPT = 256
"""The number of nodes whose ranks are cached."""
HASH_BITS = 64


def leaders(nodes: Iterable[str], shards: int) -> list[str]:
    """Return the leader of each shard, or an empty list if there is no node."""
    ranked = [(_ranks(node, shards), node) for node in sorted(nodes)]
    return [
        max((ranks[shard], node) for ranks, node in ranked)[1]
        for shard in range(shards if ranked else 0)
    ]


def shards_led_by(node: str, nodes: Iterable[str], shards: int) -> frozenset[int]:
    """Return the shards that ``node`` leads among the live ``nodes``."""
    return frozenset(shard for shard, leader in enumerate(leaders(nodes, shards)) if leader == node)


def shard_of_job(job_id: int, shards: int) -> int:
    """Return the job's shard. ``models.shards`` has the same rule for queries."""
    return job_id % shards


def shard_lock_name(namespace: str, shard: int, shards: int) -> str:
    """Return the name of the lock that the leader of a shard holds."""
    return f"{namespace}:shard:{shard}/{shards}"


def shard_of_lock(name: str) -> int:
    """Return the shard of a lock, the reverse of ``shard_lock_name``."""
    return int(name.rpartition(":")[2].partition("/")[0])


@lru_cache(NODES_KEPT)
def _ranks(node: str, shards: int) -> tuple[int, ...]:
    """Return the node's rank of each shard.

    The hash breaks ties, as two nodes often give a shard the same rank.
    """
    hashes = [_hash(shard, node) for shard in range(shards)]
    ranks = [0] * shards
    for rank, shard in enumerate(sorted(range(shards), key=hashes.__getitem__)):
        ranks[shard] = rank << HASH_BITS | hashes[shard]
    return tuple(ranks)


def _hash(shard: int, node: str) -> int:
    return int.from_bytes(blake2b(f"{shard}:{node}".encode(), digest_size=HASH_BITS // 8).digest())
