"""Describe the exceptions that limit a job's retries.

Invariants:

- Nothing is imported, because users enter the names. Only the loaded exception classes are known.
- A policy compares the names of classes. So ``IOError``, another name of ``OSError``, never
  matches.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from django.utils import translation
from django.utils.translation import gettext as _

from django_dcron.policies.retry import RetryPolicy, exception_name
from django_dcron.utils.messages import TranslatableText
from django_dcron.utils.suggestions import nearest

NAMES_CHECKED = 5
"""The number of listed names that are looked up, to limit the time."""


def exception_texts(policy: RetryPolicy) -> Iterator[str]:
    """Say which exceptions are retried, and which of the listed names this process doesn't know."""
    if policy.max_attempts == 1:
        return
    if policy.retry_on:
        yield _("Retries only for: %(names)s.") % {"names": ", ".join(policy.retry_on)}
    yield from _unknown_names([*policy.retry_on, *policy.never_retry_on][:NAMES_CHECKED])


def _unknown_names(names: Iterable[str]) -> Iterator[str]:
    known = loaded_exceptions()
    for name in dict.fromkeys(names):
        if name in known:
            continue
        if real := _name_of_class(name):
            text = _("%(name)s never matches, because the class is named %(real)s. Use that name.")
            yield text % {"name": repr(name), "real": repr(real)}
            continue
        text = _("This process knows no exception named %(name)s, but the workers may know it.")
        near = nearest(name, {each for each in known if ("." in each) == ("." in name)})
        if near:
            text = _(
                "This process knows no exception named %(name)s, but the workers may know it. Did "
                "you mean %(near)s?"
            )
        if isinstance(near, TranslatableText):
            near = near.translate(translation)
        yield text % {"name": repr(name), "near": near}


def _name_of_class(name: str) -> str:
    """Return the name of the exception class that ``name`` refers to in code, or an empty text."""
    module, _dot, attribute = name.rpartition(".")
    found = getattr(sys.modules.get(module or "builtins"), "__dict__", {}).get(attribute)
    if isinstance(found, type) and issubclass(found, BaseException):
        return exception_name(found)
    return ""


def loaded_exceptions() -> set[str]:
    """Return the bare and dotted names of all exception classes that this process has loaded."""
    classes = {BaseException}
    added = classes
    while added:
        added = {child for each in added for child in type.__subclasses__(each)} - classes
        classes |= added
    return {name for each in classes for name in (each.__name__, exception_name(each))}
