"""Write files at paths that others can predict, such as temporary files next to a pid file."""

from __future__ import annotations

import os
from pathlib import Path


def write_nofollow(path: Path, text: str) -> None:
    """Write the whole file. Raises ``OSError`` if the path is a symbolic link."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with open(os.open(path, flags, 0o644), "w", encoding="utf-8") as file:
        file.write(text)
