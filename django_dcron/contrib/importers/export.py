"""Read a document that ``dcron export`` wrote, in this project or another one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from django.core.exceptions import ImproperlyConfigured

from django_dcron.contrib.importers.source_contents import (
    SourceCalendar,
    SourceContents,
    SourceEntry,
    SourceProblem,
)
from django_dcron.jobs import portable
from django_dcron.jobs.portable import DocumentEntry, DocumentProblem, DocumentSyntax
from django_dcron.jobs.representation import JOB_FIELDS, PORTABLE_JOB_FIELDS, portable_document
from django_dcron.jobs.sync import edited_fields
from django_dcron.models import Calendar

DECLARED_THERE = (
    "the job is declared in code with @cron; manage.py dcron sync creates it from the code"
)


def read(text: str, syntax: DocumentSyntax, namespace: str = "") -> SourceContents:
    """Parse an export.

    ``namespace`` replaces the namespaces of the jobs, unless it is empty. Raises ``SourceProblem``.
    """
    try:
        document = portable.read_document(text, syntax)
    except (portable.UnreadableDocument, ImproperlyConfigured) as error:
        raise SourceProblem(str(error)) from error
    refused = [
        SourceEntry(
            label, label, refused=why, calendars=frozenset(document.named_by_refused[label])
        )
        for label, why in _problem_lines(document.problems)
    ]
    calendars = [_calendar_of(item) for item in document.calendars.valid.values()]
    calendars += [
        SourceCalendar(label.removeprefix("calendar "), refused=why)
        for label, why in _problem_lines(document.calendars.problems)
    ]
    return SourceContents(
        [*(_entry_of(item, namespace) for item in document.entries), *refused], calendars
    )


def _entry_of(entry: DocumentEntry, namespace: str) -> SourceEntry:
    """Return the entry. Fields that the document omits get their defaults.

    Of a job that code declares, only the fields that a person changed are imported.
    """
    exported_namespace, name = entry.key
    namespace = namespace or exported_namespace
    job = entry.job()
    names = {field.name for field in PORTABLE_JOB_FIELDS} - {"namespace", "name", "declared"}
    has_only_edits = job.declared is not None
    if has_only_edits:
        names = edited_fields(job) & entry.values.keys()
        if not names:
            return SourceEntry(name, name, namespace=namespace, omitted=DECLARED_THERE)
    values = {name: JOB_FIELDS[name].value_of(job) for name in JOB_FIELDS if name in names}
    return SourceEntry(name, name, values, namespace=namespace, has_only_edits=has_only_edits)


def _calendar_of(calendar: Calendar) -> SourceCalendar:
    values = portable_document(calendar)
    return SourceCalendar(values.pop("name"), values)


def _problem_lines(problems: list[DocumentProblem]) -> Iterator[tuple[str, str]]:
    """Yield the label of each job or calendar with problems, and the joined problems."""
    for label, group in groupby(problems, lambda problem: problem.job):
        yield label, "; ".join(str(problem).removeprefix(f"{label}: ") for problem in group)
