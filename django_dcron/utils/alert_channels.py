"""The setting ``DCRON_ALERT_CHANNELS``: its value with lists only, and what is wrong with it.

URLs of channels contain secrets. Messages therefore name channels, keys and types, but neither
addresses nor URLs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from django_dcron.utils.setting_kinds import Setting
from django_dcron.utils.suggestions import did_you_mean
from django_dcron.utils.url_credentials import without_urls

ADDRESSES = {
    "mail": 'an address or a list of addresses, such as ["ops@example.com"]',
    "apprise": 'a URL or a list of URLs, such as ["slack://..."]; for a webhook, '
    '["json://HOST/PATH"] or ["jsons://HOST/PATH"]',
}
"""The keys for the receivers of a channel, and their allowed values."""
INTERVAL = "a timedelta, the minimum interval between two messages, such as timedelta(minutes=15)"
KEYS = (*ADDRESSES, "every")
CHANNEL = 'a dict such as {"mail": ["ops@example.com"]} or {"apprise": ["slack://..."]}'
NAME = re.compile(r"[A-Za-z0-9_.-]{1,50}")

Channels = Mapping[str, Mapping[str, Any]]


class AlertChannels(Setting[Channels]):
    """The channels by name. A single address or URL is read as a list."""

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
            return channels  # the checks report it
        return {name: _with_lists(channel) for name, channel in channels.items()}

    def problem(self) -> str | None:
        if found := super().problem():
            return found
        return next((f"{self.name}: {found}." for found in _problems(self.__get__(None))), None)


def _with_lists(channel: Any) -> Any:
    if not isinstance(channel, dict):
        return channel
    single = {key: [channel[key]] for key in ADDRESSES if isinstance(channel.get(key), str)}
    return {**channel, **single}


def _problems(channels: Mapping[Any, Any]) -> Iterator[str]:
    names: dict[str, str] = {}
    for name, channel in channels.items():
        shown = _shown(name)
        if not isinstance(name, str) or not NAME.fullmatch(name):
            yield (
                f"{shown} is an invalid name of a channel. Allowed: at most 50 ASCII letters, "
                'digits and characters of "_.-"'
            )
        elif name.lower() in names:
            # Some databases treat the names as equal.
            yield f"the channels {names[name.lower()]} and {shown} differ only in case. Rename one"
        else:
            names[name.lower()] = shown
        yield from _problems_of_channel(f"channel {shown}", channel)


def _problems_of_channel(name: str, channel: Any) -> Iterator[str]:
    if not isinstance(channel, dict):
        yield f"{name} is of type {type(channel).__name__}. Allowed: {CHANNEL}"
        return
    for key in channel:
        if key not in KEYS:
            near = did_you_mean(str(key), KEYS)
            allowed = "; ".join(f'"{kind}": {values}' for kind, values in ADDRESSES.items())
            yield (
                f"{name} has the unknown key {_shown(key)}.{near} Allowed: {allowed}; "
                f'"every": {INTERVAL}'
            )
    kinds = [key for key in ADDRESSES if key in channel]
    if len(kinds) != 1:
        has = 'both "mail" and "apprise"' if kinds else 'neither "mail" nor "apprise"'
        yield f"{name} has {has}. Allowed: one of them. To use both, define two channels"
    for key in kinds:
        if problem := _problem_of_addresses(f'"{key}"', channel[key]):
            yield f"{name}: {problem}. Allowed: {ADDRESSES[key]}"
    every = channel.get("every", timedelta())
    if not isinstance(every, timedelta) or every < timedelta():
        yield f'{name}: "every" is {_shown(every)}. Allowed: {INTERVAL}'


def _problem_of_addresses(key: str, addresses: Any) -> str | None:
    if not isinstance(addresses, (list, tuple)):
        return f"{key} is of type {type(addresses).__name__}"
    if not addresses:
        return f"{key} is an empty list"
    for number, address in enumerate(addresses, start=1):
        if not isinstance(address, str):
            return f"item {number} of {key} is of type {type(address).__name__}"
        if not address:
            return f"item {number} of {key} is empty"
    return None


def _shown(value: Any) -> str:
    return without_urls(repr(value))
