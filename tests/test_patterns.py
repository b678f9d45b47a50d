"""No regular expression of the package can take superlinear time.

Texts come from forms, the REST API, imports and command lines, and ``re`` keeps the GIL while it
matches. ``tests/fuzz`` measures the parsers.
"""

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from django.core.validators import RegexValidator

import django_dcron
from tests.regex_ambiguity import ambiguity

MATCHING = (
    "compile",
    "match",
    "fullmatch",
    "search",
    "sub",
    "subn",
    "split",
    "findall",
    "finditer",
)


def modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(django_dcron.__path__, "django_dcron."):
        try:
            yield importlib.import_module(found.name)
        except (ImportError, RuntimeError):  # needs an extra or a Django version
            yield ModuleType(found.name)


def source_of(name: str) -> str:
    spec = find_spec(name)
    assert spec
    assert spec.origin
    return Path(spec.origin).read_text()


def patterns_in_calls(tree: ast.AST, names: dict[str, Any]) -> Iterator[tuple[int, str]]:
    """Yield each pattern passed to ``re`` or to a ``RegexValidator``, with its line."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        called = ast.unparse(node.func)
        if called in {f"re.{name}" for name in MATCHING} or called.endswith("RegexValidator"):
            pattern = node.args[0]
            code = compile(ast.Expression(pattern), "pattern", "eval")
            try:
                yield node.lineno, eval(code, dict(names))  # noqa: S307 (the package's own source)
            except NameError as error:
                raise AssertionError(
                    f"line {node.lineno}: build the pattern from module constants"
                ) from error


def patterns() -> Iterator[tuple[str, "str | re.Pattern[str]"]]:
    for module in modules():
        for line, pattern in patterns_in_calls(ast.parse(source_of(module.__name__)), vars(module)):
            yield f"{module.__name__}:{line}", pattern
        for name, value in vars(module).items():
            if isinstance(value, re.Pattern):
                yield f"{module.__name__}.{name}", value
            if isinstance(value, RegexValidator):
                yield f"{module.__name__}.{name}", value.regex


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"(?:a+)+b", "exponential"),
        (r"(?:\w+\s?)*", "exponential"),
        (r"(?:ab|\wb)*", "exponential"),
        (r"\s*\s*", "polynomial"),
        (r"\d+x?\d+", "polynomial"),
        (r".*x.*", "polynomial"),
        (r"\s*".join(rf"(?:\d+\s*{letter})?" for letter in "dhms"), "polynomial"),
        (r"\d+\.\d+", ""),
        (r"(?:\d+\s*d\s*)?(?:\d+\s*h\s*)?", ""),
        (r"[\w.]+(?: [\w.]+)*\Z", ""),
        (r"(?:[0-9]{1,9}h)?(?:[0-9]{1,9}m)?", ""),
    ],
)
def test_analysis_detects_ambiguous_patterns(pattern: str, expected: str) -> None:
    assert ambiguity(pattern) == expected


def test_package_has_no_ambiguous_pattern() -> None:
    found = {re.compile(pattern): place for place, pattern in patterns()}
    assert len(found) > 30
    assert {
        place: verdict for pattern, place in found.items() if (verdict := ambiguity(pattern))
    } == {}
