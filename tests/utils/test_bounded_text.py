"""Texts within their limit keep the start and the end, and report how much is omitted."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_dcron.utils.bounded_text import (
    OMISSION_MARK,
    BoundedText,
    first_distinct,
    replace_unstorable,
    truncate_middle,
    with_ellipsis,
)

plain = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=40)


@given(st.lists(plain, max_size=12), st.integers(0, 60))
def test_long_text_keeps_head_and_tail_and_counts_omitted_characters(
    pieces: list[str], limit: int
) -> None:
    buffer = BoundedText(limit)
    for piece in pieces:
        buffer.write(piece)
    whole, kept = "".join(pieces), buffer.getvalue()
    if len(whole) <= limit:
        assert kept == whole
        return
    head, tail = whole[: limit // 2], whole[len(whole) - (limit - limit // 2) :]
    omitted = len(whole) - limit
    assert kept == f"{head}\n[... {omitted:,} characters omitted ...]\n{tail}"


@given(st.text(max_size=200), st.integers(0, 60))
def test_truncated_text_never_exceeds_limit_plus_marker(text: str, limit: int) -> None:
    kept = truncate_middle(text, limit)
    assert len(OMISSION_MARK.sub("", kept, count=1)) <= max(limit, 0) or len(text) <= limit
    assert len(kept) <= limit + len("\n[... 1,000,000 characters omitted ...]\n")
    kept.encode()  # no lone surrogate
    assert "\x00" not in kept


def test_only_unstorable_characters_are_replaced() -> None:
    assert replace_unstorable("a\x00b\ud800c\udfff") == "a\ufffdb\ufffdc\ufffd"
    assert replace_unstorable("Grüße 🎉\r\n\t\x1b[0m") == "Grüße 🎉\r\n\t\x1b[0m"


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_limits_of_zero_to_two_characters_are_respected(limit: int) -> None:
    buffer = BoundedText(limit)
    for _ in range(5):
        buffer.write("ab")
        buffer.write("")
    assert len(OMISSION_MARK.sub("", buffer.getvalue())) == limit
    assert buffer.written == 10


def test_memory_stays_bounded_when_writing_megabytes() -> None:
    buffer = BoundedText(100)
    for _ in range(20_000):
        buffer.write("x" * 10)
    buffer.write("y" * 1_000_000)
    assert sum(map(len, [*buffer._head, *buffer._tail])) <= 200
    assert OMISSION_MARK.search(buffer.getvalue())


def test_buffer_can_be_read_while_another_thread_writes() -> None:
    """The heartbeat thread reads the log of a run while the run writes to it."""
    buffer = BoundedText(64)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            buffer.write("0123456789")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(2000):
            assert len(OMISSION_MARK.sub("", buffer.getvalue())) <= 64
    finally:
        stop.set()
        writer.join()


def test_shortened_text_fits_the_limit_including_its_ellipsis() -> None:
    assert with_ellipsis("abcde", 5) == "abcde"
    assert with_ellipsis("abcdef", 5) == "abcd…"


def test_list_has_each_distinct_text_once_up_to_its_limit() -> None:
    assert first_distinct(["a", "b", "a"], 2) == ["a", "b"]
    assert first_distinct(["a", "b", "a", "c", "d"], 2) == ["a", "b", "…"]
