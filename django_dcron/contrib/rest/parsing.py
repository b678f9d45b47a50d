"""Parse request bodies: JSON of a limited size."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.utils.translation import gettext as _
from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser

from django_dcron.contrib.rest.problems import ContentTooLarge


class Parser(BaseParser):
    """Parses JSON (RFC 8259), up to ``DATA_UPLOAD_MAX_MEMORY_SIZE``.

    REST framework's own parser ignores that limit.
    """

    media_type = "application/json"

    def parse(
        self,
        stream: Any,
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        limit: int | None = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        body = stream.read() if limit is None else stream.read(limit + 1)
        if limit is not None and len(body) > limit:
            raise ContentTooLarge(_("The request body exceeds %(limit)d bytes.") % {"limit": limit})
        try:
            return json.loads(body.decode(), parse_constant=_refuse)
        except UnicodeDecodeError:
            raise ParseError(_("The request body is not valid UTF-8.")) from None
        except (ValueError, RecursionError) as error:
            raise ParseError(
                _("The request body is not valid JSON: %(problem)s") % {"problem": error}
            ) from None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not valid JSON")
