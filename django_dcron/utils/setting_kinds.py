"""The kinds of settings: descriptors that read Django's settings at each access.

Each kind has a default, allowed types, a validator and a text that describes the allowed values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from types import NoneType
from typing import Any, Generic, TypeVar

from django.conf import settings as django_settings

from django_dcron.utils.url_credentials import without_urls

T = TypeVar("T")


class Setting(Generic[T]):
    """One setting: its default, its allowed types and a validator."""

    name: str

    def __init__(
        self,
        default: T,
        kind: type | tuple[type, ...],
        *,
        allowed: str,
        valid: Callable[[Any], bool],
        names: Sequence[str] = (),
        is_secret: bool = False,
    ):
        self.default = default
        self.kind = kind
        self.allowed = allowed
        self.valid = valid
        self.names = names
        """The allowed values, if they can be enumerated."""
        self.is_secret = is_secret
        """Whether the value may contain a password or key. Such values are never displayed."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = f"DCRON_{name}"

    def __get__(self, instance: object, owner: type | None = None) -> T:
        value: T = getattr(django_settings, self.name, self.default)
        return value

    def problem(self) -> str | None:
        """Return what is wrong with the project's value, or None."""
        value: Any = getattr(django_settings, self.name, self.default)
        if (
            not isinstance(value, self.kind)
            or (isinstance(value, bool) and self.kind is not bool)
            or not self.valid(value)
        ):
            message = (
                f"an invalid {type(value).__name__}"
                if self.is_secret
                else without_urls(repr(value))
            )
            return f"{self.name} is {message}. Allowed: {self.allowed}."
        return None


def duration_at_least(seconds: float, *, at_least: float) -> Setting[timedelta]:
    floor = timedelta(seconds=at_least)
    return Setting(
        timedelta(seconds=seconds),
        timedelta,
        allowed=f"a timedelta of at least {at_least:g} s",
        valid=lambda value: value >= floor,
    )


def whole_number(default: int, *, low: int, high: int) -> Setting[int]:
    return Setting(
        default,
        int,
        allowed=f"a whole number from {low} to {high}",
        valid=lambda value: low <= value <= high,
    )


def duration_within(days: float, *, longest: float) -> Setting[timedelta]:
    limit = timedelta(days=longest)
    return Setting(
        timedelta(days=days),
        timedelta,
        allowed=f"a timedelta from 1 s to {longest:g} days",
        valid=lambda value: timedelta(seconds=1) <= value <= limit,
    )


class OptionalDuration(Setting[timedelta | None]):
    """A duration that defaults to another setting's value. None disables what it limits."""

    def __init__(self, other: Setting[timedelta], *, at_least: float):
        floor = timedelta(seconds=at_least)
        super().__init__(
            other.default,
            (timedelta, NoneType),
            allowed=f"a timedelta of at least {at_least:g} s, or None",
            valid=lambda value: value is None or value >= floor,
        )
        self._other = other

    def __get__(self, instance: object, owner: type | None = None) -> timedelta | None:
        value: timedelta | None = getattr(
            django_settings, self.name, self._other.__get__(instance, owner)
        )
        return value


def number_or_none(*, low: int) -> Setting[int | None]:
    return Setting(
        None,
        (int, NoneType),
        allowed=f"a whole number of at least {low}, or None",
        valid=lambda value: value is None or value >= low,
    )


def text(default: str, *, allowed: str = "a non-empty string") -> Setting[str]:
    return Setting(default, str, allowed=allowed, valid=bool)


def url(example: str, *, is_secret: bool = False) -> Setting[str]:
    return Setting(
        "",
        str,
        is_secret=is_secret,
        allowed=f"a URL such as {example}, or an empty string",
        valid=lambda value: not value or value.startswith(("http://", "https://")),
    )


class SettingChoice(Setting[str]):
    """One of the names, or the dotted path of a ``kind`` class.

    The default is ``autostart`` instead of ``default`` while the setting ``autostarts`` is True.
    """

    def __init__(
        self, default: str, *others: str, kind: str, autostart: str, autostarts: Setting[bool]
    ):
        names = (default, *others)
        quoted = ", ".join(f'"{name}"' for name in names)
        super().__init__(
            default,
            str,
            allowed=f"{quoted} or the dotted path of a {kind} class",
            valid=lambda value: value in names or "." in value,
            names=names,
        )
        self._autostart = autostart
        self._autostarts = autostarts

    def __get__(self, instance: object, owner: type | None = None) -> str:
        default = self.default
        if self._autostarts.__get__(instance, owner) is True:
            default = self._autostart
        value: str = getattr(django_settings, self.name, default)
        return value


def flag() -> Setting[bool]:
    return Setting(False, bool, allowed="True or False", valid=lambda value: True)


def texts(default: Sequence[str], *, allowed: str) -> Setting[Sequence[str]]:
    return Setting(
        default,
        (list, tuple),
        allowed=allowed,
        valid=lambda value: all(isinstance(each, str) for each in value),
    )
