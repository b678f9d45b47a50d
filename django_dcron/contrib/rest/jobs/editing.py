"""One job: read, replace, change and delete it. Each change requires the current version."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from django_dcron import control
from django_dcron.contrib.rest import concurrency
from django_dcron.contrib.rest.concurrency import (
    ETAG,
    IF_MATCH,
    check_match,
    conflict_is_mismatch,
    etag,
)
from django_dcron.contrib.rest.history import entry_of
from django_dcron.contrib.rest.jobs.representation import WRITTEN, JobSerializer
from django_dcron.contrib.rest.schema import Operation
from django_dcron.contrib.rest.scope import kept_in_sight
from django_dcron.contrib.rest.view import View, number_or_404, row_or_404
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.scope import Scope
from django_dcron.jobs import chains
from django_dcron.jobs.audit_log import note_deletion, note_edit
from django_dcron.jobs.differences import values_of
from django_dcron.models import Job


def the_job(job_id: str, scope: Scope) -> Job:
    return row_or_404(scope.jobs, number_or_404(job_id))


def save(
    job: Job, scope: Scope, *, version: int | None = None, after_before: Collection[str] = ()
) -> None:
    """Save a job within the user's scope.

    ``after_before``: the current predecessors of the job, which it may keep even if they are
    hidden.
    """
    if scope.narrows(Job):
        job.full_clean()
        chains.check(job, alias_for(Job), scope.jobs, after_before)
    with kept_in_sight(job, scope):
        control.save(job, expected_version=version)


def answer(job: Job) -> Response:
    return Response(JobSerializer(job).data, headers={"ETag": etag(job)})


class JobDetail(View):
    operations = {
        "GET": Operation(
            "read_job", "A job", {200: JobSerializer()}, needs=("view_job",), headers=(ETAG,)
        ),
        "PUT": Operation(
            "replace_job",
            "Replace a job's definition; omitted fields get their defaults",
            {200: JobSerializer()},
            needs=("change_job",),
            body=JobSerializer(),
            headers=(ETAG, IF_MATCH),
            refusals=concurrency.REFUSALS,
        ),
        "PATCH": Operation(
            "change_job",
            "Update fields of a job",
            {200: JobSerializer()},
            needs=("change_job",),
            body=JobSerializer(partial=True),
            headers=(ETAG, IF_MATCH),
            refusals=concurrency.REFUSALS,
        ),
        "DELETE": Operation(
            "delete_job",
            "Delete a job and all of its runs",
            {204: None},
            needs=("delete_job",),
            headers=(IF_MATCH,),
            refusals=concurrency.REFUSALS,
        ),
    }

    def get(self, request: Request, job_id: str) -> Response:
        return answer(the_job(job_id, self.scope))

    def put(self, request: Request, job_id: str) -> Response:
        return self._save(request, job_id, partial=False)

    def patch(self, request: Request, job_id: str) -> Response:
        return self._save(request, job_id, partial=True)

    def delete(self, request: Request, job_id: str) -> Response:
        job = the_job(job_id, self.scope)
        check_match(request, job)
        key = job.pk
        with conflict_is_mismatch():
            control.delete(job, expected_version=job.version)
        with entry_of(job):
            note_deletion(request.user, job, key)
        return Response(status=204)

    def _save(self, request: Request, job_id: str, *, partial: bool) -> Response:
        job = the_job(job_id, self.scope)
        check_match(request, job)
        before = values_of(job)
        after = {*job.after}
        sent = JobSerializer(job, data=request.data, partial=partial, context={"scope": self.scope})
        sent.is_valid(raise_exception=True)
        values = sent.validated_data if partial else _defaults() | sent.validated_data
        for name, value in values.items():
            setattr(job, name, value)
        with conflict_is_mismatch():
            save(job, self.scope, version=job.version, after_before=after)
        with entry_of(job):
            note_edit(request.user, job, before)
        return answer(job)


def _defaults() -> dict[str, Any]:
    blank = Job()
    return {name: getattr(blank, name) for name in WRITTEN}
