"""A contender for locks. It records when it believed that it held each lock.

``contend`` runs in a thread. ``python -m tests.locks.contender KIND HOLDER DIRECTORY`` runs it in a
separate process. The process creates HOLDER.ready in DIRECTORY, waits for the file ``until``, and
writes its beliefs to HOLDER.json. All processes of a machine share the monotonic clock, so their
beliefs can be compared.
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
"""Maximum time that a contender waits for access to the file lock on a busy machine."""
ROUNDS = 100
"""Minimum number of rounds of each contender, even if a busy machine rarely schedules it."""

Beliefs = dict[str, list[tuple[float, float, str]]]
"""For each lock name: the periods (from, until, holder), on the monotonic clock."""


def contend(lock: Lock, holder: str, until: float) -> Beliefs:
    """Take some locks repeatedly. Release them half of the time, and otherwise let them expire."""
    if hasattr(lock, "timeout"):  # a FileLock, which waits for access to the file
        lock.timeout = TIMEOUT
    beliefs: Beliefs = defaultdict(list)
    generator = random.Random(holder)
    rounds = 0
    while time.monotonic() < until or rounds < ROUNDS:
        rounds += 1
        wanted = generator.sample(NAMES, 4)
        leases = lock.hold(wanted, holder, LEASE)
        now = time.monotonic()
        for lease in leases:
            _end_last(beliefs[lease.name], now)  # renewed: the new lease replaces the old one
            beliefs[lease.name].append((now, lease.expires_at, holder))
        if generator.random() < 0.5:
            now = time.monotonic()
            for name in wanted:
                _end_last(beliefs[name], now)
            lock.release(wanted, holder)
    return beliefs


def _end_last(beliefs: list[tuple[float, float, str]], end: float) -> None:
    if beliefs:
        start, until, holder = beliefs[-1]
        beliefs[-1] = (start, min(until, end), holder)


def assert_mutual_exclusion(beliefs_by_holder: Iterable[Beliefs]) -> None:
    """Assert that no two holders believed at the same time that they held the same lock.

    Each lock must also have had several holders.
    """
    all_beliefs = list(beliefs_by_holder)
    for name in NAMES:
        held = sorted(
            (start, until, holder)
            for beliefs in all_beliefs
            for start, until, holder in beliefs.get(name, [])
            if start < until
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
