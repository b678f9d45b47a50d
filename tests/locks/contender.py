"""A contender for locks. It records when it believed to hold which lock.

``contend`` runs in a thread. ``python -m tests.locks.contender KIND HOLDER DIRECTORY`` is a process
of its own: it reports in DIRECTORY that it is ready, waits there for the others, and writes its
beliefs to HOLDER.json. All processes of a machine share the monotonic clock, so their beliefs can
be compared.
"""

import json
import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

from django_dcron.locks import Lock
from tests.waiting import wait_until

NAMES = [f"shard:{number}" for number in range(6)]
LEASE = timedelta(milliseconds=40)
TIMEOUT = timedelta(minutes=2)
"""Maximum time that a contender waits for the leases' file on a busy machine."""
ROUNDS = 100
"""Minimum number of rounds of each contender, even if a busy machine rarely schedules it."""

Beliefs = dict[str, list[tuple[float, float, str]]]
"""By name of the lock: (from, until, holder). Both times are on the monotonic clock."""


def contend(lock: Lock, holder: str, until: float) -> Beliefs:
    """Take some locks and release or abandon some of them, again and again."""
    if hasattr(lock, "timeout"):  # a FileLock, which waits for access to the file
        lock.timeout = TIMEOUT
    beliefs: Beliefs = defaultdict(list)
    choice = random.Random(holder)
    rounds = 0
    while time.monotonic() < until or rounds < ROUNDS:
        rounds += 1
        wanted = choice.sample(NAMES, 4)
        leases = lock.hold(wanted, holder, LEASE)
        now = time.monotonic()
        for lease in leases:
            _cut(beliefs[lease.name], now)  # renewed: the new lease replaces the old one
            beliefs[lease.name].append((now, lease.expires_at, holder))
        if choice.random() < 0.5:
            now = time.monotonic()
            for name in wanted:
                _cut(beliefs[name], now)
            lock.release(wanted, holder)
    return beliefs


def _cut(beliefs: list[tuple[float, float, str]], end: float) -> None:
    if beliefs:
        start, until, holder = beliefs[-1]
        beliefs[-1] = (start, min(until, end), holder)


def assert_never_two(parties: Iterable[Beliefs]) -> None:
    """Assert that no two holders believed to hold a lock at the same time.

    Each lock must also have changed hands.
    """
    parties = list(parties)
    for name in NAMES:
        held = sorted(
            (a, b, who) for party in parties for a, b, who in party.get(name, []) if a < b
        )
        assert len({holder for _, _, holder in held}) > 1, f"{name} never changed hands: {held}"
        for (_, until, one), (start, _, other) in pairwise(held):
            assert one == other or until <= start, (
                f"{one} and {other} both held {name} for {until - start} s"
            )


def main() -> None:
    import django

    django.setup()
    from django.conf import settings

    from django_dcron.locks import get_lock

    kind, holder, path = sys.argv[1:]
    directory = Path(path)
    settings.DCRON_LOCK_DIR = directory / "locks"
    (directory / f"{holder}.ready").touch()
    until = wait_until(lambda: (directory / "until").exists() and (directory / "until").read_text())
    (directory / f"{holder}.json").write_text(
        json.dumps(contend(get_lock(kind), holder, float(until)))
    )


if __name__ == "__main__":
    main()
