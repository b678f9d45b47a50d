"""Duplicate a job."""

from __future__ import annotations

from copy import deepcopy
from itertools import chain, count

from django_dcron import control
from django_dcron.models import Job


def duplicate_job(job: Job) -> Job:
    """Save a copy of ``job`` and return it. Raises ``ValidationError``.

    The copy is paused, because otherwise both jobs would do the same work.
    """
    field_names = [
        field.name
        for field in Job._meta.concrete_fields
        if field.editable and not field.primary_key
    ]
    values = {name: deepcopy(getattr(job, name)) for name in field_names}
    values["name"] = _unused_name(job)
    values["enabled"], values["paused_until"] = False, None
    values["pause_reason"] = f"copy of {job}"
    return control.save(Job(**values))


def _unused_name(job: Job) -> str:
    max_length = Job._meta.get_field("name").max_length or 120
    taken = Job.objects.filter(namespace=job.namespace)
    suffixes = chain([" copy"], (f" copy {number}" for number in count(2)))
    names = (job.name[: max_length - len(suffix)].rstrip() + suffix for suffix in suffixes)
    return next(name for name in names if not taken.filter(name=name).exists())
