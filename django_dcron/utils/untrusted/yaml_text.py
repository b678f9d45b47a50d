"""Read YAML as data. This module runs in the child only."""

from __future__ import annotations

from typing import Any

import yaml

from django_dcron.utils.untrusted.plain import Encoder, TextRefused


def read_yaml(text: bytes, max_values: int) -> Any:
    """Return the content of a YAML text as JSON.

    Raises ``TextRefused``, or any exception for a text that exceeds the limits.
    """
    try:
        document = yaml.safe_load(text.decode())
    except (yaml.YAMLError, ValueError) as error:
        raise TextRefused(" ".join(str(error).split())) from None
    return Encoder(max_values).encode(document)
