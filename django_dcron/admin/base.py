"""What the admin pages have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest

M = TypeVar("M", bound=Model)

if TYPE_CHECKING:

    class BaseAdmin(admin.ModelAdmin[M]):
        pass

else:

    class BaseAdmin(admin.ModelAdmin):
        """Django's ModelAdmin is generic for type checkers only; this one is so at run time too."""

        def __class_getitem__(cls, model: Any) -> type:
            return cls

        class Media:
            css = {"all": ["django_dcron/admin.css"]}


class ReadOnlyAdmin(BaseAdmin[M]):
    """Rows that the scheduler and the workers write: people only look at them."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: M | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: M | None = None) -> bool:
        return False
