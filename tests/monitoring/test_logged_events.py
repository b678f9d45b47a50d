"""Test that every log line has an event, and that the documentation lists it with its fields."""

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
def nodes() -> list[tuple[str, ast.AST]]:
    """Return all dicts and calls of the package, each with its location."""
    return [
        (f"{path.relative_to(ROOT)}:{node.lineno}", node)
        for path in sorted((ROOT / "django_dcron").rglob("*.py"))
        if "migrations" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.Dict, ast.Call))
    ]


def text(node: ast.AST | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def logged() -> Iterator[tuple[str, set[str]]]:
    """Yield each event with the extras in the same dict."""
    for _, node in nodes():
        if isinstance(node, ast.Dict):
            values = {text(key): value for key, value in zip(node.keys, node.values, strict=True)}
            if event := text(values.get("event")):
                yield event, {key for key in values if key} - {"event"}
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "_log"
        ):
            names = [
                name for name in map(text, node.args) if name and re.fullmatch(r"[a-z_]+", name)
            ]
            yield names[0], set()


def documented() -> list[tuple[str, set[str]]]:
    table = DOCUMENT[DOCUMENT.index("| `event` |") : DOCUMENT.index("## Traces")]
    rows = [row.split("|")[1:3] for row in table.splitlines()[2:] if row.startswith("|")]
    words = re.compile(r"`(\w+)`")
    return [
        (event, set(words.findall(also)))
        for events, also in rows
        for event in words.findall(events)
    ]


def test_every_log_call_has_extra_fields() -> None:
    without = []
    for where, node in nodes():
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in LEVELS
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "logger"
            and "extra" not in {keyword.arg for keyword in node.keywords}
        ):
            without.append(where)
    assert without == []


def test_documented_events_match_logged_events() -> None:
    assert Counter(event for event, _ in documented()) == Counter({event for event, _ in logged()})


def test_fields_of_every_event_are_documented() -> None:
    known = dict(documented())
    assert {
        event: extras - known[event] for event, extras in logged() if not extras <= known[event]
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
