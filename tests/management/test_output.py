"""Test the output of the commands: tables and lines, with and without rich, and JSON."""

import builtins
import json
import sys
from datetime import UTC, datetime, timedelta, timezone
from io import StringIO
from typing import Any

import pytest
from django.core.management.base import BaseCommand

from django_dcron.management.dcron import output
from django_dcron.management.dcron.output import BAD, Column, Output, StyledText

NOW = datetime(2026, 12, 1, 9, 0, tzinfo=UTC)
COLUMNS = [Column("Job", wraps=True), Column("Took", right=True), Column("Note", wraps=True)]
ROWS = [["nightly", "3.4 s", StyledText("failed", BAD)], ["日本", "12 ms", None], ["x", 7, "a\nb"]]
ALIGNED = """\
Job       Took  Note
nightly  3.4 s  failed
日本     12 ms
x            7  a b
"""


def make_output(stream: StringIO | None = None, **options: Any) -> tuple[Output, StringIO]:
    stream = stream or StringIO()
    return Output(
        BaseCommand(stdout=stream, force_color=options.get("force_color", False)), options
    ), stream


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_table_without_terminal_is_aligned_with_spaces() -> None:
    out, stream = make_output()
    out.table(COLUMNS, ROWS)
    assert out.console is None
    assert stream.getvalue() == ALIGNED


def test_rich_fits_table_to_terminal_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out, stream = make_output(Terminal())
    out.table(COLUMNS, [["job-of-a-very-long-name-indeed", "1 s", "a note that needs a few lines"]])
    lines = stream.getvalue().splitlines()
    assert len(lines) > 2
    assert "\x1b[1m" in lines[0]
    monkeypatch.setenv("COLUMNS", "24")
    narrow, stream = make_output(Terminal())
    narrow.table(COLUMNS, ROWS)
    assert "nightly  3.4 s" in stream.getvalue(), "too narrow, so aligned as in a pipe"
    monkeypatch.setenv("COLUMNS", "40")
    forced, stream = make_output(force_color=True)
    forced.table(COLUMNS, ROWS)
    assert "\x1b[1;31mfailed" in stream.getvalue()


def test_rich_is_not_used_with_no_color() -> None:
    out, stream = make_output(Terminal(), no_color=True)
    out.table(COLUMNS, ROWS)
    assert stream.getvalue() == ALIGNED


def test_terminal_without_rich_gets_aligned_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without_rich(name: str, *args: Any) -> Any:
        if name.split(".")[0] == "rich":
            raise ImportError(name)
        return original(name, *args)

    for name in [name for name in sys.modules if name.split(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without_rich)
    out, stream = make_output(Terminal(), force_color=True)
    out.table(COLUMNS, ROWS)
    assert out.console is None
    shown = stream.getvalue()
    assert "\x1b[31;1mfailed\x1b[0m" in shown
    assert "nightly  3.4 s  " in shown


@pytest.mark.parametrize("terminal", [StringIO, Terminal])
def test_control_characters_are_escaped(terminal: type[StringIO]) -> None:
    out, stream = make_output(terminal())
    evil = "a\x1b[2Jb\x07\u202ec\x9b[red]d[/red]"
    out.line(evil)
    out.table([Column(evil, wraps=True)], [[evil]])
    out.fields([(evil, evil)])
    shown = stream.getvalue()
    assert "\\x1b[2J" in shown
    assert "\\u202e" in shown
    assert "[red]d[/red]" in shown
    for bad in ("\x1b[2J", "\x07", "\u202e", "\x9b"):
        assert bad not in shown


def test_line_breaks_and_tabs_are_kept() -> None:
    out, stream = make_output()
    out.line("one\r\ntwo\tthree\n")
    assert stream.getvalue() == "one\ntwo\tthree\n"


def test_fields_are_aligned_and_empty_ones_omitted() -> None:
    out, stream = make_output()
    out.fields(
        [
            ("state", "enabled"),
            ("reason", ""),
            ("next run", "soon\nor later"),
            ("none", None),
            ("0", 0),
        ]
    )
    assert (
        stream.getvalue() == "state     enabled\nnext run  soon\n          or later\n0         0\n"
    )


def test_json_is_ascii_with_times_in_utc() -> None:
    out, stream = make_output(json=True)
    berlin = NOW.astimezone(timezone(timedelta(hours=1)))
    out.json({"at": berlin, "length": timedelta(minutes=1, milliseconds=5), "words": "für\x1b"})
    assert json.loads(stream.getvalue()) == {
        "at": "2026-12-01T09:00:00Z",
        "length": 60.005,
        "words": "für\x1b",
    }
    assert stream.getvalue().isascii()
    assert out.console is None


def test_times_durations_and_states_are_formatted() -> None:
    assert output.iso(NOW + timedelta(microseconds=5)) == "2026-12-01T09:00:00.000005Z"
    assert (output.iso(None), output.seconds(None)) == (None, None)
    assert (output.time_text(NOW), output.time_text(None)) == ("2026-12-01 09:00:00 UTC", "-")
    assert output.relative_time_text(NOW + timedelta(minutes=2), NOW) == "in 2m 00s"
    assert output.relative_time_text(NOW - timedelta(days=3), NOW) == "3 days ago"
    assert output.relative_time_text(None, NOW) == "-"
    assert output.styled_state("timed_out") == StyledText("timed out", BAD)
    assert output.styled_state("").text == "-"
