"""Form fields of JSON values that are entered as text: lists of names, and jobs to run after.

Invariants:

- JSON is accepted, too. Text that begins like JSON is always read as JSON.
- A field shows a value as text if that text is read as the same value, and otherwise as JSON.
"""

from __future__ import annotations

import json
import re
from typing import Any

from django.core.exceptions import ValidationError
from django.forms.fields import InvalidJSONInput
from django.utils.translation import gettext as _

from django_dcron.admin.json_input import JsonFormField
from django_dcron.policies.chains import ChainCondition

ERRORS_REPORTED = 5
"""A refused save reports at most this many invalid lines."""
_JSON_BEGINS = ("{", "[", '"')
_UNCLEAR = re.compile(rf"(\S+):({'|'.join(ChainCondition)})")
"""A line that may be the name of a job, or a job and its outcome without a space."""


class TextOrJsonFormField(JsonFormField):
    def read_text(self, text: str) -> Any:
        """Return the value of text that isn't JSON. Raises ``ValidationError``."""
        raise NotImplementedError

    def write_text(self, value: Any) -> str:
        """Return a value of the right type as text."""
        raise NotImplementedError

    def to_python(self, value: Any) -> Any:
        text = str(value or "").strip()
        is_json = text.startswith(_JSON_BEGINS)
        return super().to_python(text if is_json else json.dumps(self.read_text(text)))

    def bound_data(self, data: Any, initial: Any) -> Any:
        # The input shows the text as the user typed it.
        return InvalidJSONInput(data or "") if not self.disabled else initial

    def prepare_value(self, value: Any) -> Any:
        if isinstance(value, InvalidJSONInput):
            return value
        try:
            text = self.write_text(value)
            if self.to_python(text) == value:
                return text
        except (AttributeError, TypeError, ValidationError):
            pass  # stored without validation
        return super().prepare_value(value)


class NameListFormField(TextOrJsonFormField):
    """Names in lines or separated by commas or semicolons, such as ``billing, nightly``."""

    def read_text(self, text: str) -> list[str]:
        return [name for part in re.split(r"[,;\r\n]", text) if (name := part.strip())]

    def write_text(self, value: Any) -> str:
        return ", ".join(value)


class PredecessorsFormField(TextOrJsonFormField):
    """Lines with a job and an outcome, such as ``import-orders: failed``.

    A line without an outcome means ``succeeded``. The name of a job may contain a colon, but no
    space. So a line such as ``etl:failed`` is refused: it may name the job ``etl`` or
    ``etl:failed``.
    """

    def read_text(self, text: str) -> dict[str, str]:
        outcomes: dict[str, str] = {}
        errors = []
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip():
                continue
            job, outcome = _split_line(line.strip())
            if unclear := _UNCLEAR.fullmatch(line.strip()):
                message = _(
                    "Line %(line)d: %(value)s isn't clear. Write “%(outcome)s” for the outcome, or "
                    "“%(job)s” for the job of this name."
                )
                params = {
                    "value": unclear[0],
                    "outcome": f"{unclear[1]}: {unclear[2]}",
                    "job": f"{job}: {outcome}",
                }
            elif outcome not in list(ChainCondition):
                message = _(
                    "Line %(line)d: %(value)s isn't an outcome. Use one of: %(allowed)s. Example: "
                    "import-orders: succeeded."
                )
                params = {"value": repr(outcome), "allowed": ", ".join(ChainCondition)}
            elif job in outcomes:
                message = _("Line %(line)d: %(job)s is in an earlier line. Name it once.")
                params = {"job": job}
            else:
                outcomes[job] = outcome
                continue
            errors.append(ValidationError(message, code="line", params={"line": number, **params}))
        if errors:
            raise ValidationError(errors[:ERRORS_REPORTED])
        return outcomes

    def write_text(self, value: Any) -> str:
        return "\n".join(f"{job}: {outcome}" for job, outcome in value.items())


def _split_line(line: str) -> tuple[str, str]:
    """Return the job and the outcome of a line."""
    job, _colon, outcome = line.rpartition(":")
    if job and outcome[:1].isspace():
        return job.strip(), outcome.strip()
    return line, ChainCondition.SUCCEEDED.value
