"""Load the long texts of an attempt: bounded for a page, or complete as plain text.

Invariants:

- The database cuts the texts for a page. The process never loads more, regardless of
  ``DCRON_LOG_LIMIT``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django.contrib import admin
from django.db.models import QuerySet
from django.db.models.functions import Left, Length, Right
from django.http import Http404, HttpResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from django_dcron.admin.display import EMPTY
from django_dcron.models import Attempt

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

CHARACTERS_SHOWN = 100_000
"""The maximum number of characters on a page. The default ``DCRON_LOG_LIMIT`` is lower."""
TRUNCATION = {"message": Left, "traceback": Right, "result": Left, "log": Right}
"""The side of each text that is kept if the text is too long: its beginning or its end."""
TITLES = {
    "message": _("Message"),
    "traceback": _("Traceback"),
    "result": _("Result"),
    "log": _("Log"),
}


@dataclass(frozen=True, slots=True)
class AttemptText:
    name: str
    text: str
    length: int
    """The number of characters of the complete text."""
    url: str
    """The URL of the complete text."""

    def __bool__(self) -> bool:
        return bool(self.text)

    @property
    def title(self) -> StrOrPromise:
        return TITLES[self.name]

    @property
    def is_truncated(self) -> bool:
        return self.length > len(self.text)

    @property
    def shows_end(self) -> bool:
        return TRUNCATION[self.name] is Right

    @property
    def shown_length(self) -> int:
        return len(self.text)

    @property
    def formatted(self) -> str:
        """The text. JSON of a complete result has one line per value."""
        return self.text if self.is_truncated or self.name != "result" else indented_json(self.text)


def texts_of(attempt: Attempt, site: admin.AdminSite) -> dict[str, AttemptText]:
    """Return the texts by name, with one query."""
    shown = {f"{name}_shown": side(name, CHARACTERS_SHOWN) for name, side in TRUNCATION.items()}
    lengths = {f"{name}_length": Length(name) for name in TRUNCATION}
    rows: Any = Attempt.objects.filter(pk=attempt.pk).order_by("pk").values(**shown, **lengths)
    row = rows.first() or {}  # the attempt may just have been pruned
    return {
        name: AttemptText(
            name,
            row.get(f"{name}_shown", ""),
            row.get(f"{name}_length", 0),
            _url(attempt.pk, name, site),
        )
        for name in TRUNCATION
    }


def with_log_length(attempts: QuerySet[Attempt]) -> QuerySet[Attempt]:
    return attempts.annotate(log_length=Length("log"))


def log_link(attempt: Attempt, site: admin.AdminSite) -> str:
    """Return a link to the log of an attempt that was read ``with_log_length``."""
    if not getattr(attempt, "log_length", 0):
        return EMPTY
    return format_html('<a href="{}">{}</a>', _url(attempt.pk, "log", site), _("View log"))


def matching_lines_url(attempt_id: int, words: str, site: admin.AdminSite) -> str:
    """Return the URL of the log's lines that contain ``words``."""
    return f"{_url(attempt_id, 'log', site)}?{urlencode({'q': words})}"


def plain_text(attempt_id: int, name: str, words: str = "") -> HttpResponse:
    """Serve a complete text, or its lines that contain ``words``, each with its number.

    The headers prevent a browser from rendering it as HTML.
    """
    if name not in TRUNCATION:
        raise Http404
    text = Attempt.objects.filter(pk=attempt_id).values_list(name, flat=True).first()
    if text is None:
        raise Http404
    if words:
        text = matching_lines(text, words)
    headers = {
        "Content-Disposition": f'inline; filename="attempt-{attempt_id}-{name}.txt"',
        "X-Content-Type-Options": "nosniff",
    }
    return HttpResponse(text, content_type="text/plain; charset=utf-8", headers=headers)


def matching_lines(text: str, words: str) -> str:
    """Return the lines that contain ``words`` in any case, with their numbers from 1."""
    wanted = words.casefold()
    lines = enumerate(text.splitlines(), 1)
    return "".join(f"{number}: {line}\n" for number, line in lines if wanted in line.casefold())


def indented_json(text: str) -> str:
    """Format JSON with one line per value.

    Returns ``text`` itself if it isn't JSON, can't be encoded, or becomes too long.
    """
    lines, length = [], 0
    try:
        for piece in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(json.loads(text)):
            lines.append(piece)
            length += len(piece)
            if length > CHARACTERS_SHOWN:
                return text
        formatted = "".join(lines)
        formatted.encode()
    except (ValueError, RecursionError):  # also for lone surrogates, which UTF-8 can't encode
        return text
    return formatted


def _url(attempt_id: int, name: str, site: admin.AdminSite) -> str:
    return reverse(
        "admin:django_dcron_attempt_text", args=[attempt_id, name], current_app=site.name
    )
