"""Escape text from users, logs and the database for a terminal."""

from __future__ import annotations

from django_dcron.utils.control_characters import without_control_characters


def printable(text: str) -> str:
    """Escape control characters as in Python source, except line ends and tabs."""
    return without_control_characters(text)
