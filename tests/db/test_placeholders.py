"""A placeholder converts values exactly as its field does."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection, models

from django_dcron.db.statements import Placeholder
from django_dcron.models import Attempt, Job, Run
from django_dcron.policies.lifecycle import State


class Text(str):
    """A subclass of ``str``, which a field may convert."""

    __slots__ = ()


VALUES = (None, "", "text", Text("text"), State.RUNNING, 0, 1, True, 2**40, uuid4(), str(uuid4()))


def outcome_of(convert: Callable[..., Any], value: object) -> tuple[type, str]:
    """Return the type and the text of the converted value or of the error."""
    try:
        converted = convert(value, connection)
    except Exception as error:
        converted = error
    # psycopg's wrapper of a JSON value has the value in ``obj``.
    return type(converted), str(getattr(converted, "obj", converted))


@pytest.mark.parametrize("model", [Run, Attempt, Job])
def test_values_are_converted_as_by_the_field(model: type[models.Model]) -> None:
    for field in model._meta.concrete_fields:
        prepare = Placeholder(model, field.attname).prepare
        for value in VALUES:
            converted = outcome_of(prepare, value)
            assert converted == outcome_of(field.get_db_prep_save, value), (field, value)


def test_field_with_its_own_conversion_converts_the_value() -> None:
    class Lowered(models.CharField):  # type: ignore[type-arg]
        def get_prep_value(self, value: Any) -> Any:
            return value.lower()

    model: Any = SimpleNamespace(_meta=SimpleNamespace(get_field=lambda name: Lowered()))
    assert Placeholder(model, "name").prepare("ABC", connection) == "abc"
