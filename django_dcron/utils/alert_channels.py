"""The setting ``DCRON_ALERT_CHANNELS``: its value with lists only, and what is wrong with it.

URLs of channels contain secrets, and a misplaced value may be one. Messages therefore quote only
valid names of channels, keys that resemble known ones, and intervals. They describe anything else
by its position and type.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, TypeGuard

from django_dcron.utils.durations import parse_duration_text
from django_dcron.utils.setting_kinds import Setting
from django_dcron.utils.suggestions import did_you_mean

ADDRESSES = {
    "mail": 'an address or a list of addresses, such as ["ops@example.com"]',
    "apprise": 'a URL or a list of URLs, such as ["slack://..."]; for a webhook, '
    '["json://HOST/PATH"], or ["jsons://HOST/PATH?-NAME=VALUE"] for HTTPS with a query parameter',
}
"""The keys for the receivers of a channel, and their allowed values."""
INTERVAL = "a timedelta, the minimum interval between two messages, such as timedelta(minutes=15)"
KEYS = (*ADDRESSES, "every")
CHANNEL = 'a dict such as {"mail": ["ops@example.com"]} or {"apprise": ["slack://..."]}'

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,50}")

Channels = Mapping[str, Mapping[str, Any]]


class AlertChannels(Setting[Channels]):
    """The channels by name.

    A single address or URL is read as a list. Whitespace around addresses and URLs is removed.
    Channels with an invalid name are omitted, because errors list the names, and an invalid one may
    be a secret. A channel with an invalid value is an empty dict: it exists, but can't be used. A
    valid channel whose list of addresses or URLs is empty sends nothing.
    """

    def __init__(self) -> None:
        super().__init__(
            {},
            dict,
            allowed=f"a dict from name to channel. A channel is {CHANNEL}",
            valid=lambda value: True,
            is_secret=True,
        )

    def __get__(self, instance: object, owner: type | None = None) -> Channels:
        channels = super().__get__(instance, owner)
        if not isinstance(channels, dict):
            return {}
        read = ((name, _with_lists(channel)) for name, channel in channels.items())
        return {
            name: {} if any(_problems({name: channel})) else channel
            for name, channel in read
            if _is_name(name)
        }

    def problem(self) -> str | None:
        if found := super().problem():
            return found
        channels = {name: _with_lists(channel) for name, channel in super().__get__(None).items()}
        return next((f"{self.name}: {found}." for found in _problems(channels)), None)


def _with_lists(channel: Any) -> Any:
    if not isinstance(channel, dict):
        return channel
    return {key: _with_list(value) if key in ADDRESSES else value for key, value in channel.items()}


def _with_list(addresses: Any) -> Any:
    found = [addresses] if isinstance(addresses, str) else addresses
    if not isinstance(found, (list, tuple)):
        return found
    return [each.strip() if isinstance(each, str) else each for each in found]


def _problems(channels: Mapping[Any, Any]) -> Iterator[str]:
    names: dict[str, str] = {}
    for number, (name, channel) in enumerate(channels.items(), start=1):
        is_valid = _is_name(name)
        shown = f"channel {name!r}" if is_valid else f"channel {number}"
        if not is_valid:
            yield (
                f"the name of {shown}, of type {type(name).__name__}, is invalid. Allowed: at most "
                '50 ASCII letters, digits and characters of "_.-"'
            )
        elif name.lower() in names:
            # Some databases treat the names as equal.
            yield f"{names[name.lower()]} and {shown} differ only in case. Rename one"
        else:
            names[name.lower()] = shown
        yield from _problems_of_channel(shown, channel)


def _problems_of_channel(name: str, channel: Any) -> Iterator[str]:
    if not isinstance(channel, dict):
        yield f"{name} is of type {type(channel).__name__}. Allowed: {CHANNEL}"
        return
    for number, key in enumerate(channel, start=1):
        if key not in KEYS:
            allowed = "; ".join(f'"{kind}": {values}' for kind, values in ADDRESSES.items())
            yield f'{name}: {_unknown_key(number, key)} Allowed: {allowed}; "every": {INTERVAL}'
    kinds = [key for key in ADDRESSES if key in channel]
    if len(kinds) != 1:
        has = 'both "mail" and "apprise"' if kinds else 'neither "mail" nor "apprise"'
        yield f"{name} has {has}. Allowed: one of them. To use both, define two channels"
    for key in kinds:
        if problem := _problem_of_addresses(f'"{key}"', channel[key]):
            yield f"{name}: {problem}. Allowed: {ADDRESSES[key]}"
    every = channel.get("every", timedelta())
    if not isinstance(every, timedelta) or every < timedelta():
        yield f'{name}: "every" is {_shown_interval(every)}. Allowed: {INTERVAL}'


def _unknown_key(number: int, key: Any) -> str:
    near = did_you_mean(key, KEYS) if _is_name(key) else ""
    if near:
        return f"the key {key!r} is unknown.{near}"
    return f"key {number}, of type {type(key).__name__}, is unknown."


def _problem_of_addresses(key: str, addresses: Any) -> str | None:
    if not isinstance(addresses, (list, tuple)):
        return f"{key} is of type {type(addresses).__name__}"
    for number, address in enumerate(addresses, start=1):
        if not isinstance(address, str):
            return f"item {number} of {key} is of type {type(address).__name__}"
        if not address:
            return f"item {number} of {key} is empty"
    return None


def _shown_interval(value: Any) -> str:
    is_number = isinstance(value, (int, float, timedelta)) and not isinstance(value, bool)
    return repr(value) if is_number or _is_duration(value) else f"of type {type(value).__name__}"


def _is_duration(value: Any) -> bool:
    try:
        return isinstance(value, str) and parse_duration_text(value) is not None
    except OverflowError:
        return False


def _is_name(value: object) -> TypeGuard[str]:
    """Return whether the value could be a channel's name. Other values may contain secrets."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None
