"""Characters that are invisible or reorder text are refused where they could disguise a text."""

import sys
import unicodedata
from typing import Any

import pytest
from django.core.exceptions import ValidationError

from django_dcron import control
from django_dcron.models import Calendar, Job
from django_dcron.models.hidden_characters import hidden_in_label, hidden_in_text
from tests.factories import make_job

pytestmark = pytest.mark.django_db

REORDERING = [*map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A))]
JOINERS_AND_MARKS = ["\u200b", "\u200c", "\u200d", "\u200e", "\u200f", "\u061c", "\u00ad"]
LEGITIMATE = [
    "Imports orders.\r\n\tContact: shop team",
    "می\u200cخواهم",  # noqa: RUF001 - Persian, with ZWNJ
    "क्\u200dष",  # Hindi, with ZWJ
    "👩\u200d💻 ❤\ufe0f",  # emoji, with ZWJ and a variation selector
    "שלום\u200f!",
    "import-orders café 每日",
]


def errors_of(job: Job) -> dict[str, list[str]]:
    with pytest.raises(ValidationError) as refused:
        control.save(job)
    return refused.value.message_dict


@pytest.mark.parametrize("field", ["namespace", "name", "description", "tags"])
@pytest.mark.parametrize(
    "character", [*REORDERING, "\x07", "\x85", "\u2028", "\ufeff", "\U000e0041"]
)
def test_hidden_character_is_refused_and_named(field: str, character: str) -> None:
    job = make_job()
    text = f"pay{character}test"
    setattr(job, field, [text] if field == "tags" else text)
    (message,) = errors_of(job)[field]
    assert f"U+{ord(character):04X}" in message
    assert unicodedata.name(character, "") in message


@pytest.mark.parametrize("field", ["namespace", "name", "tags"])
@pytest.mark.parametrize("character", [*JOINERS_AND_MARKS, "\u3164", "\u2060"])
def test_label_has_no_invisible_characters(field: str, character: str) -> None:
    """Otherwise, two labels could look the same."""
    job = make_job()
    setattr(job, field, [f"a{character}b"] if field == "tags" else f"a{character}b")
    (message,) = errors_of(job)[field]
    assert f"U+{ord(character):04X}" in message


@pytest.mark.parametrize("text", LEGITIMATE)
def test_legitimate_texts_are_accepted(text: str) -> None:
    job = make_job(description=text)
    assert Job.objects.get(pk=job.pk).description == text


def test_plain_labels_are_accepted() -> None:
    job = make_job(name="每日 café", tags=["naïve ❤\ufe0f", "übung"])
    assert Job.objects.get(pk=job.pk).tags == ["naïve ❤\ufe0f", "übung"]


@pytest.mark.parametrize(
    ("field", "text"),
    [("name", "a\u202eb"), ("description", "\u2066a"), ("dates", "12-25 # \u202e")],
)
def test_calendars_are_checked_too(field: str, text: str) -> None:
    calendar: Any = Calendar(**{"name": "office", "dates": "12-25", field: text})
    with pytest.raises(ValidationError) as refused:
        control.save_calendar(calendar)
    assert {error.code for error in refused.value.error_dict[field]} == {"hidden_character"}


def test_every_control_and_format_character_is_hidden_in_a_label() -> None:
    characters = [*map(chr, range(sys.maxunicode + 1))]
    hidden = {each for each in characters if unicodedata.category(each) in ("Cc", "Cf")}
    assert {each for each in hidden if hidden_in_label(f"a{each}b") is None} == set()
    bidirectional = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    reordering = {each for each in characters if unicodedata.bidirectional(each) in bidirectional}
    assert {each for each in reordering if hidden_in_text(each) is None} == set()
