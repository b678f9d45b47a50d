"""Parts of a page that refresh themselves with htmx.

Invariants:

- A part looks the same in the page and in a refresh: both use one template and one context.
- A refresh without changes leaves the part alone. The request carries the digest of the shown
  content, and the answer is 204 if the digest still matches.
- Without JavaScript or ``django_htmx``, a part changes only when the page is reloaded. Everything
  else works.
- A part contains no form with a CSRF token, because each token differs from the previous one.
- A part shows the time left until a run in whole minutes, and recent times of a node as "just
  now", because a relative time in seconds would change at each refresh.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.utils.safestring import SafeString

SEEN = "seen"
"""The query parameter of a refresh with the digest of the shown content."""
RELOAD_PAGE = {"HX-Refresh": "true"}
"""Response headers that reload the whole page, because more than the part has changed."""


@dataclass(frozen=True, slots=True)
class PagePart:
    name: str
    """The id of the part's HTML element."""
    template: str
    url: str
    """The view at this URL answers with ``refresh_response``."""
    interval: int | None
    """Seconds between two refreshes, or None if the content is final."""

    def render(self, context: dict[str, Any], request: HttpRequest) -> SafeString:
        return self._render(context, request)[0]

    def refresh_response(self, context: dict[str, Any], request: HttpRequest) -> HttpResponse:
        html, digest = self._render(context, request)
        if request.GET.get(SEEN) == digest:
            return HttpResponse(status=204)
        return HttpResponse(html)

    def _render(self, context: dict[str, Any], request: HttpRequest) -> tuple[SafeString, str]:
        inner = render_to_string(self.template, context, request)
        digest = blake2b(inner.encode(), digest_size=8).hexdigest()
        separator = "&" if "?" in self.url else "?"
        frame = {"part": self, "inner": inner, "source": f"{self.url}{separator}{SEEN}={digest}"}
        return render_to_string("admin/django_dcron/part.html", frame), digest
