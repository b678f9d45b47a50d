"""Remove passwords from texts that people read: setting values, and library errors that quote a malformed URL."""

from __future__ import annotations

import re

HIDDEN = "…"
_SINGLE_QUOTED = re.compile(r"'([A-Za-z][\w+.-]{0,30}):/(?:\\.|[^'\\])*'", re.DOTALL)
_DOUBLE_QUOTED = re.compile(r'"([A-Za-z][\w+.-]{0,30}):/(?:\\.|[^"\\])*"', re.DOTALL)
_URL = re.compile(r"\b([A-Za-z][\w+.-]{0,30})://[^\s'\"]+")
_CREDENTIALS = re.compile(r"://\S{0,500}@")
_PORT = re.compile(r"(could not be cast to integer value as ).*", re.DOTALL)
"""``urllib``'s error, which quotes the part of a password that it took for a port."""


def without_urls(text: str) -> str:
    """``text`` with the scheme alone of each URL: a malformed one may have its password anywhere."""
    text = _SINGLE_QUOTED.sub(rf"'\1://{HIDDEN}'", text)
    text = _DOUBLE_QUOTED.sub(rf'"\1://{HIDDEN}"', text)
    text = _URL.sub(rf"\1://{HIDDEN}", text)
    return _PORT.sub(rf"\1{HIDDEN}", text)


def without_credentials(text: str) -> str:
    """``text`` whose URLs have no user and password. Other URLs stay as they are."""
    return _PORT.sub(rf"\1{HIDDEN}", _CREDENTIALS.sub(f"://{HIDDEN}@", text))
