"""Parts of a page that refresh themselves, by htmx.

Invariants:

- A part looks the same whether the page brings it or a refresh: one template, one context.
- A refresh that changes nothing touches nothing: a part says what it shows, and is answered 204 if that is still so.
- Without a script, or without ``django_htmx`` installed, a part is as fresh as its page, and nothing else is different.

A part holds no form with a CSRF token (each would differ from the last), and no relative time ("3 s ago") but in its title.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.utils.safestring import SafeString

REFRESH = {"HX-Refresh": "true"}
"""Headers of an answer that has the whole page reloaded: what is around the part has changed, too."""


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    """The id of its element."""
    template: str
    url: str
    """Answers with ``refreshed``."""
    every: int | None
    """Seconds from one refresh to the next. None: it will not change any more."""

    def render(self, context: dict[str, Any], request: HttpRequest) -> SafeString:
        return self._render(context, request)[0]

    def refreshed(self, context: dict[str, Any], request: HttpRequest) -> HttpResponse:
        html, digest = self._render(context, request)
        if request.GET.get("seen") == digest:
            return HttpResponse(status=204)
        return HttpResponse(html)

    def _render(self, context: dict[str, Any], request: HttpRequest) -> tuple[SafeString, str]:
        inner = render_to_string(self.template, context, request)
        digest = blake2b(inner.encode(), digest_size=8).hexdigest()
        joint = "&" if "?" in self.url else "?"
        frame = {"part": self, "inner": inner, "source": f"{self.url}{joint}seen={digest}"}
        return render_to_string("admin/django_dcron/part.html", frame), digest
