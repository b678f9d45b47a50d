"""The reader of untrusted pickles and YAML: what it reads and what it refuses.

No text affects the reading of the next text.
"""

import os
import pickle
import signal
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from apscheduler.triggers.cron import CronTrigger

from django_dcron.utils.untrusted import Reader, Record, Unreadable, UnsupportedValue, child
from django_dcron.utils.untrusted.reader import Kind, Limits

MEGABYTE = 1024 * 1024
IMPATIENT = Limits(cpu_seconds=1, memory=512 * MEGABYTE, values=100_000, answer=MEGABYTE)
VALUES = [
    None,
    True,
    -(2**70),
    1.5,
    "ä\ud800",
    [1, ["a"]],
    (1, ("a",)),
    {"a": {1: None}, (1, 2): 3},
    {1, "a"},
    date(2027, 1, 1),
    timedelta(days=-1, microseconds=7),
    datetime(2027, 1, 1, 9, tzinfo=UTC),
    datetime(2027, 10, 31, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
    datetime(2027, 1, 1, 9, tzinfo=timezone(timedelta(hours=5, minutes=30))),
]


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    with Reader() as one:
        yield one


def test_pickled_plain_values_are_read_unchanged(reader: Reader) -> None:
    read = reader.read("pickle", pickle.dumps(VALUES))
    assert read == VALUES
    assert read[-2].fold == 1
    assert isinstance(read[-2].tzinfo, ZoneInfo)
    assert repr(reader.read("pickle", pickle.dumps(float("nan")))) == "nan"
    assert reader.read("pickle", pickle.dumps(b"x")) == UnsupportedValue("b'x'")


def test_pickled_apscheduler_trigger_is_read_as_record(reader: Reader) -> None:
    record = reader.read(
        "pickle", pickle.dumps(CronTrigger(hour=3, timezone=ZoneInfo("Europe/Berlin")))
    )
    assert isinstance(record, Record)
    assert (record.kind, record.timezone.key) == ("CronTrigger", "Europe/Berlin")
    assert {field.name for field in record.fields} >= {"hour", "day"}
    with pytest.raises(AttributeError, match=r"CronTrigger .*'nothing'"):
        _ = record.nothing


def test_yaml_anchors_and_merge_keys_are_resolved(reader: Reader) -> None:
    text = b"a: &all {x: 1}\nb: {<<: *all, y: 2027-01-01}\n"
    assert reader.read("yaml", text) == {"a": {"x": 1}, "b": {"x": 1, "y": date(2027, 1, 1)}}


def test_yaml_key_beside_the_same_merged_key_is_no_duplicate(reader: Reader) -> None:
    text = (
        b"a: &a {x: 1}\nb: &b {<<: *a, x: 2}\nc: [{<<: *b, x: 3}, {<<: *a, <<: *b, 1: 4, '1': 5}]\n"
    )
    merged = [{"x": 3}, {"x": 2, 1: 4, "1": 5}]
    assert reader.read("yaml", text)["c"] == merged


def nested(levels: int, width: int) -> Any:
    """Return tuples that contain the level below several times.

    The pickle is small, but the value has more elements than the universe has atoms.
    """
    value: Any = ()
    for _ in range(levels):
        value = (value,) * width
    return value


def key_that_takes_forever_to_hash() -> bytes:
    """Return a pickled dict whose key is a tuple of tuples, each with the one below twice.

    A tuple's hash hashes its items every time, without a cache.
    """
    levels = b"".join(b"\x94h" + bytes([level]) + b"\x86" for level in range(60))
    return b"\x80\x04})" + levels + b"K\x01s."


def aliases(value: str, form: str) -> bytes:
    lines = [
        f"a{level}: &a{level} " + form.format(",".join([f"*a{level - 1}"] * 9))
        for level in range(1, 12)
    ]
    return "\n".join([f"a0: &a0 {value}", *lines]).encode()


BOMBS: dict[str, tuple[Kind, bytes, str]] = {
    "values": ("pickle", pickle.dumps(nested(40, 2)), "many values"),
    "depth": ("pickle", pickle.dumps(nested(300, 1)), "too deeply"),
    "hashing": (
        "pickle",
        key_that_takes_forever_to_hash(),
        "more than 1 s of CPU time|many values",
    ),
    "memo index": ("pickle", b"\x80\x02Nr\x00\x00\x00\x04.", "512 MB of memory"),
    "a long number": ("pickle", pickle.dumps(10**5000), "4300 digits"),
    "a cycle": ("yaml", b"&a [*a]", "too deeply"),
    "aliases": ("yaml", aliases("[x,x]", "[{}]"), "many values"),
    "merge keys": ("yaml", aliases("{x: 1}", "{{<<: [{}]}}"), "more than 1 s of CPU time"),
    "brackets": ("yaml", b"[" * 500, "too deeply"),
    "yaml function call": ("yaml", b"!!python/object/apply:os.system ['id']", "python/object"),
    "pickled function": ("pickle", b"cos\nsystem\n.", "os.system"),
    "not a pickle": ("pickle", b"nonsense", "^UnpicklingError: "),
    "not YAML": ("yaml", b"a: [", "expected"),
    "not text": ("yaml", b"\xff", "utf-8"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_harmful_text_is_refused_and_reader_stays_usable(reader: Reader, name: str) -> None:
    kind, text, message = BOMBS[name]
    with pytest.raises(Unreadable, match=message):
        reader.read(kind, text, IMPATIENT if "CPU time" in message else None)
    assert reader.read("pickle", pickle.dumps("next")) == "next"


def test_limits_grow_with_the_size_of_the_text(reader: Reader) -> None:
    long = [{"number": number, "text": "x" * 20} for number in range(20_000)]
    assert reader.read("pickle", pickle.dumps(long)) == long
    with pytest.raises(Unreadable, match="many values"):
        reader.read("pickle", pickle.dumps(nested(40, 2)))


def test_pickle_cannot_change_how_the_next_pickle_is_read(reader: Reader) -> None:
    """The opcode BUILD also sets attributes of functions.

    Here, it would change the zone of ``pytz.UTC``.
    """
    utc = b"cpytz\n_UTC\n"
    evil = utc + b"(N}S'__defaults__'\n(S'Europe/Berlin'\ntstb."
    assert reader.read("pickle", utc + b"(tR.") == ZoneInfo("UTC")
    reader.read("pickle", evil)
    assert reader.read("pickle", utc + b"(tR.") == ZoneInfo("UTC")


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGSTOP])
def test_killed_or_stopped_child_process_is_replaced(
    monkeypatch: pytest.MonkeyPatch, stop: signal.Signals
) -> None:
    with Reader() as reader:
        assert reader.read("pickle", pickle.dumps(1)) == 1
        process = reader._process
        assert process is not None
        os.killpg(process.pid, stop)
        monkeypatch.setattr(Limits, "wall_seconds", 0.1 if stop is signal.SIGSTOP else 60)
        with pytest.raises(Unreadable, match="took too long"):
            reader.read("pickle", pickle.dumps(2))
        assert process.returncode is not None
        monkeypatch.undo()
        assert reader.read("pickle", pickle.dumps(3)) == 3


def test_closing_reader_kills_its_child_process() -> None:
    with Reader() as reader:
        reader.read("pickle", pickle.dumps(1))
        process = reader._process
    assert process is not None
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    "answer",
    [
        b'{"a": 1, "b": 2}',
        b'{"unknown": 1}',
        b'{"zone": "../../etc"}',
        b"{",
        b'{"datetime": ["x", 0, null]}',
    ],
)
def test_malformed_child_answer_raises_unreadable(
    monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    monkeypatch.setattr(Reader, "_ask", lambda *args: (child.READ, answer))
    with pytest.raises(Unreadable, match=r"^\w+Error: "):
        Reader().read("pickle", b"")
