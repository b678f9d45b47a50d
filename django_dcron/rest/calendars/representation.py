"""A calendar as JSON, and as it is written. Its name, by which jobs know it, is its key: said once, as it is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _
from rest_framework import serializers

from django_dcron.models import Calendar
from django_dcron.rest.serializing import AnySerializer, OfModel

WRITTEN = ("description", "dates")


class CalendarSerializer(OfModel):
    """Dates on which the schedules that name it are not to fall."""

    class Meta:
        model = Calendar
        fields: tuple[str, ...] = ("name", "version", *WRITTEN)
        read_only_fields: tuple[str, ...] = ("version",)


class CalendarContentSerializer(CalendarSerializer):
    """What a calendar says."""

    class Meta(CalendarSerializer.Meta):
        read_only_fields = ("name", "version")

    def to_internal_value(self, data: Any) -> Any:
        """The name that it was read with may be sent back."""
        name = self.instance.name if self.instance else None
        if isinstance(data, Mapping) and data.get("name", name) != name:
            raise serializers.ValidationError({"name": [_("It cannot be changed: jobs name it so.")]})
        return super().to_internal_value(data)


class ListedCalendarSerializer(CalendarSerializer):
    number_of_jobs = serializers.IntegerField(read_only=True, help_text="How many jobs name it.")

    class Meta(CalendarSerializer.Meta):
        fields = (*CalendarSerializer.Meta.fields, "number_of_jobs")


class CalendarPageSerializer(AnySerializer):
    next = serializers.URLField(read_only=True, allow_null=True, help_text="Null: this is the last page.")
    results = ListedCalendarSerializer(many=True, read_only=True)
