"""Refuse characters that hide or disguise a text: invisible ones, and those that reorder it.

``pay\\u202Etset`` looks like ``paytest``. Two names may look the same if one of them has an
invisible character.

Invariants:

- A label (a name or tag) has no control and format characters, and no letter that looks like a
  space.
- A free text may have what languages and emoji need: line ends, joiners (ZWJ, ZWNJ), zero-width
  spaces and soft hyphens. Marks of right-to-left text (LRM, RLM, ALM) are allowed, too.
  Embeddings, overrides and isolates aren't, because they reorder text beyond their own word.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import RegexValidator
from django.utils.deconstruct import deconstructible
from django.utils.translation import gettext_lazy as _

_IN_TEXT = re.compile(
    "["
    "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"  # control characters except tab and line ends
    "\u2028\u2029"  # line and paragraph separators
    "\u202a-\u202e\u2066-\u2069"  # embeddings, overrides and isolates
    "\u206a-\u206f\ufeff\ufff9-\ufffb"  # deprecated formatting, byte order mark, annotations
    "\U000e0000-\U000e007f"  # tags: an invisible copy of ASCII
    "]"
)
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Letters and marks that are invisible."""
_OTHER_CATEGORIES = frozenset({"Cc", "Cf", "Zl", "Zp"})

CODE = "hidden_character"
MESSAGE = _("The text contains %(character)s, which is invisible or reorders text. Remove it.")


def hidden_in_text(text: str) -> str | None:
    """Return the first character that a free text mustn't have."""
    found = _IN_TEXT.search(text)
    return found and found[0]


def hidden_in_label(text: str) -> str | None:
    """Return the first character that a name or tag mustn't have."""
    if text.isascii() and text.isprintable():
        return None
    return next(
        (
            character
            for character in text
            if character in _BLANK or unicodedata.category(character) in _OTHER_CATEGORIES
        ),
        None,
    )


def name_of(character: str) -> str:
    """Return the code point and its name, such as ``U+202E (RIGHT-TO-LEFT OVERRIDE)``."""
    name = unicodedata.name(character, "") or "control character"
    return f"U+{ord(character):04X} ({name})"


def message_for(character: str) -> str:
    return MESSAGE % {"character": name_of(character)}


def validate_text(text: str) -> None:
    """Raise ``ValidationError`` if the free text has a hidden character."""
    if character := hidden_in_text(text):
        raise ValidationError(MESSAGE, code=CODE, params={"character": name_of(character)})


@deconstructible
class NameValidator(RegexValidator):
    """Validates a name by a regular expression, and names a hidden character."""

    def __call__(self, value: Any) -> None:
        if character := hidden_in_label(str(value)):
            raise ValidationError(MESSAGE, code=CODE, params={"character": name_of(character)})
        super().__call__(value)
