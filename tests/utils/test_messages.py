"""Translatable texts: lists of words, singular and plural, and values in a template."""

from __future__ import annotations

import pytest

from django_dcron.utils.messages import TranslatableText, all_of, any_of, ngettext, with_full_stop


class Marked:
    """A language that marks each template, and separates words with a semicolon."""

    def gettext(self, message: str, /) -> str:
        return f"<{message}>"

    def pgettext(self, context: str, message: str, /) -> str:
        return "; "

    def ngettext(self, singular: str, plural: str, number: int, /) -> str:
        return f"<{plural}>"


@pytest.mark.parametrize(
    ("words", "any_english", "all_english"),
    [
        (["a"], "a", "a"),
        (["a", "b"], "a or b", "a and b"),
        (["a", "b", "c"], "a, b or c", "a, b and c"),
    ],
)
def test_lists_are_joined_with_commas_and_a_final_conjunction(
    words: list[str], any_english: str, all_english: str
) -> None:
    assert (str(any_of(words)), str(all_of(words))) == (any_english, all_english)


def test_joined_words_and_separator_are_translated() -> None:
    assert any_of(["a", TranslatableText("b"), "c"]).translate(Marked()) == "<a; <b> or c>"


def test_ngettext_selects_singular_or_plural_by_count() -> None:
    texts = [str(ngettext("%(n)d run", "%(n)d runs", number, n=number)) for number in (1, 2)]
    assert texts == ["1 run", "2 runs"]


@pytest.mark.parametrize(
    ("text", "sentence"), [("a", "a."), ("a.", "a."), ("a?", "a?"), ("a!", "a!")]
)
def test_sentence_ends_with_one_stop(text: str, sentence: str) -> None:
    assert with_full_stop(text) == sentence
