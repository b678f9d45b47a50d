"""Shared limits: keys from arguments, and the places that are free."""

from itertools import combinations, product

import pytest

from django_dcron.policies.limits import (
    LONGEST_KEY,
    LineFacts,
    is_key_template,
    limit_key,
    places_to_give,
)


@pytest.mark.parametrize(
    ("template", "args", "kwargs", "key"),
    [
        ("", [1], {"a": 1}, ""),
        ("all", [], {}, "all"),
        ("customer:{kwargs[customer_id]}", [], {"customer_id": 7}, "customer:7"),
        ("customer:{kwargs[customer_id]}", [], {"customer_id": "7"}, "customer:7"),
        ("{args[0]}/{args[1]}", ["a", 2.5], {}, "a/2.5"),
        ("{kwargs[a]}", [], {"a": {"y": True, "x": [None]}}, '{"x": [null], "y": true}'),
        ("{kwargs[a]}-{args[3]}", [1], {}, "-"),
        ("{kwargs[a]}", [], {"a": None}, ""),
        ("{kwargs[a]}", [], {"a": "{args[0]}"}, "{args[0]}"),
    ],
)
def test_key_depends_on_template_and_arguments(
    template: str, args: list[object], kwargs: dict[str, object], key: str
) -> None:
    assert is_key_template(template)
    assert limit_key(template, args, kwargs) == key


@pytest.mark.parametrize(
    "template",
    [
        *("{", "}", "{}", "{0}", "{kwargs}", "{kwargs[]}", "{kwargs[a.b]}", "{kwargs.a}"),
        *("{args[-1]}", "{args[0]!r}", "{kwargs[a]:>9}", "{kwargs[a].b}", "{{kwargs[a]}}"),
    ],
)
def test_other_braces_are_refused(template: str) -> None:
    assert not is_key_template(template)


def test_long_keys_are_bounded_and_stay_distinct() -> None:
    longest = "x" * LONGEST_KEY
    assert limit_key("{args[0]}", [longest], {}) == longest
    keys = {limit_key("{args[0]}", [longest + end], {}) for end in ("a", "b", "ab")}
    assert len(keys) == 3
    assert {len(key) for key in keys} == {LONGEST_KEY}


def test_no_more_places_are_given_than_the_limit_allows() -> None:
    """All sets of taken places, also after the limit was lowered."""
    for max_running, size in product(range(1, 5), range(7)):
        for taken in combinations(range(1, 7), size):
            free = places_to_give(LineFacts(max_running, None, {*taken}), 10)
            assert len(free) == max(max_running - size, 0), (max_running, taken)
            assert not {*free} & {*taken}
            assert free == sorted({*free})
            assert all(1 <= number <= max_running for number in free), (max_running, taken)


def test_no_more_runs_start_than_the_interval_allows() -> None:
    """Runs with a place that haven't started count, because they start next."""
    for max_running, most, started, running, unstarted in product(
        (None, 1, 2, 3), range(1, 4), range(5), range(3), range(3)
    ):
        taken = range(1, running + unstarted + 1)
        free = places_to_give(LineFacts(max_running, most, taken, unstarted, started), 2)
        assert len(free) <= max(most - started - unstarted, 0)
        if max_running is not None:
            assert len(free) <= max(max_running - running - unstarted, 0)
        elif most - started - unstarted > 0:
            assert free, "no limit of running runs"
        assert len(free) <= 2
