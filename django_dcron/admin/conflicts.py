"""Answer a form or a deletion that loses a race against another user."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.db import IntegrityError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _

from django_dcron.admin.actions import error_text
from django_dcron.admin.base import BaseAdmin, M
from django_dcron.exceptions import Conflict, NotPossible

LOST_RACES = (Conflict, ValidationError, IntegrityError)
"""Errors of a save whose form was valid: another save came first, and this one is rolled back."""


class VersionedAdmin(BaseAdmin[M]):
    """Admin of rows with a version, which ``control`` saves and deletes."""

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Validate the form again on the new row after a lost race.

        A second lost race ends in a message.
        """
        try:
            return super().changeform_view(request, object_id, form_url, extra_context)
        except LOST_RACES:
            pass
        try:
            return super().changeform_view(request, object_id, form_url, extra_context)
        except LOST_RACES as error:
            # The admin can't fix this: for example, a transaction around the request still sees
            # the old row.
            text = error_text(error)
            if not isinstance(error, Conflict):
                text = _("Nothing was saved. %(error)s") % {"error": text}
            self.message_user(request, text, messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        try:
            return super().delete_view(request, object_id, extra_context)
        except NotPossible as error:
            return self._refusal(request, error)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        try:
            return super().changelist_view(request, extra_context)
        except NotPossible as error:  # from the action that deletes several rows
            return self._refusal(request, error)

    def _refusal(self, request: HttpRequest, error: NotPossible) -> HttpResponse:
        """Report a deletion that the row's state no longer allows."""
        self.message_user(request, error_text(error), messages.ERROR)
        return HttpResponseRedirect(request.get_full_path())
