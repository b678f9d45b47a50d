"""The names of alert channels. Policies use this module, so it doesn't import Django."""

from __future__ import annotations

import re
from typing import TypeGuard

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,50}")


def is_channel_name(value: object) -> TypeGuard[str]:
    """Return whether the value could be a channel's name. Other values may contain secrets."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None
