"""Batches have all items, in order."""

import pytest

from django_dcron.utils.batches import in_batches


@pytest.mark.parametrize(
    ("number", "sizes"), [(0, []), (1, [1]), (3, [3]), (4, [3, 1]), (7, [3, 3, 1])]
)
def test_batches_have_all_items_in_order(number: int, sizes: list[int]) -> None:
    batches = list(in_batches(range(number), 3))
    assert [len(batch) for batch in batches] == sizes
    assert [item for batch in batches for item in batch] == list(range(number))
