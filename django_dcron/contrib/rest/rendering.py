"""JSON is the only format of requests and responses, regardless of ``Accept``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rest_framework import renderers
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.request import Request
from rest_framework.utils.mediatypes import media_type_matches


class Renderer(renderers.JSONRenderer):
    ensure_ascii = True
    """ASCII can represent any stored text, including lone surrogates."""


class OneFormat(BaseContentNegotiation):
    def select_parser(self, request: Request, parsers: Iterable[Any]) -> Any:
        content_type = request.content_type or ""
        return next(
            (each for each in parsers if media_type_matches(each.media_type, content_type)), None
        )

    def select_renderer(
        self, request: Request, renderers: Iterable[Any], format_suffix: str | None = None
    ) -> tuple[Any, str]:
        renderer = next(iter(renderers))
        return renderer, renderer.media_type
