"""What a form's page answers if somebody else saves or deletes its row at the same moment."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.db import IntegrityError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _

from django_dcron.admin.base import BaseAdmin, M
from django_dcron.admin.verbs import in_words
from django_dcron.exceptions import Conflict, NotPossible

LOST_RACES = (Conflict, ValidationError, IntegrityError)
"""What a save raises after its form was valid: somebody else saved in between, and this save was rolled back."""


class VersionedAdmin(BaseAdmin[M]):
    """For rows with a version, saved and deleted by ``control``."""

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Validate the form once more after a lost race, on the new row. A second one ends with a message."""
        try:
            return super().changeform_view(request, object_id, form_url, extra_context)
        except LOST_RACES:
            pass
        try:
            return super().changeform_view(request, object_id, form_url, extra_context)
        except LOST_RACES as error:
            # Out of the admin's reach, such as a transaction around the request that still sees the old row.
            text = _("Nothing was saved. %(error)s") % {"error": in_words(error)}
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
        except NotPossible as error:  # of the action that deletes several
            return self._refusal(request, error)

    def _refusal(self, request: HttpRequest, error: NotPossible) -> HttpResponse:
        """For a deletion that the row's state, as somebody has just changed it, does not allow."""
        self.message_user(request, in_words(error), messages.ERROR)
        return HttpResponseRedirect(request.get_full_path())
