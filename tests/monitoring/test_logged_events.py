"""Every log call has an event, and the documentation lists the event with its fields."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from django.utils.module_loading import import_string

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "docs" / "reference" / "observability.md").read_text()
LEVELS = {"info", "warning", "error", "critical", "exception", "log"}


@cache
def dicts_and_calls() -> list[tuple[str, ast.AST]]:
    """Return all dicts and calls of the package, each with its location."""
    return [
        (f"{path.relative_to(ROOT)}:{node.lineno}", node)
        for path in sorted((ROOT / "django_dcron").rglob("*.py"))
        if "migrations" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.Dict, ast.Call))
    ]


def string(node: ast.AST | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


@cache
def functions_that_return_fields() -> dict[str, set[str]]:
    """Return the keys of the dict that each function returns, by its name."""
    return {
        node.name: {key for key in map(string, node.body[-1].value.keys) if key}
        for path in sorted((ROOT / "django_dcron").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        and node.name.endswith("log_fields")
        and isinstance(node.body[-1], ast.Return)
        and isinstance(node.body[-1].value, ast.Dict)
    }


def logged_events() -> Iterator[tuple[str, set[str]]]:
    """Yield each event with the other fields of the same dict.

    They include the fields of a function that the dict unpacks, such as ``**log_fields(run)``.
    """
    for _, node in dicts_and_calls():
        if isinstance(node, ast.Dict):
            values = {string(key): value for key, value in zip(node.keys, node.values, strict=True)}
            if event := string(values.get("event")):
                fields = {key for key in values if key} - {"event"}
                for key, value in zip(node.keys, node.values, strict=True):
                    if key is None and isinstance(value, ast.Call):
                        fields |= functions_that_return_fields()[ast.unparse(value.func)]
                yield event, fields
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "_log"
        ):
            names = [
                name for name in map(string, node.args) if name and re.fullmatch(r"[a-z_]+", name)
            ]
            yield names[0], set()


def documented_events() -> list[tuple[str, set[str]]]:
    """Return each row's event and extras."""
    table = DOCUMENT[DOCUMENT.index("| `event` |") : DOCUMENT.index("## Traces")]
    rows = [row.split("|")[1:3] for row in table.splitlines()[2:] if row.startswith("|")]
    return [(event.strip(" `"), set(re.findall(r"`(\w+)`", extras))) for event, extras in rows]


def names_event(extra: ast.expr) -> bool:
    return any(
        isinstance(node, ast.Dict) and "event" in map(string, node.keys) for node in ast.walk(extra)
    )


def log_calls(function: ast.AST) -> Iterator[tuple[int, bool]]:
    """Yield the line of each log call of a function, and whether its ``extra`` has an event.

    The function may assign the dict to a variable ``extra`` first.
    """
    variable = [
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == "extra" for target in node.targets)
    ]
    for node in ast.walk(function):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in LEVELS
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "logger"
        ):
            given = [keyword.value for keyword in node.keywords if keyword.arg == "extra"]
            if given and isinstance(given[0], ast.Name):
                given = variable
            yield node.lineno, bool(given) and all(map(names_event, given))


def test_every_log_call_has_an_event() -> None:
    calls = [
        (f"{path.relative_to(ROOT)}:{line}", has_event)
        for path in sorted((ROOT / "django_dcron").rglob("*.py"))
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef)
        for line, has_event in log_calls(function)
    ]
    assert len(calls) > 80, "the search finds the log calls"
    assert [where for where, has_event in calls if not has_event] == []


def test_documented_events_match_logged_events() -> None:
    assert Counter(event for event, _ in documented_events()) == Counter(
        {event for event, _ in logged_events()}
    )


def test_fields_of_every_event_are_documented() -> None:
    known = dict(documented_events())
    assert {
        event: extras - known[event]
        for event, extras in logged_events()
        if not extras <= known[event]
    } == {}


def test_documented_logging_settings_are_importable() -> None:
    block = next(
        block
        for block in re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
        if "LOGGING" in block
    )
    scope: dict[str, dict[str, dict[str, dict[str, str]]]] = {}
    exec(block, scope)  # noqa: S102 (our own document)
    for made in (scope["LOGGING"]["filters"]["run"], scope["LOGGING"]["formatters"]["json"]):
        assert import_string(made["()"])()
