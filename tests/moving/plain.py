"""What other schedulers run: a plain function."""

from typing import Any


def report(*args: Any, **kwargs: Any) -> None: ...
