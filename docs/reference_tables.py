"""Write the generated parts of the reference into its Markdown files: ``make reference``.

A part is between ``<!-- generated: NAME -->`` and ``<!-- end of generated -->``. ``PARTS`` says
which names exist. ``updated`` returns the current text of a page and changes nothing.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Callable, Iterable
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from typing import Any

REFERENCE = Path(__file__).resolve().parent / "reference"
PAGES = [REFERENCE / name for name in ("models.md", "jobs-as-json.md", "python-api.md")]
PART = re.compile(r"(<!-- generated: (.+?) -->\n).*?(<!-- end of generated -->)", re.DOTALL)
WIDTH = 88

FIELD_TYPES = {
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
CONTROL = (
    *("trigger", "trigger_many", "cancel", "cancel_many", "rerun", "pause", "resume"),
    *("pause_many", "resume_many", "freeze", "unfreeze", "set_incident_state"),
    *("latest_failed_attempt_id", "rerun_failures", "backfill", "preview", "save", "save_many"),
    *("update_or_create", "revert", "delete", "restore", "save_calendar", "delete_calendar"),
    *("save_limit", "delete_limit", "acting_as"),
)
EXCEPTIONS = (
    *("PermanentFailure", "RetryLater", "RunCancelled", "RunTimedOut", "DcronError"),
    *("InvalidSchedule", "InvalidTimeZone", "InvalidCalendar", "UnknownTarget", "InvalidArguments"),
    *(
        "SignatureMismatch",
        "InvalidValue",
        "Conflict",
        "BulkSaveError",
        "NotPossible",
        "IdempotencyKeyReused",
        "UnknownRun",
        "LockUnavailable",
    ),
)
CURRENT_RUN = (
    *("is_active", "id", "job", "attempt", "fence", "scheduled_at", "previous_scheduled_at"),
    *("started_at", "timeout", "deadline", "time_left", "cancelled", "heartbeat", "progress"),
)
ANNOTATIONS = {
    "Unpack[JobFields]": "JobFields",
    "Unpack[JobValues]": "JobValues",
    "Callable[[F], F]": "Callable",
    "Iterator[None]": "AbstractContextManager[None]",
    "Iterator[ManualClock]": "AbstractContextManager[ManualClock]",
    "OnProgress | None": "Callable[[int], None] | None",
}
"""Annotations that help a type checker more than a reader, and what the page shows instead."""


def updated(text: str) -> str:
    """Return the text of a page with its generated parts made from the current code."""

    def replace(match: re.Match[str]) -> str:
        start, name, end = match.groups()
        kind, _, argument = name.rpartition(" of ")
        return f"{start}\n{PARTS[kind](argument).strip()}\n\n{end}"

    return PART.sub(replace, text)


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    header = list(header)
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    for row in rows:
        cells = [cell.replace("|", "\\|") for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


# --- Models ---------------------------------------------------------------------------------------


def _model(name: str) -> Any:
    return getattr(import_module("django_dcron.models"), name)


def model_fields(name: str) -> str:
    rows = [
        (f"`{field.name}`", describe_type(field), describe_default(field), describe_field(field))
        for field in _model(name)._meta.concrete_fields
    ]
    return table(("field", "type", "default", "meaning"), rows)


def describe_type(field: Any) -> str:
    kind = FIELD_TYPES[type(field).__name__]
    return f"{kind} to `{field.remote_field.model.__name__}`" if field.remote_field else kind


def describe_default(field: Any) -> str:
    from django.db.models import NOT_PROVIDED

    from django_dcron.models.job_settings import site_time_zone
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
    if default is site_time_zone:
        return "the setting `TIME_ZONE`"
    if callable(default):
        return "generated"
    if isinstance(default, timedelta):
        return f"`{write_duration(default)}`"
    return f"`{default!r}`".replace("'", '"')


def describe_field(field: Any) -> str:
    choices = ", ".join(f"`{value}`" for value, _label in field.choices or ())
    return " ".join(filter(None, [str(field.help_text), choices and f"Values: {choices}."]))


def json_fields(name: str) -> str:
    from django_dcron.jobs.representation import FIELDS

    rows = [_json_field(field) for field in FIELDS[_model(name)].values()]
    return table(("field", "format", "default", "properties"), rows)


def _json_field(field: Any) -> tuple[str, ...]:
    from django_dcron.jobs.representation import to_json

    default = describe_default(field.model_field)
    if default.startswith("`"):
        default = f"`{json.dumps(to_json(field.model_field.get_default()))}`"
    flags = ("writable", "portable", "confidential")
    return (
        f"`{field.name}`",
        f"{field.format}{' or null' if field.nullable else ''}",
        default,
        ", ".join(flag for flag in flags if getattr(field, flag)),
    )


# --- Python ---------------------------------------------------------------------------------------


def _object(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def functions(module: str) -> str:
    """Describe each public function below its own heading."""
    names = {"control": CONTROL, "testing": ("set_clock", "run_due", "assert_runs_at")}[module]
    return "\n\n".join(
        f"### {module}.{name}\n\n{function(f'django_dcron.{module}.{name}')}" for name in names
    )


def function(path: str) -> str:
    return _function(_object(path), path.rpartition(".")[2])


def _function(described: Callable[..., Any], name: str) -> str:
    signature_block = f"```python\n{signature(described, name)}\n```"
    return f"{signature_block}\n\n{as_markdown(inspect.getdoc(described) or '')}"


def signature(described: Callable[..., Any], name: str) -> str:
    """Return the signature as in a stub, with one parameter per line if it is long."""
    given = inspect.signature(described)
    parts: list[str] = []
    is_keyword_only = False
    for parameter in given.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not is_keyword_only:
            parts.append("*")
            is_keyword_only = True
        parts.append(_parameter(parameter))
        is_keyword_only |= parameter.kind is parameter.VAR_POSITIONAL
    result = _annotation(given.return_annotation)
    line = f"def {name}({', '.join(parts)}) -> {result}: ..."
    if len(line) <= WIDTH:
        return line
    lines = "".join(f"    {part},\n" for part in parts)
    return f"def {name}(\n{lines}) -> {result}: ..."


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    text = f"{stars}{parameter.name}: {_annotation(parameter.annotation)}"
    if parameter.default is parameter.empty:
        return text
    is_literal = isinstance(parameter.default, str | int | float | tuple | None)
    default = repr(parameter.default).replace("'", '"') if is_literal else "..."
    return f"{text} = {default}"


def _annotation(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "Any")
    return ANNOTATIONS.get(text, text)


def as_markdown(docstring: str) -> str:
    """Convert the markup that docstrings use: inline code and blocks of code after ``::``."""
    lines: list[str] = []
    in_block = False
    for line in docstring.splitlines():
        if in_block and line and not line.startswith(" "):
            while not lines[-1]:
                lines.pop()
            lines += ["```", ""]
            in_block = False
        if in_block:
            if line or lines[-1] != "```python":
                lines.append(line.removeprefix("    "))
        elif line.endswith("::"):
            lines += [line[:-1].replace("``", "`"), "", "```python"]
            in_block = True
        else:
            lines.append(line.replace("``", "`"))
    return "\n".join([*lines, "```"] if in_block else lines)


def current_run_class(_argument: str) -> str:
    path = "django_dcron.execution.current.CurrentRun"
    return _class(path, [member for name in CURRENT_RUN for member in _members(path, name)])


def result_class(path: str) -> str:
    return _class(path, _members(path))


def _class(path: str, members: list[tuple[str, str, str]]) -> str:
    """Describe a class: its docstring, a table of attributes, and each method below a heading."""
    described = _object(path)
    parts = [f"### {described.__name__}", as_markdown(inspect.getdoc(described) or "")]
    rows = [(f"`{name}`", f"`{kind}`", text) for name, kind, text in members if kind]
    if rows:
        parts.append(table(("attribute", "type", "meaning"), rows))
    for name in (name for name, kind, _text in members if not kind):
        parts.append(f"#### {described.__name__}.{name}")
        parts.append(_function(getattr(described, name), name))
    return "\n\n".join(parts)


def _members(path: str, wanted: str = "") -> list[tuple[str, str, str]]:
    """Return name, type and meaning of the public members of a class, from its source.

    A method has no type.
    """
    tree: Any = ast.parse(dedent(inspect.getsource(_object(path)))).body[0]
    found = []
    for body, parameters in _bodies(tree):
        for node, after in zip(body, [*body[1:], None], strict=True):
            name, kind = _name_and_type(node, parameters)
            if not name or name.startswith("_") or (wanted and name != wanted):
                continue
            if isinstance(node, ast.FunctionDef):
                text = ast.get_docstring(node) or ""
            else:
                text = _string(after)
            found.append((name, kind, " ".join(text.replace("``", "`").split())))
    return found


def _bodies(tree: ast.ClassDef) -> Iterable[tuple[list[ast.stmt], dict[str, str]]]:
    """Yield the class's statements, and those of ``__init__`` with its parameters' types."""
    yield tree.body, {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            arguments = [*node.args.args, *node.args.kwonlyargs]
            yield node.body, {a.arg: ast.unparse(a.annotation) for a in arguments if a.annotation}


def _name_and_type(node: ast.stmt, parameters: dict[str, str]) -> tuple[str, str]:
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.target.id, ast.unparse(node.annotation)
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
        name, value = node.targets[0].attr, node.value
        if isinstance(value, ast.Constant):
            return name, type(value.value).__name__
        return name, parameters.get(getattr(value, "id", ""), "int")
    if isinstance(node, ast.FunctionDef):
        is_method = not {"property", "cached_property"} & set(map(ast.unparse, node.decorator_list))
        return node.name, "" if is_method or not node.returns else ast.unparse(node.returns)
    return "", ""


def _string(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return str(node.value.value)
    return ""


def states(path: str) -> str:
    described = _object(path)
    text = as_markdown(inspect.getdoc(described) or "")
    rows = [(f"`{described.__name__}.{each.name}`", f'`"{each.value}"`') for each in described]
    return f"### {described.__name__}\n\n{text}\n\n{table(('name', 'value'), rows)}"


def keywords(_argument: str) -> str:
    from django_dcron.targets.declared_fields import JobFields

    model_fields = {field.name: field for field in _model("Job")._meta.get_fields()}
    rows = []
    for name, annotation in JobFields.__annotations__.items():
        kind = getattr(annotation, "__forward_arg__", str(annotation))
        field = model_fields.get(name)
        default = describe_default(field) if hasattr(field, "default") else "`{}`"
        if name == "timezone":
            default = "the project's `TIME_ZONE`"
        rows.append((f"`{name}`", f"`{kind}`", default))
    return table(("keyword", "type", "default"), rows)


def exceptions(_argument: str) -> str:
    rows = []
    for name in EXCEPTIONS:
        text = inspect.getdoc(_object(f"django_dcron.exceptions.{name}")) or ""
        rows.append((f"`{name}`", " ".join(text.replace("``", "`").split())))
    return table(("exception", "meaning"), rows)


PARTS: dict[str, Callable[[str], str]] = {
    "fields": model_fields,
    "JSON fields": json_fields,
    "functions": functions,
    "signature": function,
    "keywords": keywords,
    "members": result_class,
    "current run": current_run_class,
    "values": states,
    "list": exceptions,
}
"""For each kind of part, such as ``fields of Job``, the function that makes it."""


def main() -> None:
    import django
    from celery import Celery
    from django.conf import settings

    # Models need a configured Django. No database or Redis is contacted.
    settings.configure(
        INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django_dcron"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        USE_TZ=True,
    )
    Celery("docs", set_as_current=True)
    django.setup()
    for page in PAGES:
        page.write_text(updated(page.read_text()))


if __name__ == "__main__":
    main()
