"""Our own format: what ``dcron export`` has written, perhaps elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from django.core.exceptions import ImproperlyConfigured

from django_dcron.models import Calendar
from django_dcron.moving.found import Found, FoundCalendar, Reading, SourceProblem
from django_dcron.sync import portable, portable_calendars
from django_dcron.sync.portable import FIELDS, Entry, Syntax
from django_dcron.sync.portable_values import Problem

DECLARED_THERE = "code declares it: where that code is, manage.py dcron sync makes it"


def read(text: str, syntax: Syntax, namespace: str = "") -> Reading:
    """``namespace``: of all jobs, instead of their own. Raises ``SourceProblem``."""
    try:
        document = portable.read(text, syntax)
    except (portable.Unreadable, ImproperlyConfigured) as error:
        raise SourceProblem(str(error)) from error
    refused = [
        Found(label, label, refused=why, calendars=frozenset(document.named_by_refused[label]))
        for label, why in _told(document.problems)
    ]
    calendars = [_found_calendar(each) for each in document.calendars.sound.values()]
    calendars += [
        FoundCalendar(label.removeprefix("calendar "), refused=why)
        for label, why in _told(document.calendars.problems)
    ]
    return Reading([*(_found(each, namespace) for each in document.entries), *refused], calendars)


def _found(entry: Entry, namespace: str) -> Found:
    """With every field: one that the document does not mention is at its default."""
    own, name = entry.key
    job = entry.job()
    if job.declared is not None:
        return Found(name, name, namespace=namespace or own, left=DECLARED_THERE)
    fields = [each for each in FIELDS if each.name not in ("namespace", "name", "declared")]
    return Found(
        name, name, {each.name: getattr(job, each.attname) for each in fields}, namespace=namespace or own
    )


def _found_calendar(calendar: Calendar) -> FoundCalendar:
    values = portable_calendars.definition_of(calendar)
    return FoundCalendar(values.pop("name"), values)


def _told(problems: list[Problem]) -> Iterator[tuple[str, str]]:
    """What they are about, and all that is wrong with it."""
    for label, those in groupby(problems, lambda problem: problem.job):
        yield label, "; ".join(str(problem).removeprefix(f"{label}: ") for problem in those)
