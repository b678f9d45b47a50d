"""Values that every database can store as JSON, and which of them are equal."""

from typing import Any

import pytest

from django_dcron.utils.json_values import (
    MAX_DEPTH,
    check_storable,
    duplicate_key,
    json_identity,
    same_json,
)


def nested(levels: int, kind: type[list[Any]] | type[dict[str, Any]]) -> Any:
    value: Any = "innermost"
    for _ in range(levels):
        value = [value] if kind is list else {"key": value, "other": 1}
    return value


@pytest.mark.parametrize("kind", [list, dict])
def test_nesting_is_limited_to_thirty_levels(kind: Any) -> None:
    assert MAX_DEPTH == 30
    value = nested(30, kind)
    assert check_storable(value) is value
    with pytest.raises(ValueError, match="30"):
        check_storable(nested(31, kind))
    with pytest.raises(ValueError, match="30"):
        check_storable([1, [2], nested(30, kind)])


@pytest.mark.parametrize(
    "value", [1, "text", None, True, 1.5, [], {}, {"a": [1, {"b": "ü\\u0000"}]}]
)
def test_storable_values_are_returned_unchanged(value: Any) -> None:
    assert check_storable(value) is value


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), "\0", "\\\0", ["a\0"], {"\0": 1}, "\ud800"]
)
def test_values_a_database_cannot_store_raise_value_error(value: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (of several kinds, from the standard library too)
        check_storable(value)


def test_error_for_nul_character_names_it() -> None:
    with pytest.raises(ValueError, match="NUL"):
        check_storable(["\0"])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (None, None),
        (True, True),
        (False, False),
        (1, 1.0),
        ("a", "a"),
        ([], []),
        ({}, {}),
        ([1, [True, None]], [1.0, [True, None]]),
        ({"a": 1, "b": [{"c": True}]}, {"b": [{"c": True}], "a": 1.0}),
    ],
)
def test_same_json_is_true_for_equal_json_values(one: Any, other: Any) -> None:
    assert same_json(one, other) is True
    assert same_json(other, one) is True
    assert json_identity(one) == json_identity(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (True, 1),
        (False, 0),
        (False, None),
        (True, False),
        (1, 2),
        ("1", 1),
        ([], {}),
        ([], None),
        ({}, None),
        ([1], 1),
        ({"a": 1}, 1),
        (["a"], "a"),
        ([1], [1, 2]),
        ([1, 2], [2, 1]),
        ([True], [1]),
        ({"a": True}, {"a": 1}),
        ({"a": 1}, {"a": None}),
        ({"a": 1}, {"b": 1}),
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"a": [{"b": 1}]}, {"a": [{"b": True}]}),
    ],
)
def test_same_json_is_false_for_different_json_values(one: Any, other: Any) -> None:
    assert same_json(one, other) is False
    assert same_json(other, one) is False
    assert json_identity(one) != json_identity(other)


def test_duplicate_key_is_found() -> None:
    assert duplicate_key([("a", 1), ("b", 2), ("b", 2)]) == "b"
    assert duplicate_key([("a", 1), ("b", 1)]) is None
