"""The limit that applies to a start, while people edit limits and arguments."""

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from tests.verdict.history import Change, History, Limit
from tests.verdict.limits import key_of, limits
from tests.verdict.tests.good import SECOND, T

Event = tuple[str, str, str, int] | Limit
"""A run, its old and new state, and the second. Or a definition."""


def limit(max_running: int | None = None, **fields: Any) -> Limit:
    return Limit(0, "api", max_running=max_running, **fields)


def messages(*events: Event, key: str = "", keys: Mapping[int, str] | None = None) -> list[str]:
    """Return what the rule finds in these events, numbered in their order.

    ``keys``: the keys of single events, by their numbers.
    """
    history = History(T, T)
    for number, event in enumerate(events, 1):
        if isinstance(event, Limit):
            history.limits.append(Limit(**{**vars(event), "number": number}))
            continue
        run, old, new, second = event
        at = T + second * SECOND
        change = Change(number, run, 1, old, new, T, "manual", limited=True, at=at, limit="api")
        own_key = (keys or {}).get(number, key)
        history.changes.append(Change(**{**vars(change), "key": own_key}))
    return [finding.message for finding in limits(history)]


def start(run: str, second: int = 0) -> Event:
    return run, "queued", "running", second


def end(run: str, second: int = 0) -> Event:
    return run, "running", "succeeded", second


def wait(run: str) -> Event:
    return run, "queued", "waiting", 0


def test_lowered_limit_counts_only_for_runs_that_get_their_place_later() -> None:
    both = limit(2), start("a"), start("b"), limit(1)
    assert messages(*both) == []
    assert messages(*both, end("b"), start("c")) == ["2 of 1 running: limit api"]
    assert messages(*both, end("a"), end("b"), start("c")) == []


def test_run_that_waits_may_have_got_its_place_before_the_limit_was_lowered() -> None:
    waits = limit(1), start("a"), wait("b"), limit(2), limit(1)
    assert messages(*waits, start("b")) == []
    assert messages(*waits, start("b"), start("c")) == ["3 of 1 running: limit api"]


def test_limit_without_a_maximum_of_running_runs_allows_any_number() -> None:
    unlimited = limit(max_started=9, interval=SECOND)
    assert messages(unlimited, start("a"), start("b")) == []
    assert messages(limit(1), wait("a"), unlimited, limit(1), start("b"), start("a")) == [
        "2 of 1 running: limit api"
    ]


def test_starts_count_until_the_interval_is_over() -> None:
    one = limit(max_started=1, interval=10 * SECOND)
    assert messages(one, start("a", 0), start("b", 10)) == []
    found = ["2 of 1 started within 0:00:10: limit api customer:7"]
    assert messages(one, start("a", 0), start("b", 9), key="customer:7") == found


def test_start_before_the_interval_was_lengthened_does_not_count() -> None:
    short, long = (limit(max_started=1, interval=number * SECOND) for number in (5, 20))
    assert messages(short, start("a", 0), long, start("b", 6)) == []
    assert messages(long, start("a", 0), short, start("b", 6)) == []
    assert messages(long, start("a", 0), short, start("b", 4)) != []
    assert messages(short, long, short, start("a", 0), start("b", 4)) != []
    assert messages(short, start("a", 0), limit(2), short, start("b", 4)) == []


def test_next_attempt_takes_its_place_again() -> None:
    retried: Event = ("a", "running", "pending", 0)
    assert messages(limit(1), start("a"), retried, start("b"), end("b"), start("a")) == []
    assert messages(limit(1), start("a"), retried, start("b"), start("a")) != []


def test_run_whose_worker_may_have_read_other_arguments_is_not_judged() -> None:
    """The worker has read the run and its arguments at any time since the attempt was created."""
    queued: Event = ("b", "pending", "queued", 0)
    events = limit(1), start("a"), queued, start("b")
    assert messages(*events) == ["2 of 1 running: limit api"]
    assert messages(*events, keys={3: "customer:1"}) == []
    ended = end("b"), ("b", "absent", "queued", 0), start("b")
    assert messages(*events, *ended, keys={3: "customer:1"}) == ["2 of 1 running: limit api"]


def test_key_has_the_values_of_the_arguments() -> None:
    template = "{args[0]} {kwargs[customer_id]} {kwargs[missing]}{args[3]}"
    assert key_of(template, ["north"], {"customer_id": 7}) == "north 7 "
    assert key_of("{kwargs[of]}", [], {"of": {"b": 1, "a": None}}) == json.dumps(
        {"a": None, "b": 1}
    )


def test_history_with_limits_is_the_same_after_writing_and_reading() -> None:
    history = History(T, T, limits=[limit(interval=timedelta(minutes=1))])
    assert History.from_json(history.to_json()).limits == history.limits
