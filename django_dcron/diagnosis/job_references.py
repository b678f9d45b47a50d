"""Check that a changed job refers to no row that the person who changes it may not see."""

from __future__ import annotations

from django.core.exceptions import ValidationError

from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.scope import Scope
from django_dcron.jobs import chains
from django_dcron.jobs.representation import JOB_FIELDS
from django_dcron.models import Calendar, Job, Limit


def require_visible_references(job: Job, before: Job, scope: Scope) -> None:
    """Raise ``ValidationError`` if the calendar, the limit or a predecessor of ``job`` is hidden.

    Those of ``before``, the job before the change, are allowed. The errors are those for rows that
    don't exist. An error about a cycle names visible jobs only.
    """
    for name, model in (("calendar", Calendar), ("limit", Limit)):
        field = JOB_FIELDS[name]
        key = field.value_of(job)
        if key in (None, field.value_of(before)) or not scope.narrows(model):
            continue
        if not scope.rows(model).filter(pk=key).exists():
            text = field.model_field.error_messages["invalid"]
            error = ValidationError(text, code="invalid", params={"value": key})
            raise ValidationError({name: error})
    if scope.narrows(Job):
        job.full_clean()
        chains.check_links(job, alias_for(Job), scope.jobs, before.after)
