"""Takes passwords out of texts that people read: values of settings, and what libraries say of URLs that they cannot read."""

from __future__ import annotations

import re

HIDDEN = "…"
_QUOTED_URL = re.compile(r"""(['"])([A-Za-z][\w+.-]{0,30}):/+(?:\\.|(?!\1).)*\1""", re.DOTALL)
_URL = re.compile(r"\b([A-Za-z][\w+.-]{0,30})://[^\s'\"]+")
_CREDENTIALS = re.compile(r"://\S*@")
_PORT = re.compile(r"(could not be cast to integer value as ).*", re.DOTALL)
"""``urllib``'s error, which quotes the part of a password that it took for a port."""


def without_urls(text: str) -> str:
    """``text`` with the scheme alone of each URL: a malformed one may have its password anywhere."""
    text = _QUOTED_URL.sub(rf"\1\2://{HIDDEN}\1", text)
    text = _URL.sub(rf"\1://{HIDDEN}", text)
    return _PORT.sub(rf"\1{HIDDEN}", text)


def without_credentials(text: str) -> str:
    """``text`` whose URLs have no user and password. Other URLs stay as they are."""
    return _PORT.sub(rf"\1{HIDDEN}", _CREDENTIALS.sub(f"://{HIDDEN}@", text))
