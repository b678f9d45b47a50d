"""Save only changed rows, and handle a save or a deletion that loses a race."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.db import IntegrityError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _

from django_dcron.admin.actions import error_text
from django_dcron.admin.base import BaseAdmin, M
from django_dcron.db.routing import alias_for
from django_dcron.exceptions import Conflict, NotPossible
from django_dcron.jobs.audit.differences import differences, values_of
from django_dcron.models import Calendar, Job, Limit

if TYPE_CHECKING:
    VersionedModelForm = forms.ModelForm
else:

    class VersionedModelForm(forms.ModelForm):
        """A ``ModelForm`` that takes a type argument at run time, as it does for type checkers."""

        def __class_getitem__(cls, model: Any) -> type:
            return cls


LOST_RACES = (Conflict, ValidationError, IntegrityError)
"""Errors of a save whose form was valid: another save came first, and this one is rolled back."""


def needs_save(row: Job | Calendar | Limit) -> bool:
    """Return whether the row is new or has other values than the stored row.

    Also true if another user has changed or deleted the row, so that the save raises ``Conflict``.
    """
    rows: Any = type(row).objects
    stored = rows.using(alias_for(type(row))).filter(pk=row.pk, version=row.version).first()
    return stored is None or bool(differences(type(row), values_of(stored), values_of(row)))


class MultilineFormField(forms.CharField):
    """A text with ``\\n`` as line ends, so that an unchanged text stays the same.

    Browsers send ``\\r\\n``.
    """

    def to_python(self, value: Any) -> str:
        text = super().to_python(value) or ""
        return text.replace("\r\n", "\n").replace("\r", "\n")


class VersionedForm(VersionedModelForm[M]):
    """The form of a row with a version. It saves nothing if the row has changed meanwhile."""

    seen_version = forms.IntegerField(required=False, widget=forms.HiddenInput)

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if not self.instance._state.adding:
            self.initial["seen_version"] = self._stored_version()

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if (
            not self.instance._state.adding
            and cleaned.get("seen_version") != self._stored_version()
        ):
            self.add_error(None, self.conflict())
            data = self.data.copy()  # type: ignore[attr-defined]  # a QueryDict
            data[self.add_prefix("seen_version")] = str(self._stored_version())
            self.data = data
        return cleaned

    def conflict(self) -> ValidationError:
        """Return the error. It shows the stored values, so that a second save is deliberate."""
        raise NotImplementedError

    def _stored_version(self) -> int:
        return int(self.instance.version)  # type: ignore[attr-defined]  # such rows have one


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
