"""A sentence of an answer, with its code and values for programs."""

from __future__ import annotations

from typing import Any


class Sentence(str):
    """A translated sentence. ``code`` names its meaning, ``params`` are the values in it.

    The text may change at any time. A code keeps its meaning.
    """

    code: str
    params: dict[str, Any]

    def __new__(cls, code: str, template: str, **params: Any) -> Sentence:
        sentence = super().__new__(cls, template % params if params else template)
        sentence.code, sentence.params = code, params
        return sentence

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_sentence, (str(self), self.code, self.params)


def _restore_sentence(text: str, code: str, params: dict[str, Any]) -> Sentence:
    """Return the sentence of a copy or a pickle. Its values are already in ``text``."""
    sentence = Sentence(code, text)
    sentence.params = params
    return sentence
