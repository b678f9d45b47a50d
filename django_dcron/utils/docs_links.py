"""The addresses of documentation pages, for messages."""

from __future__ import annotations

DOCS = "https://github.com/example/django-dcron/blob/main/docs/"
ALERTS_PAGE = "how-to/alerts.md"


def with_link(message: str | None, page: str) -> str:
    """Append the address of a documentation page, such as ``how-to/alerts.md``, to a message."""
    return f"{message or ''} See {DOCS}{page}".strip()
