"""An input for the key of a model's row, with the lookup of Django's admin.

A parameter with a hint such as ``Annotated[int, Customer]`` gets this input. The target gets the
key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib.admin import AdminSite
from django.contrib.admin.widgets import ForeignKeyRawIdWidget
from django.core.exceptions import ValidationError
from django.db import DataError
from django.db.models import ManyToOneRel, Model
from django.forms import Widget
from django.http import HttpRequest
from django.utils.translation import gettext as _


@dataclass(frozen=True, slots=True)
class RowInputs:
    """Builds and checks inputs for the keys of rows that the user of a request may view."""

    site: AdminSite
    request: HttpRequest

    def widget(self, model: type[Model]) -> Widget | None:
        """Return the input with a lookup, or None if the user may not view the model's rows."""
        if not self._may_view(model):
            return None
        return _RowInput(model, self)

    def check(self, model: type[Model], key: Any) -> None:
        """Raise ``ValidationError`` if the user may view the model, but no row with this key."""
        if self._may_view(model) and not self.sees(model, key):
            values = {"model": model._meta.verbose_name, "key": repr(key)}
            raise ValidationError(
                _("No %(model)s with the key %(key)s exists.") % values, code="no_row"
            )

    def sees(self, model: type[Model], key: Any) -> bool:
        """Return whether the user may see a row with this key, which may be any text."""
        rows = self.site.get_model_admin(model).get_queryset(self.request)
        try:
            return bool(rows.filter(pk=key).exists())
        except (TypeError, ValueError, OverflowError, ValidationError, DataError):
            return False  # no key of this model

    def _may_view(self, model: type[Model]) -> bool:
        registered = self.site.is_registered(model)
        return registered and self.site.get_model_admin(model).has_view_permission(self.request)


class _RowInput(ForeignKeyRawIdWidget):
    """The input of ``raw_id_fields``. It names only rows that the user may see."""

    def __init__(self, model: type[Model], rows: RowInputs):
        key: Any = model._meta.pk
        # Django's widget reads only the model and the key.
        super().__init__(ManyToOneRel(key, model, key.name), rows.site)
        self._model, self._rows = model, rows

    def label_and_url_for_value(self, value: Any) -> tuple[str, str]:
        if not self._rows.sees(self._model, value):
            return "", ""
        label, url = super().label_and_url_for_value(value)
        return str(label), str(url)
