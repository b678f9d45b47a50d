"""The verdict agrees with Python's own on every call, and names what is wrong."""

import inspect
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_dcron.exceptions import InvalidArguments
from django_dcron.targets.signatures import check_call, in_words, signature_of


def plain(city: str, days: int = 1) -> None: ...


def only(city: str, /, *, unit: str) -> None: ...


def nothing() -> None: ...


def anything(*args: Any, **kwargs: Any) -> None: ...


def mixed(city: str, /, days: int = 1, *rest: Any, unit: str = "C", **more: Any) -> None: ...


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "message", "field"),
    [
        (plain, ["Ulm", 1, 2], {}, "3 positional arguments are too many (allowed: 2, city, days)", "args"),
        (nothing, [1], {}, "1 positional argument is too many (allowed: 0)", "args"),
        (plain, [], {}, "'city' is missing", "args"),
        (plain, ["Ulm"], {"city": "Ulm"}, "'city' is given twice, by position and by name", "kwargs"),
        (
            plain,
            ["Ulm"],
            {"day": 1},
            "'day' is no parameter; did you mean days? (allowed: city, days)",
            "kwargs",
        ),
        (nothing, [], {"x": 1}, "'x' is no parameter (it takes none by name)", "kwargs"),
        (only, ["Ulm"], {}, "'unit' is missing", "kwargs"),
        (only, [], {"city": "Ulm", "unit": "C"}, "'city' is no parameter (allowed: unit)", "kwargs"),
    ],
)
def test_the_message_names_the_parameter(
    function: Any, args: list[Any], kwargs: dict[str, Any], message: str, field: str
) -> None:
    with pytest.raises(InvalidArguments) as caught:
        check_call(inspect.signature(function), args, kwargs)
    assert (str(caught.value), caught.value.field) == (message, field)


NAMES = st.sampled_from(["city", "days", "unit", "x"])


@given(
    st.sampled_from([plain, only, nothing, anything, mixed]),
    st.lists(st.integers(), max_size=4),
    st.dictionaries(NAMES, st.integers()),
)
def test_it_agrees_with_python(function: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
    signature = inspect.signature(function)
    try:
        function(*args, **kwargs)  # not Signature.bind: it takes a positional-only name for one given by name
    except TypeError:
        with pytest.raises(InvalidArguments):
            check_call(signature, args, kwargs)
    else:
        check_call(signature, args, kwargs)


def annotated(
    city: "str", days: int = 1, *, unit: str = "C", key: str = "s" * 41, more: object = object()
) -> None: ...


def test_a_signature_in_words_shows_short_plain_defaults_only() -> None:
    assert in_words(signature_of(annotated)) == (
        "(city: str, days: int = 1, *, unit: str = 'C', key: str = …, more: object = …)"
    )
    assert in_words(signature_of(mixed)).startswith("(city: str, /, days: int = 1, *rest: Any")
    assert in_words(signature_of(nothing)) == "()"


def test_what_has_no_signature_is_neither_worded_nor_checked() -> None:
    assert signature_of(vars) is None
    assert in_words(None) == ""
    check_call(None, [1, 2, 3], {"x": 1})
