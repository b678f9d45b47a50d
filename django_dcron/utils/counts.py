"""English counts for logs, commands and rows. Texts that are translated use ``ngettext``."""


def number_of(count: int, one: str, several: str = "") -> str:
    """Return ``1 run`` or ``3 runs``. ``several``: the plural, if it isn't ``one`` with an s."""
    return f"{count} {one if count == 1 else several or f'{one}s'}"
