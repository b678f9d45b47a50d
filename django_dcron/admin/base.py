"""Base classes of the admin pages."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern

from django_dcron.admin.read_only import read_only_fieldsets
from django_dcron.jobs.audit.actor import acting, request_actor
from django_dcron.models import Via
from django_dcron.utils.json_values import check_storable

M = TypeVar("M", bound=Model)

if TYPE_CHECKING:

    class GenericAdmin(admin.ModelAdmin[M]):
        pass

else:

    class GenericAdmin(admin.ModelAdmin):
        """Make ``ModelAdmin`` generic at run time. Django does so for type checkers only."""

        def __class_getitem__(cls, model: Any) -> type:
            return cls

        class Media:
            css = {"all": ["django_dcron/admin.css"]}


class BaseAdmin(GenericAdmin[M]):
    """Base class of all admin classes of the app."""

    show_add_link = True
    """Read by django-unfold. Its own admin class has this attribute."""

    @property
    def urls(self) -> list[URLPattern]:
        """Attribute the changes of each view to the user of the request, in the audit log."""
        patterns = self.get_urls()
        for pattern in patterns:
            pattern.callback = _acting(pattern.callback)
        return patterns

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> M | None:
        """Return None for an id that the database can't store, such as text with a NUL."""
        return super().get_object(request, object_id, from_field) if _is_key(object_id) else None

    def get_fieldsets(self, request: HttpRequest, obj: M | None = None) -> Any:
        fieldsets = super().get_fieldsets(request, obj)
        if obj is None or self.has_change_permission(request, obj):
            return fieldsets
        return read_only_fieldsets(fieldsets, self.model)

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: M | None = None,
    ) -> HttpResponse:
        self.add_form_context(request, context, obj)
        return super().render_change_form(request, context, add, change, form_url, obj)

    def render_page(
        self, request: HttpRequest, template: str, context: dict[str, Any]
    ) -> TemplateResponse:
        """Render a page that extends the admin's own page."""
        request.current_app = self.admin_site.name
        site_context = self.admin_site.each_context(request)
        page_context = {**site_context, "opts": self.opts, "media": self.media, **context}
        return TemplateResponse(request, f"admin/django_dcron/{template}", page_context)

    def add_form_context(
        self, request: HttpRequest, context: dict[str, Any], obj: M | None
    ) -> None:
        """Add what the form's page needs to ``context``. ``obj`` is None if a row is added."""


def _acting(view: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(view)
    def acting_view(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        with acting(lambda: request_actor(request, Via.ADMIN)):
            return view(request, *args, **kwargs)

    return acting_view


def _is_key(text: str) -> bool:
    try:
        check_storable(text)
    except ValueError:
        return False
    return True


class ReadOnlyAdmin(BaseAdmin[M]):
    """Admin of rows that only nodes and workers write."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: M | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: M | None = None) -> bool:
        return False
