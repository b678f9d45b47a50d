"""Our own format: what ``dcron export`` has written, perhaps elsewhere."""

from __future__ import annotations

from itertools import groupby

from django.core.exceptions import ImproperlyConfigured

from django_dcron.moving.found import Found, Reading, SourceProblem
from django_dcron.sync import portable
from django_dcron.sync.portable import FIELDS, Entry, Problem, Syntax

DECLARED_THERE = "code declares it: where that code is, manage.py dcron sync makes it"


def read(text: str, syntax: Syntax, namespace: str = "") -> Reading:
    """``namespace``: of all jobs, instead of their own. Raises ``SourceProblem``."""
    try:
        document = portable.read(text, syntax)
    except (portable.Unreadable, ImproperlyConfigured) as error:
        raise SourceProblem(str(error)) from error
    refused = [
        _refused(label, list(problems)) for label, problems in groupby(document.problems, lambda p: p.job)
    ]
    return Reading([*(_found(each, namespace) for each in document.entries), *refused])


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


def _refused(label: str, problems: list[Problem]) -> Found:
    said = (str(problem).removeprefix(f"{label}: ") for problem in problems)
    return Found(label, label, refused="; ".join(said))
