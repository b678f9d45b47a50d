"""How many of what."""

import pytest

from django_dcron.domain.counts_in_words import number_of


@pytest.mark.parametrize(("count", "said"), [(0, "0 runs"), (1, "1 run"), (2, "2 runs")])
def test_an_s_makes_several(count: int, said: str) -> None:
    assert number_of(count, "run") == said


@pytest.mark.parametrize(("count", "said"), [(0, "0 tries are"), (1, "1 try is"), (7, "7 tries are")])
def test_or_what_is_said(count: int, said: str) -> None:
    assert number_of(count, "try is", "tries are") == said
