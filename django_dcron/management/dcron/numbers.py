"""Integer options; argparse reports invalid values and exits with 2."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable


def parse_whole_number(low: int, high: int) -> Callable[[str], int]:
    def checked(text: str) -> int:
        number = int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else -1
        if not low <= number <= high:
            raise ArgumentTypeError(f"{text!r} isn't an integer from {low} to {high}")
        return number

    return checked
