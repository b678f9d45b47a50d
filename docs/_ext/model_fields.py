"""Directives that list the fields of a model: ``model-fields`` and, as JSON, ``json-fields``."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

NAMES = {
    "BigAutoField": "integer",
    "BigIntegerField": "integer",
    "BooleanField": "boolean",
    "CharField": "text",
    "DateTimeField": "datetime",
    "DurationField": "timedelta",
    "ExactCharField": "text",
    "FloatField": "float",
    "ForeignKey": "foreign key",
    "JSONField": "JSON",
    "OneToOneField": "one to one",
    "PositiveBigIntegerField": "integer",
    "PositiveIntegerField": "integer",
    "PositiveSmallIntegerField": "integer",
    "TextField": "text",
    "UUIDField": "UUID",
}


def describe_type(field: Any) -> str:
    if field.remote_field:
        return f"{NAMES[type(field).__name__]} to `{field.remote_field.model.__name__}`"
    return NAMES[type(field).__name__]


def describe_default(field: Any) -> str:
    from django.db.models import NOT_PROVIDED

    from django_dcron.utils.durations import write_duration

    if getattr(field, "auto_now", False) or getattr(field, "auto_now_add", False):
        return "now"
    if field.get_internal_type().endswith("AutoField"):
        return "generated"
    default = field.default
    if default is NOT_PROVIDED:
        if field.null:
            return "`None`"
        return '`""`' if field.blank else "required"
    if default in (list, dict):
        return f"`{default()!r}`"
    if callable(default):
        return "generated"
    if isinstance(default, timedelta):
        return f"`{write_duration(default)}`"
    return f"`{default!r}`".replace("'", '"')


def describe_field(field: Any) -> str:
    choices = [f"`{value}`" for value, _label in field.choices or ()]
    help_text = str(field.help_text)
    return " ".join(filter(None, [help_text, f"Values: {', '.join(choices)}." if choices else ""]))


class ModelFields(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        from django.apps import apps

        model = apps.get_model("django_dcron", self.arguments[0])
        rows = ["| field | type | default | meaning |", "|---|---|---|---|"]
        for field in model._meta.concrete_fields:
            cells = (
                f"`{field.name}`",
                describe_type(field),
                describe_default(field),
                describe_field(field),
            )
            rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        name = model.__name__
        # Signatures link to the class by the module that defines it.
        options = [":module: django_dcron.models", f":canonical: {model.__module__}.{name}"]
        text = [f"```{{py:class}} {name}", *options, "", *rows, "```"]
        return self.parse_text_to_nodes(StringList(text, source=model.__module__))


def describe_json(field: Any) -> tuple[str, ...]:
    """Return the cells of a field of ``jobs.representation``."""
    from django_dcron.jobs.representation import to_json

    default = describe_default(field.model_field)
    if default.startswith("`"):
        written = json.dumps(to_json(field.model_field.get_default()))
        default = f"`{written}`"
    flags = ("writable", "portable", "confidential")
    is_nullable = " or null" if field.nullable else ""
    return (
        f"`{field.name}`",
        f"{field.format}{is_nullable}",
        default,
        ", ".join(flag for flag in flags if getattr(field, flag)),
    )


class JsonFields(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        from django.apps import apps

        from django_dcron.jobs.representation import FIELDS

        model = apps.get_model("django_dcron", self.arguments[0])
        rows = ["| field | format | default | properties |", "|---|---|---|---|"]
        rows += [f"| {' | '.join(describe_json(field))} |" for field in FIELDS[model].values()]
        return self.parse_text_to_nodes(StringList(rows, source=model.__module__))


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("model-fields", ModelFields)
    app.add_directive("json-fields", JsonFields)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
