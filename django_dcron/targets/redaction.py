"""Arguments as people who may only look at them see them: without the values of secrets.

What tells a secret is the name beside it: of a keyword argument, of a key at any depth of a JSON object, or of an option on a
command line (``--password=x``, ``--password x``). A secret that is a positional argument, or a part of a text, has no name.
"""

from __future__ import annotations

from typing import Any

from django_dcron.conf import settings

MASK = "********"


def redacted(value: Any) -> Any:
    """The value with ``MASK`` in place of each secret that ``DCRON_REDACT`` tells; the value itself stays as it is."""
    words = tuple(word.casefold() for word in settings.REDACT)
    return _redacted(value, words) if words else value


def restored(value: Any, original: Any) -> Any:
    """What somebody made of ``redacted(original)``: each secret left masked is the original's again."""
    return _restored(value, original, redacted(original))


def _redacted(value: Any, words: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        return {
            key: _hidden(inner) if _is_secret(str(key), words) else _redacted(inner, words)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [
            _hidden(inner) if _is_option_before(value, number, words) else _redacted(inner, words)
            for number, inner in enumerate(value)
        ]
    if isinstance(value, str):
        name, equals, secret = value.partition("=")
        if secret and " " not in name and _is_secret(name, words):
            return f"{name}{equals}{MASK}"
    return value


def _hidden(value: Any) -> Any:
    """What is empty, or only says yes or no, is no secret."""
    return value if value is None or isinstance(value, bool) or value in ("", [], {}) else MASK


def _is_secret(name: str, words: tuple[str, ...]) -> bool:
    plain = name.casefold()
    return any(word in plain for word in words)


def _is_option_before(values: list[Any], number: int, words: tuple[str, ...]) -> bool:
    before = values[number - 1] if number else None
    return (
        isinstance(before, str)
        and before.startswith("--")
        and "=" not in before
        and _is_secret(before, words)
    )


def _restored(value: Any, original: Any, shown: Any) -> Any:
    if shown != original and value == shown and not isinstance(value, (dict, list)):
        return original
    if isinstance(value, dict) and isinstance(original, dict) and isinstance(shown, dict):
        return {
            key: _restored(inner, original[key], shown[key]) if key in original else inner
            for key, inner in value.items()
        }
    if isinstance(value, list) and isinstance(original, list) and isinstance(shown, list):
        both = list(zip(original, shown, strict=True))
        return [_restored(inner, *both[n]) if n < len(both) else inner for n, inner in enumerate(value)]
    return value
