"""The text of an exception of third-party code."""


def exception_text(error: BaseException) -> str:
    """Return the exception's text; ``__str__`` may raise anything."""
    try:
        return str(error)
    except Exception:
        return "(unreadable error message)"
