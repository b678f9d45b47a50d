"""How many of what, in English: for logs, commands and rows. What people are told in their language is told by ``ngettext``."""


def number_of(count: int, one: str, several: str = "") -> str:
    """``1 run``, ``3 runs``. ``several``: unless an s makes it."""
    return f"{count} {one if count == 1 else several or f'{one}s'}"
