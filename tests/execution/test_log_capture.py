"""The output and log records of a job's code: stored with the attempt, and passed on as before."""

import io
import logging
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from celery.utils.log import get_task_logger

from django_dcron.execution.log_capture import CELERY_STDOUT, capture_log
from django_dcron.utils.bounded_text import BoundedText
from tests.waiting import TIMEOUT


def captured(work: Callable[[], Any], limit: int = 10_000) -> str:
    log = BoundedText(limit)
    capture_log(lambda run: work())(SimpleNamespace(log=log))  # type: ignore[arg-type]
    return log.getvalue()


def test_log_records_and_prints_are_kept_in_order() -> None:
    def work() -> None:
        print("first")  # noqa: T201
        logging.getLogger("shop").warning("second: %d", 2)
        sys.stdout.writelines(["thi", "rd\n"])

    lines = captured(work).splitlines()
    assert lines[0] == "first"
    assert lines[1].endswith("WARNING shop: second: 2")
    assert lines[2] == "third"


def test_printed_text_still_reaches_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    captured(lambda: print("hello"))  # noqa: T201
    assert capsys.readouterr().out == "hello\n"


def test_log_records_still_reach_other_handlers(caplog: pytest.LogCaptureFixture) -> None:
    captured(lambda: logging.getLogger("shop").warning("hello"))
    assert [record.message for record in caplog.records] == ["hello"]


def test_warnings_reach_standard_error_if_nothing_else_handles_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a web server whose project doesn't configure logging."""
    stream = io.StringIO()
    fallback = logging.StreamHandler(stream)
    fallback.setLevel(logging.WARNING)
    monkeypatch.setattr(logging, "lastResort", fallback)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    own = logging.getLogger("shop.own")

    def work() -> None:
        own.warning("in the run")
        own.info("too low")

    assert "in the run" in captured(work)
    own.warning("after the run")
    assert stream.getvalue().splitlines() == ["in the run", "after the run"]
    own.addHandler(logging.NullHandler())
    try:
        own.warning("handled")
    finally:
        own.handlers.clear()
    assert "handled" not in stream.getvalue()


def test_traceback_is_kept_with_its_record() -> None:
    def work() -> None:
        try:
            raise ValueError("inner")
        except ValueError:
            logging.getLogger("shop").exception("outer")

    assert "ValueError: inner" in captured(work)


def test_output_outside_the_run_is_not_kept() -> None:
    log = captured(lambda: None)
    print("later")  # noqa: T201
    logging.getLogger("shop").warning("later")
    assert log == ""


def test_capture_ends_with_an_exception() -> None:
    log = BoundedText(100)

    def work(run: Any) -> None:
        print("before")  # noqa: T201
        raise LookupError

    with pytest.raises(LookupError):
        capture_log(work)(SimpleNamespace(log=log))  # type: ignore[arg-type]
    print("after")  # noqa: T201
    assert log.getvalue() == "before\n"


def test_log_is_limited_in_size() -> None:
    def work() -> None:
        for i in range(5000):
            print(f"line {i} " + "x" * 1000)  # noqa: T201

    log = captured(work, limit=2000)
    assert len(log) < 2100
    assert log.startswith("line 0 ")
    assert log.endswith("x\n")


def test_limit_of_zero_keeps_no_output() -> None:
    assert "6 characters omitted" in captured(lambda: print("hello"), limit=0)  # noqa: T201


def test_each_thread_has_its_own_log() -> None:
    barrier = threading.Barrier(4)
    logs: dict[int, str] = {}

    def work(number: int) -> None:
        for _ in range(20):
            barrier.wait(TIMEOUT)
            print(f"print {number}")  # noqa: T201
            logging.getLogger("shop").warning("record %d", number)

    def live(number: int) -> None:
        logs[number] = captured(lambda: work(number))

    threads = [threading.Thread(target=live, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    for number, log in logs.items():
        assert {line.split()[-1] for line in log.splitlines()} == {str(number)}
        assert len(log.splitlines()) == 40


@pytest.mark.parametrize("stops_at", ["celery.task", "celery", ""])
def test_records_of_task_loggers_are_kept_once(
    stops_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker doesn't propagate these records. Settings may also stop them at their parent."""
    if stops_at:
        monkeypatch.setattr(logging.getLogger(stops_at), "propagate", False)
    log = captured(lambda: get_task_logger("shop.tasks").warning("hello"))
    assert log.count("WARNING shop.tasks: hello\n") == 1

    monkeypatch.undo()
    log = captured(lambda: get_task_logger("shop.tasks").warning("again"))
    assert log.count("again") == 1


def test_celery_record_of_a_print_is_not_kept() -> None:
    assert captured(lambda: logging.getLogger(CELERY_STDOUT).warning("printed")) == ""


def test_record_that_cannot_be_formatted_does_not_fail_the_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = logging.getLogger()
    handlers = root.handlers[:]
    try:
        root.handlers = []  # pytest's own handlers raise

        def work() -> None:
            logging.getLogger("shop").warning("%d", "no number")
            print("continued")  # noqa: T201

        assert captured(work) == "continued\n"
    finally:
        root.handlers = handlers
    assert "Logging error" in capsys.readouterr().err


def test_writing_bytes_to_stdout_is_refused() -> None:
    def work() -> None:
        with pytest.raises(TypeError):
            sys.stdout.write(b"bytes")  # type: ignore[call-overload]
        print("text")  # noqa: T201

    assert captured(work) == "text\n"


def test_capture_is_reinstalled_after_stdout_and_logging_were_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    captured(lambda: None)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    root = logging.getLogger()
    handlers = root.handlers[:]
    try:
        root.handlers = []

        def work() -> None:
            print("printed")  # noqa: T201
            logging.getLogger("shop").warning("logged")

        assert captured(work).count("\n") == 2
    finally:
        root.handlers = handlers


def test_print_capture_is_installed_once() -> None:
    for _ in range(3):
        captured(lambda: None)
    wrapped = sys.stdout
    captured(lambda: None)
    assert sys.stdout is wrapped
    assert captured(lambda: print("x")) == "x\n"  # noqa: T201


def test_stdout_keeps_its_behavior() -> None:
    def work() -> None:
        assert sys.stdout.writable()
        assert print("x", end="", flush=True) is None  # type: ignore[func-returns-value]  # noqa: T201

    assert captured(work) == "x"
