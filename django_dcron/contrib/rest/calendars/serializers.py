"""Calendars as JSON. A calendar's name is its key, so it is set once, at creation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _
from rest_framework import serializers

from django_dcron.contrib.rest.base_serializers import (
    AnySerializer,
    DocumentSerializer,
)
from django_dcron.jobs.representation import FIELDS
from django_dcron.models import Calendar

WRITABLE = tuple(
    name for name, field in FIELDS[Calendar].items() if field.writable and name != "name"
)


class CalendarSerializer(DocumentSerializer):
    """Dates that the schedules of its jobs skip."""

    class Meta:
        model = Calendar
        fields: tuple[str, ...] = ("name", "version", *WRITABLE)
        read_only_fields: tuple[str, ...] = ("version",)


class CalendarContentSerializer(CalendarSerializer):
    """The content of a calendar."""

    class Meta(CalendarSerializer.Meta):
        read_only_fields = ("name", "version")

    def to_internal_value(self, data: Any) -> Any:
        """Accept the unchanged name, so that a client can send back what it has read."""
        name = self.instance.name if self.instance else None
        if isinstance(data, Mapping) and data.get("name", name) != name:
            raise serializers.ValidationError(
                {"name": [_("The name of a calendar can't be changed.")]}
            )
        return super().to_internal_value(data)


class ListedCalendarSerializer(CalendarSerializer):
    number_of_jobs = serializers.IntegerField(
        read_only=True, help_text="The number of jobs that use the calendar."
    )

    class Meta(CalendarSerializer.Meta):
        fields = (*CalendarSerializer.Meta.fields, "number_of_jobs")

    def to_representation(self, instance: Any) -> dict[str, Any]:
        number = {"number_of_jobs": instance.number_of_jobs}
        return super().to_representation(instance) | number


class CalendarPageSerializer(AnySerializer):
    next = serializers.URLField(
        read_only=True,
        allow_null=True,
        help_text="The URL of the next page. Null on the last page.",
    )
    results = ListedCalendarSerializer(many=True, read_only=True)
