"""Test JSON logs: each record is one line, whatever its arguments and extras are.

A line contains the run and the node that it belongs to.
"""

import io
import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta, tzinfo
from decimal import Decimal
from enum import IntEnum
from typing import Any
from uuid import UUID

import pytest
from django.utils.translation import gettext_lazy
from hypothesis import given
from hypothesis import strategies as st

from django_dcron.monitoring.log_context import RunContext, as_node
from django_dcron.monitoring.log_format import ITEMS_LIMIT, TEXT_LIMIT, JsonFormatter

AT = 1_772_366_400.0125
"""2026-03-01 12:00:00.0125 UTC."""


def line(message: Any = "done", *args: Any, exc_info: Any = None, **extra: Any) -> str:
    record = logging.LogRecord("shop.jobs", logging.WARNING, "f.py", 7, message, args, exc_info)
    record.__dict__.update(extra, created=AT)
    return JsonFormatter().format(record)


def shown(*args: Any, **extra: Any) -> Any:
    text = line(*args, **extra)
    assert "\n" not in text
    return json.loads(text, parse_constant=pytest.fail)


# --- one line per record --------------------------------------------------------------------------


def test_record_is_formatted_as_json_line() -> None:
    assert line("%s of %d", "7", 9, note="x", attempt=1, event="done") == (
        '{"time": "2026-03-01T12:00:00.012Z", "level": "WARNING", "logger": "shop.jobs", '
        '"message": "7 of 9", "event": "done", "attempt": 1, "note": "x"}'
    )


class Level(IntEnum):
    HIGH = 3


class FailingRepr:
    def __repr__(self) -> str:
        raise RecursionError


class FailingStr(str):
    __slots__ = ()

    def __str__(self) -> str:
        raise ZeroDivisionError

    __len__ = __getitem__ = __str__  # type: ignore[assignment]


RUN = UUID("0195f0d4-9a00-7abc-8def-0123456789ab")
SELF: list[Any] = []
SELF.append(SELF)


@pytest.mark.parametrize(
    ("value", "as_json"),
    [
        (None, None),
        (True, True),
        (-7, -7),
        (0.5, 0.5),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (2**63, hex(2**63)),
        (Level.HIGH, 3),
        ("a\nb\u2028", "a\nb\u2028"),
        ("\x00\ud800", "\N{REPLACEMENT CHARACTER}" * 2),
        (gettext_lazy("state"), None),
        (RUN, str(RUN)),
        (datetime(2026, 3, 1, 12, tzinfo=UTC), "2026-03-01T12:00:00+00:00"),
        (date(2026, 3, 1), "2026-03-01"),
        (timedelta(seconds=90), 90.0),
        (Decimal("1.5"), "Decimal('1.5')"),
        ([1, (2, {3})], [1, [2, [3]]]),
        ({"a": {1: None}, (2,): "b"}, {"a": {"1": None}, "(2,)": "b"}),
        ([[[[1]]]], [[["[1]"]]]),
        (SELF, [[["[[...]]"]]]),
        (list(range(1000)), list(range(ITEMS_LIMIT))),
        (b"\xff", "b'\\xff'"),
    ],
)
def test_extra_value_is_converted_to_json(value: Any, as_json: Any) -> None:
    if as_json is None and value is not None:
        as_json = repr(value)
    assert shown(extra=value)["extra"] == as_json


def test_values_whose_str_or_repr_fails_are_replaced() -> None:
    assert shown(extra=FailingStr("loud"))["extra"] == "loud"
    output = "<FailingRepr: repr() raises RecursionError>"
    assert shown(extra=[FailingRepr()])["extra"] == [output]
    assert shown(FailingRepr())["message"] == f"{output} % ()"
    assert shown("%s", FailingRepr())["message"] == "'%s' % <tuple: repr() raises RecursionError>"


@pytest.mark.parametrize(
    ("message", "args", "text"),
    [
        ("%d runs", ("no number",), "'%d runs' % ('no number',)"),
        ("%s and %s", (1,), "'%s and %s' % (1,)"),
        (7, (), "7"),
        ("100 %", (), "100 %"),
        ("%(a)s", ({"a": 1},), "1"),
    ],
)
def test_message_with_any_arguments_is_formatted(
    message: Any, args: tuple[Any, ...], text: str
) -> None:
    assert shown(message, *args)["message"] == text


def test_large_values_are_truncated_with_marker() -> None:
    long = "x" * (10 * TEXT_LIMIT)
    output = shown(long, text=long, items=dict.fromkeys(range(ITEMS_LIMIT), long))
    for key in ("message", "text", "items"):
        assert "characters omitted" in output[key]
        assert len(output[key]) < TEXT_LIMIT + 100
    assert len(line(**{f"extra_{n}": long for n in range(1000)})) < 2 * ITEMS_LIMIT * TEXT_LIMIT
    assert shown(**{f"extra_{n}": n for n in range(100)})["omitted"] == 100 - (ITEMS_LIMIT - 4)


def test_extra_with_reserved_name_gets_underscore() -> None:
    output = shown("done", time="noon", level=9, logger=None, exception="none", time_="?")
    assert (output["time"], output["level"], output["logger"]) == (
        "2026-03-01T12:00:00.012Z",
        "WARNING",
        "shop.jobs",
    )
    assert {output["time_"], output["time__"]} == {"noon", "?"}
    assert (output["level_"], output["logger_"], output["exception_"]) == (9, None, "none")


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


def test_exception_is_formatted_as_traceback() -> None:
    for exception in (ValueError("too\nmuch"), UnprintableError(), RecursionError()):
        try:
            raise exception
        except Exception:
            output = shown("failed", exc_info=sys.exc_info())
        assert output["exception"].startswith("Traceback (most recent call last):\n")
        assert type(exception).__name__ in output["exception"]
    assert shown("well", exc_info=(None, None, None)).keys() == shown("well").keys()
    assert shown("well", exc_info="odd").keys() >= {"exception"}
    assert shown("from elsewhere", exc_text="Traceback")["exception"] == "Traceback"


class FailingTimeZone(tzinfo):
    def utcoffset(self, at: datetime | None) -> timedelta:
        raise ZeroDivisionError


class FailingTimedelta(timedelta):
    def total_seconds(self) -> float:
        raise ZeroDivisionError


class FailingClass:
    @property
    def __class__(self) -> Any:
        raise ZeroDivisionError

    def __repr__(self) -> str:
        return "masked"


def test_values_whose_conversion_fails_are_replaced() -> None:
    output = shown(extra=[datetime(2026, 3, 1, tzinfo=FailingTimeZone()), FailingClass()])["extra"]
    assert (output[0][:30], output[1]) == ("datetime.datetime(2026, 3, 1, ", "masked")
    assert shown(extra=FailingTimedelta(seconds=90))["extra"] == 90.0


@pytest.mark.parametrize(
    ("name", "value", "key", "text"),
    [
        ("created", float("nan"), "time", "nan"),
        ("created", 1e20, "time", 1e20),
        ("created", None, "time", None),
        ("levelname", b"INFO", "level", "b'INFO'"),
        ("name", ("shop",), "logger", ["shop"]),
        ("name", "\ud800" * 2, "logger", "\N{REPLACEMENT CHARACTER}" * 2),
        ("stack_info", b"Stack", "stack", "b'Stack'"),
    ],
)
def test_record_with_unusual_attributes_is_formatted(
    name: str, value: Any, key: str, text: Any
) -> None:
    """A record from a socket may come from a program in another language."""
    record = logging.makeLogRecord({"msg": "done", name: value})
    assert json.loads(JsonFormatter().format(record), parse_constant=pytest.fail)[key] == text


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text()
        | st.binary()
        | st.datetimes(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(st.text() | st.integers(), inner)
            | st.tuples(inner, inner)
        ),
        max_leaves=20,
    ),
    st.text(),
)
def test_any_value_is_logged_as_json_line(value: Any, name: str) -> None:
    output = shown(name or "x", **{name: value} if name else {})
    assert output["level"] == "WARNING"


# --- run and node ---------------------------------------------------------------------------------

Logged = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def logger() -> logging.Logger:
    return logging.getLogger("tests.shop")


@pytest.fixture
def logged(logger: logging.Logger) -> Iterator[Logged]:
    """Attach a handler as the documentation does."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(RunContext())
    loggers = [logger, logging.getLogger("django_dcron")]
    for one in loggers:
        one.addHandler(handler)
        one.setLevel(logging.INFO)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    for one in loggers:
        one.removeHandler(handler)
        one.setLevel(logging.NOTSET)


def test_node_name_is_added_to_every_line(logger: logging.Logger, logged: Logged) -> None:
    logger.info("before")
    with as_node("a"):
        logger.info("from a library")
        logger.info("of another", extra={"node": "b"})
    logger.info("after")
    assert [output.get("node") for output in logged()] == [None, "a", "b", None]


def test_trace_id_is_derived_from_run_id(logger: logging.Logger, logged: Logged) -> None:
    for run in (str(RUN), "of the bulls", 5, None):
        logger.info("x", extra={"run": run})
    logger.info("x", extra={"run": str(RUN), "trace_id": "mine"})
    assert [output.get("trace_id") for output in logged()] == [RUN.hex, None, None, None, "mine"]


def test_logging_can_be_configured_before_django() -> None:
    """Django itself sets up logging before it loads the apps."""
    code = (
        "import logging\n"
        "from django_dcron.monitoring import log_context, log_format\n"
        "record = logging.makeLogRecord({'msg': 'hello'})\n"
        "assert log_context.RunContext().filter(record)\n"
        "print(log_format.JsonFormatter().format(record))\n"
        "import sys; assert 'django' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True
    )
    assert json.loads(done.stdout)["message"] == "hello", done.stderr
