"""Check that the functions of ``control`` get rows, not names, keys or querysets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from django.db.models import Model, QuerySet

from django_dcron.models import Calendar, Job, Limit
from django_dcron.policies.job_labels import split_label

R = TypeVar("R", bound=Model)


def require_row(row: object, model: type[Model]) -> None:
    """Raise ``TypeError``, which names the remedy, unless ``row`` is a row of ``model``."""
    if not isinstance(row, model):
        raise TypeError(f"{row!r:.100} isn't a {model.__name__}. {_remedy(row, model)}")


def require_rows(rows: Iterable[R], model: type[R]) -> list[R]:
    """Return the rows as a list. Raises ``TypeError`` like ``require_row``."""
    if isinstance(rows, str | Model):
        raise TypeError(f"{rows!r:.100} isn't a list. Pass rows of {model.__name__} as a list.")
    listed = list(rows)
    for row in listed:
        require_row(row, model)
    return listed


def _remedy(value: object, model: type[Model]) -> str:
    if isinstance(value, QuerySet):
        return "Pass one row, or several to the function whose name ends with _many."
    query = f"pk={value!r:.60}"
    if model is Job and isinstance(value, str):
        namespace, name = split_label(value)
        query = f"namespace={namespace!r:.60}, name={name!r:.60}"
    elif model in (Calendar, Limit) and isinstance(value, str):
        query = f"name={value!r:.60}"
    elif not isinstance(value, str | int):
        query = "..."
    return f"Pass a row, such as {model.__name__}.objects.get({query})."
