"""Counts with their nouns as text."""

import pytest

from django_dcron.utils.counts import number_of


@pytest.mark.parametrize(("count", "message"), [(0, "0 runs"), (1, "1 run"), (2, "2 runs")])
def test_an_s_makes_several(count: int, message: str) -> None:
    assert number_of(count, "run") == message


@pytest.mark.parametrize(
    ("count", "message"), [(0, "0 tries are"), (1, "1 try is"), (7, "7 tries are")]
)
def test_a_given_plural(count: int, message: str) -> None:
    assert number_of(count, "try is", "tries are") == message
