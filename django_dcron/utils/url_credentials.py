"""Remove URLs, or their credentials, from setting values and library errors."""

from __future__ import annotations

import re

HIDDEN = "…"
_SINGLE_QUOTED = re.compile(r"'([A-Za-z][\w+.-]{0,30}):/(?:\\.|[^'\\])*'", re.DOTALL)
_DOUBLE_QUOTED = re.compile(r'"([A-Za-z][\w+.-]{0,30}):/(?:\\.|[^"\\])*"', re.DOTALL)
_URL_START = re.compile(rf"\b[A-Za-z][\w+.-]{{0,30}}://(?!{HIDDEN})")
_URL_END = re.compile(r"[^\s'\"]*")
_URL = re.compile(r"\b([A-Za-z][\w+.-]{0,30})://[^\s'\"]+")
_CREDENTIALS = re.compile(r"(?P<scheme>\b[A-Za-z][\w+.-]{0,30})?://(?P<rest>\S{0,500})@")
_WITHOUT_USERINFO = re.compile(
    r"[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})+/(?:[^:@?#]*[?#][^:]*|)"
)
"""A host name, and a path before a query, or the beginning of the path ``/@user``.

An at sign later in a path may end a user name that contains a slash. Without a colon, the text
contains neither a second URL nor a user name with a password.
"""
_WEB_SCHEMES = ("http", "https")
_PASSWORD_WITH_SPACES = re.compile(
    r"://[^\s:/?#@\[\]]{0,100}:(?![0-9]{1,5}(?:[/?#\s,;:.)]|$))\S[^\n]{0,500}@"
)
"""User and password before an at sign. A port number isn't taken for a password."""
_PORT = re.compile(r"(could not be cast to integer value as ).*", re.DOTALL)
"""The error of ``urllib`` that quotes the part of a password it parsed as a port."""


def without_urls(text: str) -> str:
    """Reduce URLs in ``text`` to their schemes.

    A malformed URL may contain its password anywhere.
    """
    text = _SINGLE_QUOTED.sub(rf"'\1://{HIDDEN}'", text)
    text = _DOUBLE_QUOTED.sub(rf'"\1://{HIDDEN}"', text)
    text = "\n".join(map(_without_unquoted_url, text.split("\n")))
    text = _URL.sub(rf"\1://{HIDDEN}", text)
    return _PORT.sub(rf"\1{HIDDEN}", text)


def _without_unquoted_url(line: str) -> str:
    """Remove the text from the first unquoted URL's scheme to the host after the last at sign.

    An unquoted password may contain spaces, quotes and at signs.
    """
    before, at, after = line.rpartition("@")
    start = _URL_START.search(before) if at else None
    return f"{line[: start.end()]}{HIDDEN}{_URL_END.sub('', after, count=1)}" if start else line


def without_credentials(text: str) -> str:
    """Remove user and password from the URLs in ``text``.

    Web addresses without them remain unchanged.
    """
    text = _CREDENTIALS.sub(_hide_credentials, text)
    text = _PASSWORD_WITH_SPACES.sub(f"://{HIDDEN}@", text)
    return _PORT.sub(rf"\1{HIDDEN}", text)


def _hide_credentials(found: re.Match[str]) -> str:
    scheme = found["scheme"] or ""
    if scheme.lower() in _WEB_SCHEMES and _WITHOUT_USERINFO.fullmatch(found["rest"]):
        return found[0]
    return f"{scheme}://{HIDDEN}@"
