"""The content of a log record can't forge another record."""

import logging
import os
import pkgutil
import re
import sys

import pytest

import django_dcron
from django_dcron.execution import log_capture
from django_dcron.management.commands import runcron
from django_dcron.utils.log_lines import EscapingFilter, LineFormatter

FORGED = "2026-11-22 03:30:00,000 ERROR   run failed: job=payroll"
RECORD_START = re.compile(r"^20\d\d-", re.MULTILINE)


def formatters() -> list[logging.Formatter]:
    """Return the formatters of the node's console and of an attempt's log."""
    logger = logging.getLogger("django_dcron")
    before = logger.handlers[:], logger.level, logger.propagate
    logger.handlers, logger.propagate = [], False
    try:
        runcron._log_to_console(1)
        (handler,) = logger.handlers
    finally:
        logger.handlers, logger.level, logger.propagate = before
    console = handler.formatter
    captured = log_capture._handler.formatter
    assert console is not None
    assert captured is not None
    return [console, captured]


@pytest.mark.parametrize(("level", "hint"), [(logging.WARNING, True), (logging.INFO, False)])
def test_node_warns_if_the_project_hides_its_messages(
    level: int, hint: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger("django_dcron")
    monkeypatch.setattr(logger, "handlers", [logging.NullHandler()])
    monkeypatch.setattr(logger, "level", level)
    logger.manager._clear_cache()  # type: ignore[attr-defined]
    runcron._log_to_console(1)
    assert ("'django_dcron'" in capsys.readouterr().err) is hint


@pytest.mark.parametrize(
    "line_end", ["\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x85", "\u2028", "\u2029", "\x1b[1A\r"]
)
def test_line_breaks_in_values_cannot_start_a_new_record(line_end: str) -> None:
    try:
        raise ValueError(f"x{line_end}{FORGED}")
    except ValueError as error:
        values = (
            f"error: %s{line_end}{FORGED}",
            (error,),
            (ValueError, error, error.__traceback__),
        )
    for formatter in formatters():
        record = logging.LogRecord(f"shop{line_end}{FORGED}", logging.ERROR, __file__, 1, *values)
        shown = formatter.format(record)
        assert all(not line.startswith("2026-11-22 03:30") for line in shown.splitlines()), shown
        assert len(RECORD_START.findall(shown)) == 1
        assert "\x1b" not in shown


def test_traceback_lines_are_indented_below_the_message() -> None:
    try:
        raise ValueError("x")
    except ValueError as error:
        record = logging.LogRecord(
            "a", logging.ERROR, "f", 1, "failed", (), (ValueError, error, error.__traceback__)
        )
    first, *others = LineFormatter("%(message)s").format(record).split("\n")
    assert first == "failed"
    assert others[0] == "    Traceback (most recent call last):"
    assert others[-1] == "    ValueError: x"


def logged_by_project(formatter: logging.Formatter, text: str) -> str:
    """Return what a handler of the project writes for a record that contains ``text``."""
    logger = logging.getLogger("django_dcron.runs")
    shown: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            shown.append(self.format(record))

    handler = Handler()
    handler.setFormatter(formatter)
    logger.addHandler(handler)
    try:
        raise ValueError(text)
    except ValueError as error:
        logger.exception("attempt failed: %s, %s", f"ValueError: {text}", error)
    finally:
        logger.removeHandler(handler)
    return shown[0]


@pytest.mark.parametrize("text", [os.fsdecode(b"caf\xe9"), "\ud800"])
@pytest.mark.parametrize("kind", [logging.Formatter, LineFormatter])
def test_record_with_lone_surrogates_is_not_dropped(
    kind: type[logging.Formatter], text: str
) -> None:
    """Such text comes from file names with invalid UTF-8 and from exceptions that quote them."""
    shown = logged_by_project(kind("%(message)s"), text)
    assert shown.encode().count(ascii(text)[1:-1].encode()) == 3


def test_values_by_name_cannot_forge_records() -> None:
    record = logging.LogRecord(
        "a", logging.INFO, "f", 1, "failed: %(error)s", ({"error": f"x\n{FORGED}"},), None
    )
    assert EscapingFilter().filter(record)
    assert f"\n{FORGED}" not in record.getMessage()
    assert FORGED in record.getMessage()


@pytest.mark.parametrize("line_end", ["\n", "\r", "\v", "\x85", "\u2028", "\x1b[1A\r"])
def test_values_cannot_forge_records_in_a_project_formatter(line_end: str) -> None:
    """Workers log in the format of Celery or of the project."""
    shown = logged_by_project(
        logging.Formatter("%(asctime)s %(levelname)s %(message)s"), f"x{line_end}{FORGED}"
    )
    assert not [line for line in shown.splitlines() if line.startswith("2026-11-22 03:30")], shown
    assert "\x1b" not in shown


def test_text_without_control_characters_is_logged_unchanged() -> None:
    shown = logged_by_project(logging.Formatter("%(message)s"), "no such file")
    assert shown.startswith("attempt failed: ValueError: no such file, no such file\nTraceback")
    assert shown.endswith("\n    ValueError: no such file")


def test_every_package_logger_has_the_escaping_filter() -> None:
    names = set()
    for found in pkgutil.walk_packages(django_dcron.__path__, "django_dcron."):
        module = sys.modules.get(found.name)
        for value in vars(module).values() if module else ():
            if isinstance(value, logging.Logger):
                names.add(value.name)
                assert any(isinstance(each, EscapingFilter) for each in value.filters), value.name
    assert len(names) > 5
