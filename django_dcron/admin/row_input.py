"""An input for the key of a model's row, with the lookup of Django's admin.

A parameter with a hint such as ``Annotated[int, Customer]`` has it. The target gets the key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib.admin import AdminSite
from django.contrib.admin.widgets import ForeignKeyRawIdWidget
from django.core.exceptions import ValidationError
from django.db.models import ManyToOneRel, Model
from django.forms import Widget
from django.http import HttpRequest
from django.utils.translation import gettext as _


@dataclass(frozen=True, slots=True)
class RowInputs:
    """The rows that the user of a request may look up: those of the models in the admin."""

    site: AdminSite
    request: HttpRequest

    def widget(self, model: type[Model]) -> Widget | None:
        """Return the input with a lookup, or None if the user may not view the model's rows."""
        if not self._may_view(model):
            return None
        key: Any = model._meta.pk
        relation = ManyToOneRel(key, model, key.name)  # the widget reads only model and key
        return ForeignKeyRawIdWidget(relation, self.site)

    def check(self, model: type[Model], key: Any) -> None:
        """Raise ``ValidationError`` if the user could see the row, but it doesn't exist."""
        if not self._may_view(model):
            return
        rows = self.site.get_model_admin(model).get_queryset(self.request)
        if not rows.filter(pk=key).exists():
            values = {"model": model._meta.verbose_name, "key": repr(key)}
            raise ValidationError(
                _("No %(model)s with the key %(key)s exists.") % values, code="no_row"
            )

    def _may_view(self, model: type[Model]) -> bool:
        registered = self.site.is_registered(model)
        return registered and self.site.get_model_admin(model).has_view_permission(self.request)
