"""Counts with their nouns as text."""

import pytest

from django_dcron.utils.counts import number_of


@pytest.mark.parametrize(("count", "message"), [(0, "0 runs"), (1, "1 run"), (2, "2 runs")])
def test_default_plural_appends_s(count: int, message: str) -> None:
    assert number_of(count, "run") == message


@pytest.mark.parametrize(
    ("count", "message"), [(0, "0 tries are"), (1, "1 try is"), (7, "7 tries are")]
)
def test_explicit_plural_is_used(count: int, message: str) -> None:
    assert number_of(count, "try is", "tries are") == message
