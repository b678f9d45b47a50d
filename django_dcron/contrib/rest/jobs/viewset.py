"""The endpoints of jobs.

Each change of a definition requires its current version. As an exception, the revert of an edit
requires that the fields still have the values of the edit. It accepts the version, too.
"""

from __future__ import annotations

from collections.abc import Collection
from copy import copy
from functools import partial
from typing import Any

from django.utils.translation import gettext as _
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from django_dcron import control
from django_dcron.contrib.rest import concurrency
from django_dcron.contrib.rest.base_serializers import EmptySerializer, StrictSerializer
from django_dcron.contrib.rest.concurrency import (
    ETAG,
    IF_MATCH,
    OPTIONAL_IF_MATCH,
    check_match,
    check_match_if_sent,
    conflict_as_precondition_failed,
    etag,
)
from django_dcron.contrib.rest.jobs.backfilling import BackfillSerializer, RangeSerializer
from django_dcron.contrib.rest.jobs.bulk_views import BulkJobViewSet
from django_dcron.contrib.rest.jobs.listing import ORDERS, JobQuery, filter_jobs
from django_dcron.contrib.rest.jobs.preview import (
    DefinitionSerializer,
    LookaheadSerializer,
    PreviewQuery,
    job_of,
)
from django_dcron.contrib.rest.jobs.serializers import (
    JobPageSerializer,
    JobSerializer,
    ListedJobSerializer,
    PauseSerializer,
    RestoreSerializer,
    RevertSerializer,
)
from django_dcron.contrib.rest.jobs.statistics import (
    JobStatsSerializer,
    statistics_document,
)
from django_dcron.contrib.rest.jobs.triggering import (
    IDEMPOTENCY_KEY,
    ReceiptSerializer,
    TriggeredRun,
    TriggerSerializer,
    idempotency_key,
    receipt,
    trigger_once,
)
from django_dcron.contrib.rest.pagination import page_of, page_response
from django_dcron.contrib.rest.permissions import require_other_arguments
from django_dcron.contrib.rest.schema import LOCATION, operation
from django_dcron.contrib.rest.scope import require_visible_after
from django_dcron.contrib.rest.viewsets import (
    number_or_404,
    row_or_404,
    row_url,
)
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.audit_log import visible_entries
from django_dcron.diagnosis.job_references import require_visible_references
from django_dcron.diagnosis.lookahead import look_ahead
from django_dcron.jobs import chains
from django_dcron.jobs.action_texts import signed_reason
from django_dcron.jobs.bulk_skips import is_paused_already
from django_dcron.jobs.restoring import deletions
from django_dcron.jobs.reverting import edit_of
from django_dcron.models import Job, Run


class DeletionQuery(StrictSerializer):
    erase = serializers.BooleanField(
        default=False, help_text="True also deletes all runs of the job now."
    )


class JobViewSet(BulkJobViewSet):
    lookup_url_kwarg = "job_id"

    @operation(
        "list_jobs",
        "List jobs, with the status of each",
        {200: JobPageSerializer()},
        permissions=("view_job",),
        query=JobQuery,
    )
    def list(self, request: Request) -> Response:
        query = self.validate(JobQuery, request.query_params)
        page = page_of(filter_jobs(self.scope, query), ORDERS[query["ordering"]], query)
        context = {"now": database_now(alias_for(Job))}
        results = ListedJobSerializer(page.rows, many=True, context=context).data
        return page_response(request, page, results)

    @operation(
        "create_job",
        "Create a job",
        {201: JobSerializer()},
        permissions=("add_job",),
        body=JobSerializer(),
        headers=(ETAG, LOCATION),
    )
    def create(self, request: Request) -> Response:
        job = Job(**self.validate(JobSerializer, request.data))
        self._save(job)
        return _created(request, job)

    @operation(
        "read_job",
        "Get a job",
        {200: JobSerializer()},
        permissions=("view_job",),
        headers=(ETAG,),
    )
    def retrieve(self, request: Request, job_id: str) -> Response:
        return _response(self._job(job_id))

    @operation(
        "replace_job",
        "Replace a job's definition; omitted fields get their defaults",
        {200: JobSerializer()},
        permissions=("change_job",),
        body=JobSerializer(),
        headers=(ETAG, IF_MATCH),
        error_responses=concurrency.ERROR_RESPONSES,
    )
    def update(self, request: Request, job_id: str) -> Response:
        return self._change(request, job_id, partial=False)

    @operation(
        "change_job",
        "Update fields of a job",
        {200: JobSerializer()},
        permissions=("change_job",),
        body=JobSerializer(partial=True),
        headers=(ETAG, IF_MATCH),
        error_responses=concurrency.ERROR_RESPONSES,
    )
    def partial_update(self, request: Request, job_id: str) -> Response:
        return self._change(request, job_id, partial=True)

    @operation(
        "delete_job",
        "Delete a job and cancel its unfinished runs; finished runs stay until they are pruned",
        {204: None},
        permissions=("delete_job",),
        query=DeletionQuery,
        headers=(IF_MATCH,),
        error_responses=concurrency.ERROR_RESPONSES,
    )
    def destroy(self, request: Request, job_id: str) -> Response:
        erase = self.validate(DeletionQuery, request.query_params)["erase"]
        job = self._job(job_id)
        check_match(request, job)
        with conflict_as_precondition_failed():
            control.delete(job, expected_version=job.version, erase=erase)
        return Response(status=204)

    @action(detail=True, methods=["post"])
    @operation(
        "revert_job",
        "Undo an edit of a job",
        {200: JobSerializer()},
        permissions=("change_job",),
        body=RevertSerializer(),
        headers=(ETAG, OPTIONAL_IF_MATCH),
        error_responses=concurrency.VERSION_MISMATCH
        | {
            409: "A field was changed again, the audit log doesn't have its whole old value, or "
            "the job was changed at the same time."
        },
    )
    def revert(self, request: Request, job_id: str) -> Response:
        job = self._job(job_id)
        check_match_if_sent(request, job)
        version = self.validate(RevertSerializer, request.data)["version"]
        if (entry := edit_of(job, version)) is None:
            text = _("The audit log has no edit that made version %(version)s.")
            raise ValidationError({"version": [text % {"version": version}]})
        before = copy(job)

        def check(reverted: Job) -> None:
            check_match_if_sent(request, reverted)  # it may have changed since the first check
            require_visible_references(reverted, before, self.scope)

        with require_visible_after(job, self.scope):
            control.revert(job, entry, check=check)
        return _response(job)

    @action(detail=False, methods=["post"])
    @operation(
        "restore_job",
        "Undo the deletion of a job; it gets a new id",
        {201: JobSerializer()},
        permissions=("add_job",),
        body=RestoreSerializer(),
        headers=(ETAG, LOCATION),
        error_responses={409: "The deletion was already undone, or a value isn't stored."},
    )
    def restore(self, request: Request) -> Response:
        key = self.validate(RestoreSerializer, request.data)["entry"]
        if (entry := visible_entries(deletions(), self.scope).filter(pk=key).first()) is None:
            text = _("The audit log has no deletion of a job with the id %(id)s.")
            raise ValidationError({"entry": [text % {"id": key}]})
        check = partial(require_visible_references, before=Job(), scope=self.scope)
        return _created(request, control.restore(entry, check=check))

    @action(detail=True, methods=["post"])
    @operation(
        "pause_job",
        "Pause a job; runs in progress continue",
        {200: JobSerializer()},
        permissions=("view_job", "pause_job"),
        body=PauseSerializer(),
        headers=(ETAG,),
        error_responses={
            409: "The job has been deleted, or `until` would enable it although a sync disabled "
            "it or it waits for a handover."
        },
    )
    def pause(self, request: Request, job_id: str) -> Response:
        job, values = self._job(job_id), self.validate(PauseSerializer, request.data)
        reason = signed_reason(values["reason"], request.user.get_username())
        replace = not {"reason", "until"}.isdisjoint(request.data)
        refused = control.pause_many(
            [job], reason, values["until"], replace=replace, replace_wait=True
        )
        if (error := refused.get(0)) is not None:
            if not is_paused_already(error):
                raise error
            job = self._job(job_id)  # paused as before, which may be another state than was read
        return _response(job)

    @action(detail=True, methods=["post"])
    @operation(
        "resume_job",
        "Resume a job; occurrences before now are not run",
        {200: JobSerializer()},
        permissions=("view_job", "pause_job"),
        body=EmptySerializer(),
        headers=(ETAG,),
        error_responses={
            409: "The job's schedule has no further occurrence or is invalid, or the "
            "job has been deleted."
        },
    )
    def resume(self, request: Request, job_id: str) -> Response:
        self.validate(EmptySerializer, request.data)
        job = self._job(job_id)
        control.resume(job)
        return _response(job)

    @action(detail=True, methods=["post"])
    @operation(
        "trigger_job",
        "Run a job now, even if it is paused",
        {201: ReceiptSerializer(), 200: ReceiptSerializer()},
        permissions=("view_job", "trigger_job"),
        body=TriggerSerializer(),
        headers=(IDEMPOTENCY_KEY, LOCATION),
        error_responses={
            409: "The job's target is not registered, or the job has been deleted.",
            422: "The key was used with other arguments.",
        },
    )
    def trigger(self, request: Request, job_id: str) -> Response:
        job, key = self._job(job_id), idempotency_key(request)
        values = self.validate(TriggerSerializer, request.data)
        args, kwargs = values.get("args"), values.get("kwargs")
        if Run(job=job, args=args, kwargs=kwargs).has_other_arguments:
            require_other_arguments(request)
        if key is None:
            triggered = TriggeredRun(control.trigger(job, args=args, kwargs=kwargs), is_new=True)
        else:
            triggered = trigger_once(job, args, kwargs, key)
        url = row_url(request, "run", triggered.run.pk)
        data = ReceiptSerializer(receipt(triggered.run, job, url)).data
        if triggered.is_new:
            return Response(data, status=201, headers={"Location": url})
        return Response(data)

    @action(detail=True, methods=["post"])
    @operation(
        "backfill_job",
        "Create runs for past occurrences that have none",
        {200: BackfillSerializer()},
        permissions=("view_job", "trigger_job"),
        body=RangeSerializer(),
        error_responses={
            409: "The job can't be backfilled in its current state, or was "
            "changed at the same time."
        },
    )
    def backfill(self, request: Request, job_id: str) -> Response:
        job, values = self._job(job_id), self.validate(RangeSerializer, request.data)
        found = control.backfill(job, values.pop("start"), values.pop("end"), **values)
        data: dict[str, Any] = {
            "dry_run": values["dry_run"],
            "occurrences": found.occurrences,
            "existing_runs": found.existing_runs,
            "continue_from": found.continue_from,
            "until": found.until,
        }
        return Response(BackfillSerializer(data).data)

    @action(detail=True)
    @operation(
        "get_job_stats",
        "Get the status of a job and the statistics of its runs",
        {200: JobStatsSerializer()},
        permissions=("view_job", "view_run"),
    )
    def stats(self, request: Request, job_id: str) -> Response:
        jobs = self.scope.jobs.select_related("cursor", "statistics", "calendar")
        job = row_or_404(jobs, number_or_404(job_id))
        return Response(JobStatsSerializer(statistics_document(job, self.scope)).data)

    @action(detail=True)
    @operation(
        "preview_job",
        "Preview the next occurrences of a job, as if it were enabled",
        {200: LookaheadSerializer()},
        permissions=("view_job",),
        query=PreviewQuery,
        error_responses={409: "The job's schedule is invalid."},
    )
    def preview(self, request: Request, job_id: str) -> Response:
        job, query = self._job(job_id), self.validate(PreviewQuery, request.query_params)
        ahead = look_ahead(job, query["count"], scope=self.scope)
        return Response(LookaheadSerializer(ahead).data)

    @action(detail=False, methods=["post"], url_path="preview")
    @operation(
        "preview_schedule",
        "Preview a schedule without saving it",
        {200: LookaheadSerializer()},
        permissions=("view_job",),
        body=DefinitionSerializer(),
    )
    def preview_schedule(self, request: Request) -> Response:
        values = self.validate(DefinitionSerializer, request.data)
        count = values.pop("count")
        ahead = look_ahead(job_of(values), count, scope=self.scope)
        return Response(LookaheadSerializer(ahead).data)

    def _job(self, job_id: str) -> Job:
        return row_or_404(self.scope.jobs, number_or_404(job_id))

    def _change(self, request: Request, job_id: str, *, partial: bool) -> Response:
        job = self._job(job_id)
        check_match(request, job)
        predecessors = {*job.after}
        serializer = JobSerializer(
            job, data=request.data, partial=partial, context={"scope": self.scope}
        )
        serializer.is_valid(raise_exception=True)
        serializer.set_validated_values()
        with conflict_as_precondition_failed():
            self._save(job, expected_version=job.version, predecessors=predecessors)
        return _response(job)

    def _save(
        self,
        job: Job,
        *,
        expected_version: int | None = None,
        predecessors: Collection[str] = (),
    ) -> None:
        """Save a job within the user's scope.

        ``predecessors``: the job's stored predecessors, which it may keep even if they are hidden.
        """
        if self.scope.narrows(Job):
            job.full_clean()
            chains.check_links(job, alias_for(Job), self.scope.jobs, predecessors)
        with require_visible_after(job, self.scope):
            control.save(job, expected_version=expected_version)


def _created(request: Request, job: Job) -> Response:
    headers = {"ETag": etag(job), "Location": row_url(request, "job", job.pk)}
    return Response(JobSerializer(job).data, status=201, headers=headers)


def _response(job: Job) -> Response:
    return Response(JobSerializer(job).data, headers={"ETag": etag(job)})
