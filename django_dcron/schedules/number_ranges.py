"""Group numbers into ranges, and format them: "1 to 5", "10", "20"."""

from collections.abc import Iterable, Sequence


def consecutive_ranges(values: Iterable[int]) -> list[list[int]]:
    """Group ascending values into ranges of consecutive values."""
    found: list[list[int]] = []
    for value in values:
        if found and found[-1][-1] == value - 1:
            found[-1].append(value)
        else:
            found.append([value])
    return found


def number_ranges(
    ranges: Iterable[Sequence[int]], one: str, several: str, names: tuple[str, str, str]
) -> list[str]:
    """Format ranges of numbers.

    ``one`` is the template for a single number, ``several`` for three or more consecutive numbers.
    ``names`` are the placeholders for the single number, the first and the last.
    """
    number, first, last = names
    words: list[str] = []
    for values in ranges:
        if len(values) > 2:
            words.append(several % {first: values[0], last: values[-1]})
        else:
            words += [one % {number: value} for value in values]
    return words
