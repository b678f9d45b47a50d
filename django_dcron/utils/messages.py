"""Translatable texts: an English template and its values.

The code that shows a text passes ``django.utils.translation`` as the ``Language``. Therefore,
neither this module nor the schedules and policies that use it import Django. ``str`` of a text is
always English.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Language(Protocol):
    """Translates texts to one language."""

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
    """Return the template unchanged. The name marks it for extraction by ``make messages``."""
    return message


TOO_LONG = gettext_noop("The value has %(count)d characters. At most %(most)d are allowed.")
"""The message about a text that exceeds its limit, with the values ``count`` and ``most``."""


class TranslatableText:
    """A template and its values, which may be translatable texts themselves.

    Without values, ``%`` isn't interpreted.
    """

    def __init__(self, template: str, /, **values: object):
        self.template = template
        self.values = values

    def translate(self, language: Language) -> str:
        text = self._template(language)
        if not self.values:
            return text
        return text % {name: _in_language(value, language) for name, value in self.values.items()}

    def _template(self, language: Language) -> str:
        return language.gettext(self.template)

    def __str__(self) -> str:
        return self.translate(ENGLISH)


def _in_language(value: object, language: Language) -> Any:
    return value.translate(language) if isinstance(value, TranslatableText) else value


class CountedText(TranslatableText):
    """A text in singular or plural, depending on ``number`` and the language."""

    def __init__(self, singular: str, plural: str, number: int, /, **values: object):
        super().__init__(plural, **values)
        self.singular = singular
        self.number = number

    def _template(self, language: Language) -> str:
        return language.ngettext(self.singular, self.template, self.number)


class LocalizedNumber(TranslatableText):
    """A number with the language's thousands separators."""

    def __init__(self, value: int, /):
        super().__init__(str(value))
        self.value = value

    def _template(self, language: Language) -> str:
        return f"{self.value:,}".replace(",", language.pgettext("thousands separator", ","))


def ngettext(singular: str, plural: str, number: int, /, **values: object) -> CountedText:
    """Return the text for ``number`` things.

    The name marks the texts for extraction by ``make messages``.
    """
    return CountedText(singular, plural, number, **values)


class _WordList(TranslatableText):
    """Words joined by commas, and the last one by ``template``."""

    def __init__(self, template: str, words: Sequence[object]):
        super().__init__(template)
        self.words = words

    def translate(self, language: Language) -> str:
        words = [_in_language(word, language) for word in self.words]
        separator = language.pgettext("in a list", ", ")
        return join_words(words, separator, self._template(language))


def any_of(words: Sequence[object]) -> TranslatableText:
    """Return ``a``, ``a or b`` or ``a, b or c``."""
    return _WordList(gettext_noop("%(others)s or %(last)s"), words)


def all_of(words: Sequence[object]) -> TranslatableText:
    """Return ``a``, ``a and b`` or ``a, b and c``."""
    return _WordList(gettext_noop("%(others)s and %(last)s"), words)


def with_full_stop(text: object) -> str:
    """Return an English text with a full stop, unless it ends as a sentence already."""
    sentence = str(text)
    return sentence if sentence.endswith((".", "?", "!")) else f"{sentence}."


def join_words(words: Sequence[str], separator: str, template: str) -> str:
    """Join words that are already translated.

    ``template`` joins the ``others`` and the ``last`` word.
    """
    *others, last = words
    return template % {"others": separator.join(others), "last": last} if others else last
