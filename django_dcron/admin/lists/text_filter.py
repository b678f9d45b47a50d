"""Filters by a text that the user enters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from django_dcron.admin.lists.filters import other_parameters

REASON_LOOKUP = "reason__icontains"
"""The parameter of the filter of runs by a text in their error or reason."""


class TextFilter(admin.ListFilter):
    """A collapsed filter with an input for a text. Without a text, it doesn't filter."""

    template = "admin/django_dcron/text_filter.html"
    parameter_name: str

    def __init__(self, request: HttpRequest, params: Any, model: Any, model_admin: Any):
        super().__init__(request, params, model, model_admin)
        self.others: list[tuple[str, str]] = []
        """The other filters, which the form submits again."""
        self.text: str = params.pop(self.parameter_name, [""])[-1].strip()
        if self.text:
            self.used_parameters[self.parameter_name] = self.text

    @property
    def is_filled_in(self) -> bool:
        return bool(self.text)

    def expected_parameters(self) -> list[Any]:
        return [self.parameter_name]

    def has_output(self) -> bool:
        return True

    def choices(self, changelist: Any) -> Iterator[Any]:
        self.others = other_parameters(changelist, self.expected_parameters())
        yield {
            "selected": not self.text,
            "query_string": changelist.get_query_string(remove=self.expected_parameters()),
            "display": _("All"),
        }


class ReasonFilter(TextFilter):
    """Filter runs by a text that their error or reason contains.

    No index covers the text. ``TimeFilter`` therefore limits the runs that are searched.
    """

    title = _("error or reason (latest 100,000 runs)")
    parameter_name = REASON_LOOKUP

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(**{REASON_LOOKUP: self.text}) if self.text else queryset
