"""Create or change the job with a name.

Invariants:

- The read and the write are one transaction. The write names the version that was read
  (``saving``), so a concurrent change isn't lost. After a conflict, the job is read again.
- A call whose fields the job already has writes nothing: no version and no audit entry.
- Fields that aren't given keep their values. In particular, a paused job stays paused.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Mapping
from typing import Any, Unpack

from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.db import IntegrityError, transaction

from django_dcron.db.contention import despite_contention
from django_dcron.db.routing import alias_for
from django_dcron.db.updates import same_value
from django_dcron.exceptions import Conflict
from django_dcron.jobs import saving
from django_dcron.jobs.batch import SAVED_FIELDS
from django_dcron.jobs.placement import is_retimed
from django_dcron.jobs.python_values import convert_python_values
from django_dcron.jobs.representation import JOB_FIELDS
from django_dcron.models import Calendar, Job, Limit
from django_dcron.policies.job_labels import DEFAULT_NAMESPACE
from django_dcron.targets.declared_fields import JobValues, require_known_field

ALLOWED = tuple(JobValues.__annotations__)
MAX_TRIES = 20
"""Maximum number of tries to save a job that other transactions keep changing."""
LONGEST_WAIT = 0.05
"""Seconds that a call waits at most before it tries again."""


def update_or_create(
    name: str, *, namespace: str = DEFAULT_NAMESPACE, **fields: Unpack[JobValues]
) -> tuple[Job, bool]:
    """Change ``fields`` of the job, or create it. Returns the job and whether it is new.

    The fields are those of ``@cron``, with the same types of values, and ``schedule``, ``target``,
    ``args`` and ``kwargs``. Fields that aren't given keep their values, and a new job has their
    defaults. If the job already has these values, nothing is written. A paused job stays paused
    unless ``enabled=True`` is given.

    Concurrent calls are safe: one of them creates the job, and the others change it.

    Raises:

    - ``TypeError`` for an unknown field.
    - ``ValidationError`` by field, like ``save``.
    - ``Conflict`` if other processes keep changing the job.
    """
    for field in fields:
        try:
            require_known_field(field, ALLOWED)
        except TypeError as error:
            raise TypeError(f"update_or_create: {error}") from None
    using = alias_for(Job)
    values, is_invalid = _stored_values(fields)
    integrity_errors = 0
    for number in range(MAX_TRIES):
        try:
            return despite_contention(
                lambda: _write(name, namespace, values, using, is_invalid=is_invalid), using
            )
        except (Conflict, IntegrityError, ValidationError) as error:
            integrity_errors += isinstance(error, IntegrityError)
            if not _is_concurrent(error) or integrity_errors > 1 or number == MAX_TRIES - 1:
                raise
        time.sleep(random.uniform(0, LONGEST_WAIT))  # noqa: S311 (spreads concurrent calls)
    raise AssertionError("unreachable")


def _stored_values(fields: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the values of a job's attributes, and whether some can't be converted.

    Those stay as they are, for ``save`` to report.
    """
    job = Job()
    for name, value in fields.items():
        is_row = isinstance(value, Calendar | Limit)
        setattr(job, JOB_FIELDS[name].attname, value.pk if is_row else value)
    is_invalid = not convert_python_values(job).keys().isdisjoint(fields)
    values = {JOB_FIELDS[name].attname: JOB_FIELDS[name].value_of(job) for name in fields}
    return values, is_invalid


def _write(
    name: str, namespace: str, values: Mapping[str, Any], using: str, *, is_invalid: bool
) -> tuple[Job, bool]:
    with transaction.atomic(using=using):
        job = Job.objects.using(using).filter(namespace=namespace, name=name).first()
        if job is None:
            return saving.save(Job(namespace=namespace, name=name, **values)), True
        if (job.namespace, job.name) != (namespace, name):
            # MariaDB ignores case and trailing spaces.
            text = f"The database treats {name!r} as the name of the job {job}. Use another name."
            raise ValidationError({"name": ValidationError(text, code="similar_name")})
        before = copy.copy(job)
        for attribute, value in values.items():
            setattr(job, attribute, value)
        _complete_pause(job, before, values)
        if is_invalid or _differs(job, before):
            saving.save(job)
        return job, False


def _complete_pause(job: Job, before: Job, values: Mapping[str, Any]) -> None:
    """Set the fields of a pause that follow from ``enabled``, as the API and the admin do."""
    if values.get("enabled") is True:
        job.pause_reason, job.paused_until = "", None
    elif values.get("enabled") is False and before.is_finished and is_retimed(before, job):
        job.pause_reason = ""  # a pause, so that the job doesn't start


def _differs(job: Job, before: Job) -> bool:
    """Return whether a value is invalid or differs from the stored one."""
    for field in SAVED_FIELDS:
        try:
            value = field.to_python(getattr(job, field.attname))
        except ValidationError:
            return True
        if not same_value(field, value, getattr(before, field.attname)):
            return True
    return False


def _is_concurrent(error: Exception) -> bool:
    """Return whether another transaction has created, changed or deleted the job meanwhile."""
    if not isinstance(error, ValidationError):
        return True
    found = error.update_error_dict({}).get(NON_FIELD_ERRORS, [])
    return any(each.code in saving.TAKEN for each in found)
