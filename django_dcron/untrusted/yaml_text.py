"""Reads YAML as data. It runs in the child only."""

from __future__ import annotations

from typing import Any

import yaml

from django_dcron.untrusted.plain import Encoder


class Refused(Exception):
    """It is not YAML; the message says where."""


def read(text: bytes, most: int) -> Any:
    """As JSON. Raises ``Refused``, or whatever texts raise that are too much for it."""
    try:
        document = yaml.safe_load(text.decode())
    except (yaml.YAMLError, ValueError) as error:
        raise Refused(" ".join(str(error).split())) from None
    return Encoder(most).encode(document)
