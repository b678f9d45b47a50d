"""Redact secrets in arguments for people who may view but not edit them.

A secret is recognized by its name. The name may be a keyword argument or a key at any depth of a
JSON object. It may also be a command-line option (``--password=x``, ``--password x``) or a header
(``X-Api-Key: x``). The password in a URL is recognized, too. Any other secret in a positional
argument or inside a text has no name and isn't recognized.
"""

from __future__ import annotations

import re
from typing import Any

from django_dcron.conf import settings

MASK = "********"
CHANGED_MASK = f"{MASK} (changed)"
_PASSWORD_IN_URL = re.compile(r"(://[^\s/?#:@]{0,100}:)[^\s/?#]{1,500}@")


def redact_secrets(value: Any) -> Any:
    """Return ``value`` with ``MASK`` instead of each secret that ``DCRON_REDACT`` describes.

    ``value`` itself doesn't change.
    """
    words = tuple(word.casefold() for word in settings.REDACT)
    return _redact_value(value, words) if words else value


def redact_changed_secrets(value: Any, before: Any) -> Any:
    """Return ``redact_secrets(value)`` with ``CHANGED_MASK`` instead of changed secrets.

    A secret has changed if it differs from the one at the same place of ``before``.
    """
    return _mark_changes(value, before, redact_secrets(value), redact_secrets(before))


def restore_secrets(value: Any, original: Any) -> Any:
    """Return an edited ``redact_secrets(original)`` with the original secrets in place of masks.

    A mask stays a mask if the secret would be readable at its place. Otherwise, an editor could
    read a secret by moving its mask, for example behind another option.
    """
    return _restore_value(value, original, redact_secrets(original))


def _redact_value(value: Any, words: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        return {
            key: _hidden(inner) if _is_secret(str(key), words) else _redact_value(inner, words)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [
            _hidden(inner)
            if _is_option_before(value, number, words)
            else _redact_value(inner, words)
            for number, inner in enumerate(value)
        ]
    if isinstance(value, str):
        return _without_secrets(value, words)
    return value


def _without_secrets(text: str, words: tuple[str, ...]) -> str:
    for separator in ("=", ": "):
        name, _separator, secret = text.partition(separator)
        if secret.strip() and " " not in name and _is_secret(name, words):
            return f"{_without_password(name)}{separator}{MASK}"
    return _without_password(text)


def _without_password(text: str) -> str:
    return _PASSWORD_IN_URL.sub(rf"\1{MASK}@", text)


def _hidden(value: Any) -> Any:
    """Mask the value, unless it is empty or a boolean."""
    return value if value is None or isinstance(value, bool) or value in ("", [], {}) else MASK


def _is_secret(name: str, words: tuple[str, ...]) -> bool:
    plain = name.casefold()
    return any(word in plain for word in words)


def _is_option_before(values: list[Any], number: int, words: tuple[str, ...]) -> bool:
    before = values[number - 1] if number else None
    return (
        isinstance(before, str)
        and before.startswith("-")
        and "=" not in before
        and _is_secret(before, words)
    )


def _mark_changes(value: Any, before: Any, shown: Any, shown_before: Any) -> Any:
    if isinstance(shown, dict) and isinstance(shown_before, dict):
        return {
            key: _mark_changes(value[key], before[key], inner, shown_before[key])
            if key in before
            else inner
            for key, inner in shown.items()
        }
    if isinstance(shown, list) and isinstance(shown_before, list):
        common = min(len(shown), len(shown_before))
        marked = map(_mark_changes, value, before, shown, shown_before)  # ends with the shorter one
        return [*marked, *shown[common:]]
    if isinstance(shown, str) and shown == shown_before and value != before:
        return shown.replace(MASK, CHANGED_MASK)
    return shown


def _restore_value(value: Any, original: Any, shown: Any) -> Any:
    if shown != original and value == shown and not isinstance(value, (dict, list)):
        return original
    if isinstance(value, dict) and isinstance(original, dict) and isinstance(shown, dict):
        return {
            key: _restore_value(inner, original[key], shown[key]) if key in original else inner
            for key, inner in value.items()
        }
    if isinstance(value, list) and isinstance(original, list) and isinstance(shown, list):
        return _restore_list(value, original, shown)
    return value


def _restore_list(value: list[Any], original: list[Any], shown: list[Any]) -> list[Any]:
    common = min(len(value), len(original))
    restored = [
        *map(_restore_value, value[:common], original[:common], shown[:common]),
        *value[common:],
    ]
    return [
        edited if _shows_secret(edited, new, new_shown) else new
        for edited, new, new_shown in zip(value, restored, redact_secrets(restored), strict=True)
    ]


def _shows_secret(edited: Any, restored: Any, shown: Any) -> bool:
    """Return whether a secret that replaced a mask would be readable at its place."""
    return not isinstance(edited, (dict, list)) and restored != edited and shown == restored
