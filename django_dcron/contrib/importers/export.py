"""Import the output of ``dcron export``, from this project or another."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from django.core.exceptions import ImproperlyConfigured

from django_dcron.contrib.importers.found import Found, FoundCalendar, Reading, SourceProblem
from django_dcron.jobs import portable
from django_dcron.jobs.portable import Entry, Problem, Syntax
from django_dcron.jobs.representation import JOB_DEFINITION, definition_of
from django_dcron.models import Calendar

DECLARED_THERE = (
    "the job is declared in code with @cron; manage.py dcron sync creates it from the code"
)


def read(text: str, syntax: Syntax, namespace: str = "") -> Reading:
    """Parse an export.

    ``namespace`` replaces the namespaces of the jobs. Raises ``SourceProblem``.
    """
    try:
        document = portable.read_document(text, syntax)
    except (portable.Unreadable, ImproperlyConfigured) as error:
        raise SourceProblem(str(error)) from error
    refused = [
        Found(label, label, refused=why, calendars=frozenset(document.named_by_refused[label]))
        for label, why in _problem_lines(document.problems)
    ]
    calendars = [_found_calendar(each) for each in document.calendars.sound.values()]
    calendars += [
        FoundCalendar(label.removeprefix("calendar "), refused=why)
        for label, why in _problem_lines(document.calendars.problems)
    ]
    return Reading([*(_found(each, namespace) for each in document.entries), *refused], calendars)


def _found(entry: Entry, namespace: str) -> Found:
    """Return the entry with all fields. Fields that the document omits have their defaults."""
    own, name = entry.key
    job = entry.job()
    if job.declared is not None:
        return Found(name, name, namespace=namespace or own, left=DECLARED_THERE)
    fields = [each for each in JOB_DEFINITION if each.name not in ("namespace", "name", "declared")]
    return Found(
        name,
        name,
        {each.name: each.value_of(job) for each in fields},
        namespace=namespace or own,
    )


def _found_calendar(calendar: Calendar) -> FoundCalendar:
    values = definition_of(calendar)
    return FoundCalendar(values.pop("name"), values)


def _problem_lines(problems: list[Problem]) -> Iterator[tuple[str, str]]:
    """Yield the label of each job or calendar with problems, and the joined problems."""
    for label, those in groupby(problems, lambda problem: problem.job):
        yield label, "; ".join(str(problem).removeprefix(f"{label}: ") for problem in those)
