"""Expect a refusal by its code, its field and its values, whatever its wording."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from django_dcron.exceptions import TranslatableError


@contextmanager
def refusal(
    kind: type[TranslatableError], code: str, *, field: str | None = None, **params: object
) -> Iterator[pytest.ExceptionInfo[Any]]:
    """Check that the block raises ``kind`` with this code, and with at least these values."""
    with pytest.raises(kind) as caught:
        yield caught
    error = caught.value
    found = {name: str(error.params.get(name)) for name in params}
    actual = (error.code, getattr(error, "field", None), found)
    expected = (code, field, {name: str(value) for name, value in params.items()})
    assert actual == expected, f"{actual} != {expected}: {error}"
