"""The check of arguments agrees with Python on every call and names the invalid parameter."""

import inspect
import sys
from collections.abc import Callable
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import Annotated, Any, Literal, Optional

import pytest
from django.contrib.auth.models import User
from hypothesis import given
from hypothesis import strategies as st

from django_dcron.exceptions import InvalidArguments
from django_dcron.targets.signatures import check_call, signature_of, signature_text


def plain(city: str, days: int = 1) -> None: ...


def only(city: str, /, *, unit: str) -> None: ...


def nothing() -> None: ...


def anything(*args: Any, **kwargs: Any) -> None: ...


def mixed(city: str, /, days: int = 1, *rest: Any, unit: str = "C", **more: Any) -> None: ...


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "code", "values", "field"),
    [
        (plain, ["Ulm", 1, 2], {}, "too_many_arguments", ["3", "2", "city, days"], "args"),
        (nothing, [1], {}, "too_many_arguments", ["1"], "args"),
        (plain, [], {}, "missing_argument", ["'city'"], "args"),
        (plain, ["Ulm"], {"city": "Ulm"}, "given_twice", ["'city'"], "kwargs"),
        (
            plain,
            ["Ulm"],
            {"day": 1},
            "unknown_parameter",
            ["'day'", "'days'", "city, days"],
            "kwargs",
        ),
        (nothing, [], {"x": 1}, "unknown_parameter", ["'x'"], "kwargs"),
        (nothing, [], {"x": 1, "y": 2}, "unknown_parameter", ["'x', 'y'"], "kwargs"),
        (nothing, [], dict.fromkeys("abcdefg", 1), "unknown_parameter", ["'e', ..."], "kwargs"),
        (
            plain,
            ["Ulm"],
            {"day": 1, "days": 2, "zip": 3},
            "unknown_parameter",
            ["'day', 'zip'", "city, days"],
            "kwargs",
        ),
        (only, ["Ulm"], {}, "missing_argument", ["'unit'"], "kwargs"),
        (
            only,
            [],
            {"city": "Ulm", "unit": "C"},
            "unknown_parameter",
            ["'city'", "(allowed: unit)"],
            "kwargs",
        ),
    ],
)
def test_error_has_code_field_and_parameter_name(
    function: Any,
    args: list[Any],
    kwargs: dict[str, Any],
    code: str,
    values: list[str],
    field: str,
) -> None:
    with pytest.raises(InvalidArguments) as caught:
        check_call(inspect.signature(function), args, kwargs)
    assert (caught.value.code, caught.value.field) == (code, field)
    assert [value for value in values if value not in str(caught.value)] == []


NAMES = st.sampled_from(["city", "days", "unit", "x"])


@given(
    st.sampled_from([plain, only, nothing, anything, mixed]),
    st.lists(st.integers(), max_size=4),
    st.dictionaries(NAMES, st.integers()),
)
def test_check_agrees_with_calling_the_function(
    function: Any, args: list[Any], kwargs: dict[str, Any]
) -> None:
    signature = inspect.signature(function)
    try:
        # Not Signature.bind, which confuses positional-only names with keywords.
        function(*args, **kwargs)
    except TypeError:
        with pytest.raises(InvalidArguments):
            check_call(signature, args, kwargs)
    else:
        check_call(signature, args, kwargs)


def annotated(
    city: "str", days: int = 1, *, unit: str = "C", key: str = "s" * 41, more: object = object()
) -> None: ...


class Mode(StrEnum):
    FAST = "fast"


class Level(IntEnum):
    HIGH = 3


def chosen(mode: "Mode" = Mode.FAST, level: "Level" = Level.HIGH) -> None: ...


def test_signature_text_shows_members_of_an_enum_by_name() -> None:
    assert signature_text(signature_of(chosen)) == (
        "(mode: Mode = Mode.FAST, level: Level = Level.HIGH)"
    )


def test_signature_text_shows_only_short_plain_defaults() -> None:
    assert signature_text(signature_of(annotated)) == (
        "(city: str, days: int = 1, *, unit: str = 'C', key: str = …, more: object = …)"
    )
    assert signature_text(signature_of(mixed)).startswith(
        "(city: str, /, days: int = 1, *rest: Any"
    )
    assert signature_text(signature_of(nothing)) == "()"


def typed(
    user: Annotated[int, User],
    copy: Annotated[int | None, User] = None,
    deputy: Annotated[int, User] | None = None,
    group: Annotated[str, "a name"] = "",
    channel: Literal["mail", 3, Mode.FAST] = "mail",
    at: datetime | None = None,
    notify: Callable[[int], str] | None = None,
    sizes: tuple[int, ...] = (),
    by_name: Optional["Mode"] = None,
) -> None: ...


def test_signature_text_shows_readable_types() -> None:
    assert signature_text(signature_of(typed)) == (
        "(user: User, copy: User | None = None, deputy: User | None = None, group: str = '', "
        "channel: Literal['mail', 3, Mode.FAST] = 'mail', at: datetime | None = None, "
        "notify: Callable[[int], str] | None = None, sizes: tuple[int, ...] = …, "
        "by_name: Mode | None = None)"
    )


@pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations are evaluated at once")
def test_type_hint_that_only_a_type_checker_imports_is_shown() -> None:
    names: dict[str, Any] = {}
    exec("def typed(order: Order, days: int = 1) -> Order: ...", names)  # noqa: S102 (the test's own text)
    assert signature_text(signature_of(names["typed"])) == "(order: Order, days: int = 1)"


def test_function_without_signature_has_no_text_and_is_not_checked() -> None:
    assert signature_of(vars) is None
    assert signature_text(None) == ""
    check_call(None, [1, 2, 3], {"x": 1})
