"""Texts that can be told in another language later, by whoever shows them: an English template and its values.

What says them in the active language is ``django.utils.translation``, passed in as a ``Language``: nothing here, nor the
domain that uses it, imports Django. ``str`` of a phrase is English whatever language is active.
"""

from __future__ import annotations

from typing import Protocol


class Language(Protocol):
    """Says a text in one language."""

    def gettext(self, message: str, /) -> str: ...

    def pgettext(self, context: str, message: str, /) -> str: ...

    def ngettext(self, singular: str, plural: str, number: int, /) -> str: ...


class _English:
    def gettext(self, message: str, /) -> str:
        return message

    def pgettext(self, context: str, message: str, /) -> str:
        return message

    def ngettext(self, singular: str, plural: str, number: int, /) -> str:
        return singular if number == 1 else plural


ENGLISH: Language = _English()


def gettext_noop(message: str) -> str:
    """The template itself. Tells ``make messages`` that it is one to translate."""
    return message


class Phrase:
    """A template and its values, some of which may be phrases themselves. Without values it is told as it stands."""

    def __init__(self, template: str, /, **values: object):
        self.template = template
        self.values = values

    def said(self, language: Language) -> str:
        text = language.gettext(self.template)
        if not self.values:
            return text
        return text % {
            name: value.said(language) if isinstance(value, Phrase) else value
            for name, value in self.values.items()
        }

    def __str__(self) -> str:
        return self.said(ENGLISH)


def alternatives(words: list[str]) -> Phrase | str:
    """``a``, ``a or b``, ``a, b or c``."""
    *others, last = words
    if not others:
        return last
    return Phrase(gettext_noop("%(others)s or %(last)s"), others=", ".join(others), last=last)
