"""An attempt's long texts, as much of them as a page can bear, and each as a plain text of its own.

What is shown is cut by the database, so that neither the page nor the process that makes it holds more, however large
``DCRON_LOG_LIMIT`` is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models.functions import Left, Length, Right
from django.http import Http404, HttpResponse
from django.urls import reverse
from django.utils.translation import gettext_lazy as _

from django_dcron.models import Attempt

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

SHOWN = 100_000
"""Characters. More than what is kept by default, with its mark."""
CUT = {"message": Left, "traceback": Right, "result": Left, "log": Right}
"""What is shown of each if it is longer: its beginning, or its end."""
TITLES = {"message": _("Message"), "traceback": _("Traceback"), "result": _("Result"), "log": _("Log")}


@dataclass(frozen=True, slots=True)
class ShownText:
    name: str
    text: str
    length: int
    """Of all of it."""
    url: str
    """Where all of it is."""

    def __bool__(self) -> bool:
        return bool(self.text)

    @property
    def title(self) -> StrOrPromise:
        return TITLES[self.name]

    @property
    def is_cut(self) -> bool:
        return self.length > len(self.text)

    @property
    def shows_end(self) -> bool:
        return CUT[self.name] is Right

    @property
    def shown(self) -> int:
        return len(self.text)

    @property
    def readable(self) -> str:
        """JSON, if it is that, in lines."""
        return self.text if self.is_cut or self.name != "result" else in_lines(self.text)


def texts_of(attempt: Attempt, site: admin.AdminSite) -> dict[str, ShownText]:
    """By name. One query."""
    cut = {f"{name}_shown": cut(name, SHOWN) for name, cut in CUT.items()}
    lengths = {f"{name}_length": Length(name) for name in CUT}
    rows: Any = Attempt.objects.filter(pk=attempt.pk).order_by("pk").values(**cut, **lengths)
    row = rows.first() or {}  # it may have been pruned this moment
    return {
        name: ShownText(
            name, row.get(f"{name}_shown", ""), row.get(f"{name}_length", 0), _url(attempt, name, site)
        )
        for name in CUT
    }


def plain_text(attempt_id: int, name: str) -> HttpResponse:
    """All of it. Whatever the job wrote, a browser must not take it for a page."""
    if name not in CUT:
        raise Http404
    text = Attempt.objects.filter(pk=attempt_id).values_list(name, flat=True).first()
    if text is None:
        raise Http404
    headers = {
        "Content-Disposition": f'inline; filename="attempt-{attempt_id}-{name}.txt"',
        "X-Content-Type-Options": "nosniff",
    }
    return HttpResponse(text, content_type="text/plain; charset=utf-8", headers=headers)


def in_lines(text: str) -> str:
    """JSON with a line for each value; ``text`` itself if it is none, cannot be told, or would become too long."""
    lines, length = [], 0
    try:
        for piece in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(json.loads(text)):
            lines.append(piece)
            length += len(piece)
            if length > SHOWN:
                return text
        told = "".join(lines)
        told.encode()
    except (ValueError, RecursionError):  # a lone surrogate, too, can only be told escaped
        return text
    return told


def _url(attempt: Attempt, name: str, site: admin.AdminSite) -> str:
    return reverse("admin:django_dcron_attempt_text", args=[attempt.pk, name], current_app=site.name)
