"""Check calls against signatures. The messages name the parameter and the field to correct."""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable
from enum import Enum
from inspect import Parameter, Signature
from typing import Any

from django_dcron.exceptions import InvalidArguments
from django_dcron.targets.parameters import without_model, without_none
from django_dcron.utils.messages import gettext_noop as _
from django_dcron.utils.suggestions import nearest

if sys.version_info >= (3, 14):
    from annotationlib import Format

    # Names that only type checkers import don't exist when annotations are evaluated.
    UNEVALUATED: dict[str, Any] = {"annotation_format": Format.FORWARDREF}
else:
    UNEVALUATED: dict[str, Any] = {}

BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
LONGEST_DEFAULT = 40
UNKNOWN_NAMED = 5
"""The maximum number of unknown parameters in a message."""


class _UnquotedText(str):
    """A string whose ``repr`` has no quotes."""

    __repr__ = str.__str__


def signature_of(function: Callable[..., Any]) -> Signature | None:
    """Return the signature; None for a function in C that has none."""
    try:
        return inspect.signature(function, **UNEVALUATED)
    except ValueError:
        return None


def signature_text(signature: Signature | None) -> str:
    """Return the signature as in code.

    A type is shown without its module, and a row's key with its model as the type. Only short,
    plain defaults are shown.
    """
    if signature is None:
        return ""
    parameters = [
        parameter.replace(annotation=_annotation(parameter), default=_default(parameter))
        for parameter in signature.parameters.values()
    ]
    return str(Signature(parameters))


def _annotation(parameter: Parameter) -> Any:
    hint = parameter.annotation
    return hint if hint is Parameter.empty else _UnquotedText(_type_text(hint))


def _type_text(hint: Any) -> str:
    """Return a type hint as in code, such as ``list[int] | None``."""
    if isinstance(hint, str):  # under ``from __future__ import annotations``
        return hint
    if isinstance(hint, list):  # the parameters of a ``Callable``
        return f"[{_type_texts(hint)}]"
    if hint is None or hint is type(None):
        return "None"
    plain, model = without_model(hint)
    if model is not None:
        _key, accepts_none = without_none(plain)
        return f"{model.__name__} | None" if accepts_none else model.__name__
    origin, arguments = typing.get_origin(plain), typing.get_args(plain)
    if origin in (typing.Union, types.UnionType):
        return _type_texts(arguments, " | ")
    if origin is typing.Literal:
        return f"Literal[{', '.join(repr(_enum_text(each)) for each in arguments)}]"
    if arguments:
        return f"{_type_text(origin)}[{_type_texts(arguments)}]"
    if isinstance(plain, typing.ForwardRef):
        return plain.__forward_arg__
    return plain.__name__ if isinstance(plain, type) else inspect.formatannotation(plain)


def _type_texts(hints: Iterable[Any], separator: str = ", ") -> str:
    return separator.join("..." if each is ... else _type_text(each) for each in hints)


def _default(parameter: Parameter) -> Any:
    default = _enum_text(parameter.default)
    if default is Parameter.empty or default is None:
        return default
    if isinstance(default, bool | int | float | _UnquotedText):
        return default
    return (
        default
        if isinstance(default, str) and len(default) <= LONGEST_DEFAULT
        else _UnquotedText("…")
    )


def _enum_text(value: Any) -> Any:
    """Return a member of an enum as in code, such as ``Mode.FAST``, and other values unchanged."""
    if isinstance(value, Enum) and value.name:
        return _UnquotedText(f"{type(value).__name__}.{value.name}")
    return value


def check_call(signature: Signature | None, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Raise ``InvalidArguments`` if ``f(*args, **kwargs)`` doesn't fit ``signature``."""
    if signature is None:
        return
    parameters = list(signature.parameters.values())
    kinds = {parameter.kind for parameter in parameters}
    positional = [parameter for parameter in parameters if parameter.kind in BY_POSITION]
    filled = positional[: len(args)]
    if len(args) > len(positional) and Parameter.VAR_POSITIONAL not in kinds:
        raise _too_many(len(args), positional)
    by_name = [parameter.name for parameter in parameters if parameter.kind in BY_NAME]
    unknown = [name for name in kwargs if name not in by_name]
    if unknown and Parameter.VAR_KEYWORD not in kinds:
        raise _no_parameters(unknown, by_name)
    for name in kwargs:
        if name in by_name and any(parameter.name == name for parameter in filled):
            raise InvalidArguments(
                _("%(name)s is given twice: as a positional and as a keyword argument"),
                "kwargs",
                name=repr(name),
                code="given_twice",
            )
    _check_missing(parameters, filled, kwargs)


_TOO_MANY = _("%(count)d positional arguments were given (allowed: at most %(most)d, %(names)s)")
_NOT_ONE_BY_POSITION = _("%(count)d positional argument was given (allowed: none)")
_NONE_BY_POSITION = _("%(count)d positional arguments were given (allowed: none)")


def _too_many(count: int, positional: list[Parameter]) -> InvalidArguments:
    none_allowed = _NOT_ONE_BY_POSITION if count == 1 else _NONE_BY_POSITION
    return InvalidArguments(
        _TOO_MANY if positional else none_allowed,
        "args",
        count=count,
        most=len(positional),
        names=", ".join(parameter.name for parameter in positional),
        code="too_many_arguments",
    )


def _no_parameters(names: list[str], by_name: list[str]) -> InvalidArguments:
    near = nearest(names[0], by_name) if len(names) == 1 else ""
    shown = [*map(repr, names[:UNKNOWN_NAMED])]
    if len(names) > UNKNOWN_NAMED:
        shown.append("...")
    if len(names) > 1 and by_name:
        template = _("Unknown parameters %(name)s (allowed: %(allowed)s)")
    elif len(names) > 1:
        template = _("Unknown parameters %(name)s. The target accepts no keyword arguments.")
    elif not by_name:
        template = _("Unknown parameter %(name)s. The target accepts no keyword arguments.")
    elif near:
        template = _("Unknown parameter %(name)s. Did you mean %(near)s? (allowed: %(allowed)s)")
    else:
        template = _("Unknown parameter %(name)s (allowed: %(allowed)s)")
    return InvalidArguments(
        template,
        "kwargs",
        name=", ".join(shown),
        near=near,
        allowed=", ".join(by_name),
        code="unknown_parameter",
    )


def _check_missing(
    parameters: list[Parameter], filled: list[Parameter], kwargs: dict[str, Any]
) -> None:
    for parameter in parameters:
        if (
            parameter.kind not in (*BY_POSITION, Parameter.KEYWORD_ONLY)
            or parameter.default is not Parameter.empty
        ):
            continue
        given_by_name = parameter.kind in BY_NAME and parameter.name in kwargs
        if parameter not in filled and not given_by_name:
            field = "kwargs" if parameter.kind is Parameter.KEYWORD_ONLY else "args"
            raise InvalidArguments(
                _("The argument %(name)s is missing"),
                field,
                name=repr(parameter.name),
                code="missing_argument",
            )
