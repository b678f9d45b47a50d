"""Link messages to the documentation."""

from __future__ import annotations

DOCS = "https://github.com/example/django-dcron/blob/main/docs/"
ALERTS_PAGE = "how-to/alerts.md"


def with_link(message: str | None, page: str) -> str:
    """Return the message with the address of a page, such as ``how-to/alerts.md``."""
    return f"{message or ''} See {DOCS}{page}".strip()
