"""Describe the parameters of a target for a form: one kind of input for each type hint.

Invariants:

- A form offers either all named parameters of a target or none. It offers none if one parameter is
  positional-only, because that parameter can't be passed by name.
- A parameter without a type hint gets the type of its default value. Without such a default, its
  value is entered as text or JSON. A type that has no input of its own is entered as JSON.
- A type hint that can't be evaluated raises nothing.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum, StrEnum
from inspect import Parameter, Signature
from typing import Annotated, Any

from django.db.models import Model

MAX_PARAMETERS = 30
"""A form with more inputs would be too long, so it offers none."""
MAX_CHOICES = 200


class InputKind(StrEnum):
    INTEGER = "integer"
    NUMBER = "number"
    DECIMAL = "decimal"
    """A decimal number as text, which JSON doesn't round."""
    BOOLEAN = "boolean"
    TEXT = "text"
    DATE = "date"
    DATETIME = "datetime"
    CHOICE = "choice"
    ANY = "any"
    """Text or JSON: the parameter has no type hint, or ``Any``."""
    JSON = "json"


@dataclass(frozen=True, slots=True)
class TargetParameter:
    name: str
    kind: InputKind
    is_required: bool
    """Whether the target can't be called without it."""
    default: Any = None
    """The default value; None also if it isn't plain JSON."""
    accepts_none: bool = False
    omitted_is_none: bool = False
    """Whether the target gets ``None`` if the input is empty."""
    choices: tuple[tuple[Any, str], ...] = ()
    """The JSON value and the label of each choice."""
    is_positional: bool = True
    """Whether it may be passed by position."""
    model: type[Model] | None = None
    """The model whose rows the values are the keys of, from a hint ``Annotated[int, Model]``."""
    is_named: bool = True
    """False for an argument without a named parameter, for example after a deploy renamed it."""


_KINDS: dict[Any, InputKind] = {
    bool: InputKind.BOOLEAN,
    int: InputKind.INTEGER,
    float: InputKind.NUMBER,
    Decimal: InputKind.DECIMAL,
    str: InputKind.TEXT,
    date: InputKind.DATE,
    datetime: InputKind.DATETIME,
}
_BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def parameters_of(
    signature: Signature | None, function: Callable[..., Any]
) -> list[TargetParameter] | None:
    """Return the named parameters, or None if a form can't offer them."""
    if signature is None:
        return None
    parameters = list(signature.parameters.values())
    if any(each.kind is Parameter.POSITIONAL_ONLY for each in parameters):
        return None
    named = [each for each in parameters if each.kind in _BY_NAME]
    if len(named) > MAX_PARAMETERS:
        return None
    hints = _type_hints(function)
    return [_describe_parameter(each, hints.get(each.name, each.annotation)) for each in named]


def _type_hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception:
        return {}


def _describe_parameter(parameter: Parameter, hint: Any) -> TargetParameter:
    is_required = parameter.default is Parameter.empty
    default = None if is_required else _plain(parameter.default)
    hint, accepts_none = without_none(hint)
    hint, model = without_model(hint)
    if model is not None:
        hint, is_optional = without_none(hint)
        accepts_none = accepts_none or is_optional
    choices = _choices(hint)
    if hint is Parameter.empty and default is not None:
        known = type(parameter.default) in _KINDS
        hint = type(parameter.default if known else default)
    kind = InputKind.CHOICE if choices else InputKind.JSON
    if hint in (Parameter.empty, Any):
        kind = InputKind.ANY
    elif not choices and isinstance(hint, type):
        kind = _KINDS.get(hint, InputKind.JSON)
    return TargetParameter(
        name=parameter.name,
        kind=kind,
        is_required=is_required,
        default=default,
        accepts_none=accepts_none or parameter.default is None,
        omitted_is_none=accepts_none if is_required else parameter.default is None,
        choices=choices,
        is_positional=parameter.kind is Parameter.POSITIONAL_OR_KEYWORD,
        model=model if kind in (InputKind.INTEGER, InputKind.TEXT) else None,
    )


def without_none(hint: Any) -> tuple[Any, bool]:
    """Return the type without ``None``, and whether ``None`` was one of its members."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint, False
    members = typing.get_args(hint)
    others = [member for member in members if member is not type(None)]
    return (others[0] if len(others) == 1 else Any), len(others) < len(members)


def without_model(hint: Any) -> tuple[Any, type[Model] | None]:
    """Return the type without the metadata of ``Annotated``, and the model that it names."""
    if typing.get_origin(hint) is not Annotated:
        return hint, None
    models = [each for each in hint.__metadata__ if isinstance(each, type)]
    return hint.__origin__, next((each for each in models if issubclass(each, Model)), None)


def _choices(hint: Any) -> tuple[tuple[Any, str], ...]:
    if typing.get_origin(hint) is typing.Literal:
        values = [(value, str(value)) for value in typing.get_args(hint)]
    elif isinstance(hint, type) and issubclass(hint, Enum):
        values = [(member.value, member.name) for member in hint]
    else:
        return ()
    is_plain = all(isinstance(value, str | int | float | bool) for value, _label in values)
    return tuple(values) if is_plain and len(values) <= MAX_CHOICES else ()


def _plain(default: Any) -> Any:
    if isinstance(default, Enum):
        default = default.value
    if isinstance(default, date):
        return default.isoformat()
    if isinstance(default, Decimal):
        return str(default)
    return default if isinstance(default, str | int | float | bool) else None
