"""No regular expression of the package can be made to run superlinearly, and no text parser either.

Texts come from forms, the REST API, imports and command lines, and ``re`` keeps the GIL while it matches.
"""

import ast
import importlib
import pkgutil
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from django.core.validators import RegexValidator

import django_dcron
from django_dcron.admin.durations import DurationInput
from django_dcron.admin.verb_forms import InstantField, UntilField
from django_dcron.domain.alerting import read_rules
from django_dcron.domain.durations import read_duration
from django_dcron.domain.schedule import parse_schedule
from django_dcron.domain.zones import check_zone
from django_dcron.management.dcron.times import instant
from django_dcron.models.calendar import NAME as CALENDAR_NAME
from django_dcron.models.calendar import read_dates
from django_dcron.models.job import NAME, QUEUE
from django_dcron.moving import crontab, names
from django_dcron.moving.croniter_text import from_croniter
from django_dcron.rest.fields import Instant
from django_dcron.sync.portable import read as read_document
from django_dcron.sync.portable_values import _duration, _moment
from django_dcron.targets import get
from tests.regex_ambiguity import ambiguity

MATCHING = ("compile", "match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer")


def modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(django_dcron.__path__, "django_dcron."):
        try:
            yield importlib.import_module(found.name)
        except (ImportError, RuntimeError):  # an extra, or a version of Django, that is not installed here
            yield ModuleType(found.name)


def source_of(name: str) -> str:
    spec = find_spec(name)
    assert spec
    assert spec.origin
    return Path(spec.origin).read_text()


def patterns_in_calls(tree: ast.AST, names: dict[str, Any]) -> Iterator[tuple[int, str]]:
    """Each pattern that is given to a function of ``re``, or to a ``RegexValidator``, with its line."""
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
def test_the_analysis_tells_ambiguous_patterns(pattern: str, expected: str) -> None:
    assert ambiguity(pattern) == expected


def test_no_pattern_of_the_package_is_ambiguous() -> None:
    found = {re.compile(pattern): place for place, pattern in patterns()}
    assert len(found) > 30
    assert {place: verdict for pattern, place in found.items() if (verdict := ambiguity(pattern))} == {}


NOW = datetime(2026, 11, 22, tzinfo=UTC)
PARSERS: dict[str, Callable[[str], object]] = {
    "duration": read_duration,
    "duration of a form": DurationInput().clean,
    "duration of a document": _duration,
    "instant of a form": InstantField().clean,
    "instant of a document": _moment,
    "instant of the REST API": Instant().to_internal_value,
    "instant of a command line": lambda text: instant("--since", text, NOW),
    "end of a pause": UntilField().clean,
    "schedule": parse_schedule,
    "schedule, as a form has it": lambda text: parse_schedule(text[:255]),
    "interval": lambda text: parse_schedule(f"@every {text}"[:255]),
    "moment": lambda text: parse_schedule(f"@at {text}"[:255]),
    "croniter's schedule": lambda text: from_croniter(text[:255]),
    "time zone": check_zone,
    "calendar": read_dates,
    "holidays": lambda text: read_dates(f"holidays DE-{text}"),
    "alert rule": lambda text: read_rules([{"on": "late", "by": text, "to": "ops"}], ["ops"], of_job=True),
    "name of a job": NAME,
    "name of a queue": QUEUE,
    "name of a calendar": CALENDAR_NAME,
    "name of an import": names.clean,
    "target": get,
    "crontab": lambda text: crontab.read(text, "UTC"),
    "command of a crontab": lambda text: crontab.read(f"* * * * * {text}", "UTC"),
    "document": read_document,
}
PIECES = (
    " ", "\t", "\u3000", "\n", "9", "1d", "1 ", "1.", "0:", "-", "+", ",", "*/", "1,", "1-2,", "H", "H(", "H(0-9)/", "L", "#", "@",
    "a", "a ", "a=", "a=1 ", "A=\"", "A='", "-x ", "cd x;", "cd x ", "sudo ", "(", "[", "{\"a\":", "\\%", "%", "'", ":", "..",
    "SAT-", "12-25,", "shadow:", "command:", "shell:", "é",
)  # fmt: skip
LENGTH = 1_000
ALLOWED = 2_000
"""So many times the time of a loop over the same characters may a parser take: a quadratic one takes more."""


def seconds_of(work: Callable[[], object], tries: int = 3) -> float:
    """Seconds of processor time of this thread, the least of some tries; they don't count other processes."""
    return min(_seconds_once(work) for _ in range(tries))


def _seconds_once(work: Callable[[], object]) -> float:
    started = time.thread_time()
    with suppress(Exception):  # refusing a text is as good an answer as reading it
        work()
    return time.thread_time() - started


@pytest.mark.django_db
@pytest.mark.parametrize("parser", PARSERS.values(), ids=PARSERS)
def test_no_text_takes_a_parser_long(parser: Callable[[str], object]) -> None:
    parser_on_first_use = suppress(Exception)
    with parser_on_first_use:
        parser("1")  # imports, caches
    slow = {}
    for piece in PIECES:
        text = (piece * LENGTH)[:LENGTH]
        for hostile in (text, f"{text}!", f"1{text}x"):
            allowed = ALLOWED * seconds_of(lambda text=hostile: sum(ord(char) for char in text))
            if _seconds_once(lambda text=hostile: parser(text)) > allowed:
                taken = seconds_of(lambda text=hostile: parser(text))
                if taken > allowed:
                    slow[hostile[:20]] = f"{taken / allowed * ALLOWED:.0f} times a loop"
    assert slow == {}
