"""Trigger a job once per idempotency key."""

from __future__ import annotations

from typing import Any, NamedTuple

from django.db import transaction
from django.utils.translation import gettext as _
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.request import Request

from django_dcron import control
from django_dcron.contrib.rest import fields
from django_dcron.contrib.rest.base_serializers import (
    AnySerializer,
    StrictSerializer,
)
from django_dcron.db.contention import despite_contention
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.scope import EVERYTHING
from django_dcron.jobs.locking import lock_jobs
from django_dcron.jobs.manual_runs import LONGEST_KEY
from django_dcron.models import Job, Run
from django_dcron.targets.shadow import is_shadow

IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    {"type": "string", "minLength": 1, "maxLength": LONGEST_KEY, "pattern": "^[!-~]+$"},
    OpenApiParameter.HEADER,
    description="A key chosen by the caller. Repeating a request with the same key and "
    "arguments creates no second run, and returns the first one with status "
    "200.",
)


OTHER_ARGUMENTS = (
    "Arguments that differ from the job's require the permission run_job_with_arguments."
)

SHADOW_HELP = "Whether the job is a shadow: the run is recorded, but its target isn't executed."


class TriggerSerializer(StrictSerializer):
    args = fields.JsonListField(
        required=False, help_text=f"Replaces the job's arguments. {OTHER_ARGUMENTS}"
    )
    kwargs = fields.JsonObjectField(
        required=False, help_text=f"Replaces the job's keyword arguments. {OTHER_ARGUMENTS}"
    )


class ReceiptSerializer(AnySerializer):
    """The new run. Its state is at `url`, for users who may see runs."""

    id = serializers.UUIDField(read_only=True)
    job = serializers.IntegerField(source="job_id", read_only=True)
    scheduled_at = fields.UtcTimeField(read_only=True)
    url = serializers.CharField(read_only=True)
    shadow = serializers.BooleanField(read_only=True, help_text=SHADOW_HELP)


def idempotency_key(request: Request) -> str | None:
    key = request.headers.get("Idempotency-Key")
    if key is None:
        return None
    if not 0 < len(key) <= LONGEST_KEY or not all("!" <= character <= "~" for character in key):
        message = _(
            "%(key)r is not a valid key (allowed: 1 to %(most)d visible ASCII "
            "characters without spaces)."
        )
        raise ValidationError({"Idempotency-Key": [message % {"key": key, "most": LONGEST_KEY}]})
    return key


def receipt(run: Run, job: Job, url: str) -> dict[str, Any]:
    """Return the values of ``ReceiptSerializer``."""
    return {
        "id": run.pk,
        "job_id": job.pk,
        "scheduled_at": run.scheduled_at,
        "url": url,
        "shadow": is_shadow(job.target),
    }


class TriggeredRun(NamedTuple):
    run: Run
    is_new: bool
    """False if an earlier request created the run."""


def trigger_once(
    job: Job, args: list[Any] | None, kwargs: dict[str, Any] | None, key: str
) -> TriggeredRun:
    """Return the run with this key. Create it if there is none.

    A lock on the job serializes concurrent requests, so that only one of them reports a new run.
    On PostgreSQL, the lock doesn't block other inserts of runs.
    """
    using = alias_for(Run)

    def find_or_trigger() -> TriggeredRun:
        with transaction.atomic(using=using):
            if not lock_jobs([job.pk], using):
                raise NotFound
            exists = EVERYTHING.runs.filter(job=job.pk, idempotency_key=key).exists()
            run = control.trigger(job, args=args, kwargs=kwargs, idempotency_key=key)
            return TriggeredRun(run, is_new=not exists)

    return despite_contention(find_or_trigger, using)
