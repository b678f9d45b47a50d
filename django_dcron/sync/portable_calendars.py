"""The calendars of a document (``portable``): those that its jobs name, read as strictly as these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from django.core.exceptions import ValidationError
from django.db import models

from django_dcron.models import Calendar, Job
from django_dcron.models.database import alias_for
from django_dcron.sync.portable_values import Problem, read_values, shown, written

FIELDS: tuple[models.Field[Any, Any], ...] = tuple(
    each for each in Calendar._meta.concrete_fields if each.name != "version"
)


@dataclass(slots=True)
class Reading:
    sound: dict[str, Calendar] = field(default_factory=dict)
    """Those without a problem, by name, as new rows, not saved."""
    problems: list[Problem] = field(default_factory=list)
    mentioned: set[str] = field(default_factory=set)
    """The names of these and those."""

    def why_not(self, name: str | None) -> str:
        """Why no job can name it; empty: it can."""
        if name is None or name in self.sound:
            return ""
        if name in self.mentioned:
            return "the calendar of that name is refused"
        if Calendar.objects.using(alias_for(Calendar)).filter(pk=name).exists():
            return ""
        return "there is no such calendar, neither here nor in the document"


def named_by(jobs: Iterable[Job]) -> list[Calendar]:
    """In the order of their names."""
    one_of_each = {job.calendar_id: job for job in jobs if job.calendar_id is not None}
    return [job.calendar for _name, job in sorted(one_of_each.items()) if job.calendar]


def definition_of(calendar: Calendar) -> dict[str, Any]:
    return {each.name: written(getattr(calendar, each.attname)) for each in FIELDS}


def read(items: list[Any]) -> Reading:
    reading = Reading()
    found = [_read_item(item, number, reading) for number, item in enumerate(items, 1)]
    named = Counter(calendar.name for calendar in found if calendar)
    for name, times in named.items():
        if times > 1:
            reading.problems.append(Problem(f"calendar {name}", "", None, f"it is there {times} times"))
    reading.sound = {each.name: each for each in found if each and named[each.name] == 1}
    return reading


def _read_item(item: Any, number: int, reading: Reading) -> Calendar | None:
    label = f"calendar {number}"
    if not isinstance(item, dict):
        reading.problems.append(Problem(label, "", item, f"{shown(item)} is no object with fields"))
        return None
    if isinstance(item.get("name"), str):
        reading.mentioned.add(item["name"])
        label = f"calendar {item['name']}"
    values, problems = read_values(item, FIELDS, ("name", "dates"), label)
    calendar = Calendar(**values) if not problems else None
    if calendar is not None:
        try:
            calendar.clean_fields()
        except ValidationError as error:
            for name, messages in error.message_dict.items():
                problems += [
                    Problem(label, name, written(getattr(calendar, name)), text) for text in messages
                ]
    reading.problems += problems
    return None if problems else calendar
