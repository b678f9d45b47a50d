"""Remove passwords from setting values and from library errors that quote a malformed URL."""

from __future__ import annotations

import re

HIDDEN = "…"
_SINGLE_QUOTED = re.compile(r"'([A-Za-z][\w+.-]{0,30}):/(?:\\.|[^'\\])*'", re.DOTALL)
_DOUBLE_QUOTED = re.compile(r'"([A-Za-z][\w+.-]{0,30}):/(?:\\.|[^"\\])*"', re.DOTALL)
_URL = re.compile(r"\b([A-Za-z][\w+.-]{0,30})://[^\s'\"]+")
_CREDENTIALS = re.compile(r"://\S{0,500}@")
_PORT = re.compile(r"(could not be cast to integer value as ).*", re.DOTALL)
"""The error of ``urllib`` that quotes the part of a password it parsed as a port."""


def without_urls(text: str) -> str:
    """Reduce URLs in ``text`` to their schemes.

    A malformed URL may contain its password anywhere.
    """
    text = _SINGLE_QUOTED.sub(rf"'\1://{HIDDEN}'", text)
    text = _DOUBLE_QUOTED.sub(rf'"\1://{HIDDEN}"', text)
    text = _URL.sub(rf"\1://{HIDDEN}", text)
    return _PORT.sub(rf"\1{HIDDEN}", text)


def without_credentials(text: str) -> str:
    """Remove user and password from the URLs in ``text``. Other URLs remain unchanged."""
    return _PORT.sub(rf"\1{HIDDEN}", _CREDENTIALS.sub(f"://{HIDDEN}@", text))
