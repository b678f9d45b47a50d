"""Redact secrets in arguments for people who may view but not edit them.

A secret is recognized by its name. The name may be a keyword argument or a key at any depth of a
JSON object. It may also be a command-line option (``--password=x``, ``--password x``) or a header
(``X-Api-Key: x``). The password in a URL is recognized, too. Any other secret in a positional
argument or inside a text has no name and isn't recognized.
"""

from __future__ import annotations

import json
import re
from typing import Any

from django_dcron.conf import settings

MASK = "********"
CHANGED_MASK = f"{MASK} (changed)"
_PASSWORD_IN_URL = re.compile(r"://[^\s/?#:@]{0,100}:([^\s/?#]{1,500})@")


def redact_secrets(value: Any) -> Any:
    """Return ``value`` with ``MASK`` instead of each secret that ``DCRON_REDACT`` describes.

    ``value`` itself doesn't change.
    """
    return redact_changed_secrets(value, value)


def redact_changed_secrets(value: Any, before: Any) -> Any:
    """Return ``redact_secrets(value)`` with ``CHANGED_MASK`` instead of changed secrets.

    A secret has changed if it differs from the one at the same place of ``before``. The place of a
    secret in a text is its number among the secrets of the text.
    """
    words = tuple(word.casefold() for word in settings.REDACT)
    return _redact_value(value, before, words) if words else value


def restore_secrets(value: Any, original: Any) -> Any:
    """Return an edited ``redact_secrets(original)`` with the original secrets in place of masks.

    The mask may be ``MASK`` or ``CHANGED_MASK``. It stays a mask if the secret would be readable at
    its place. Otherwise, an editor could read a secret by moving its mask, for example behind
    another option.
    """
    return _restore_value(value, original, redact_secrets(original))


def has_unrestored_mask(value: Any, original: Any) -> bool:
    """Return whether ``restore_secrets`` left a mask in ``value`` that stands for a secret.

    If ``original`` has secrets, any further mask counts. Otherwise, the text of a mask is a mask
    only at the place of a secret.
    """
    if _masks_in(value) <= _masks_in(original):
        return False
    if redact_secrets(original) != original:
        return True
    unmasked = json.loads(json.dumps(value).replace(MASK, "unmasked"))
    return CHANGED_MASK in json.dumps(redact_changed_secrets(unmasked, value))


def _masks_in(value: Any) -> int:
    return json.dumps(value).count(MASK)


def _redact_value(value: Any, before: Any, words: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        old = before if isinstance(before, dict) else {}
        return {
            key: _hidden(inner, old.get(key, inner))
            if _is_secret(str(key), words)
            else _redact_value(inner, old.get(key, inner), words)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return _redact_list(value, before if isinstance(before, list) else [], words)
    if isinstance(value, str):
        return _redact_text(value, before if isinstance(before, str) else "", words)
    return value


def _redact_list(values: list[Any], before: list[Any], words: tuple[str, ...]) -> list[Any]:
    redacted = []
    for number, value in enumerate(values):
        old = before[number] if number < len(before) else value
        if not _is_option_before(values, number, words):
            redacted.append(_redact_value(value, old, words))
        elif _is_option_before(before, number, words):
            redacted.append(_hidden(value, old))
        else:
            redacted.append(_hidden(value, value))
    return redacted


def _redact_text(text: str, before: str, words: tuple[str, ...]) -> str:
    secrets = _secrets_in(text, words)
    old_secrets = [before[span] for span in _secrets_in(before, words)]
    for number, span in reversed([*enumerate(secrets)]):
        has_changed = number < len(old_secrets) and text[span] != old_secrets[number]
        mask = CHANGED_MASK if has_changed else MASK
        text = f"{text[: span.start]}{mask}{text[span.stop :]}"
    return text


def _secrets_in(text: str, words: tuple[str, ...]) -> list[slice]:
    for separator in ("=", ": "):
        name, _separator, secret = text.partition(separator)
        if secret.strip() and " " not in name and _is_secret(name, words):
            return [*_passwords_in(name), slice(len(name) + len(separator), len(text))]
    return _passwords_in(text)


def _passwords_in(text: str) -> list[slice]:
    return [slice(*match.span(1)) for match in _PASSWORD_IN_URL.finditer(text)]


def _hidden(value: Any, before: Any) -> Any:
    """Mask the value, unless it is empty or a boolean."""
    if not _is_hidden(value):
        return value
    return CHANGED_MASK if value != before and _is_hidden(before) else MASK


def _is_hidden(value: Any) -> bool:
    return not (value is None or isinstance(value, bool) or value in ("", [], {}))


def _is_secret(name: str, words: tuple[str, ...]) -> bool:
    plain = name.casefold()
    return any(word in plain for word in words)


def _is_option_before(values: list[Any], number: int, words: tuple[str, ...]) -> bool:
    before = values[number - 1] if 0 < number <= len(values) else None
    return (
        isinstance(before, str)
        and before.startswith("-")
        and "=" not in before
        and _is_secret(before, words)
    )


def _restore_value(value: Any, original: Any, shown: Any) -> Any:
    if isinstance(shown, str) and shown != original and _unmarked(value) == _unmarked(shown):
        return original
    if isinstance(value, dict) and isinstance(original, dict) and isinstance(shown, dict):
        return {
            key: _restore_value(inner, original[key], shown[key]) if key in original else inner
            for key, inner in value.items()
        }
    if isinstance(value, list) and isinstance(original, list) and isinstance(shown, list):
        return _restore_list(value, original, shown)
    return value


def _unmarked(value: Any) -> Any:
    return value.replace(CHANGED_MASK, MASK) if isinstance(value, str) else value


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
