"""Runs as JSON. The detail view adds the run's own arguments and its attempts to the list's fields.

The arguments of the job aren't part of a run.
"""

from __future__ import annotations

from typing import Any

from django.db.models import Prefetch, QuerySet
from django.db.models.functions import Left
from rest_framework import serializers

from django_dcron.contrib.rest import fields
from django_dcron.contrib.rest.base_serializers import (
    AnySerializer,
    StrictModelSerializer,
    StrictSerializer,
)
from django_dcron.contrib.rest.jobs.triggering import SHADOW_HELP
from django_dcron.diagnosis.definitions import definition_document
from django_dcron.diagnosis.scope import EVERYTHING, Scope
from django_dcron.jobs.action_texts import LONGEST_REASON
from django_dcron.models import Attempt, Job, Run
from django_dcron.policies.lifecycle import Outcome, State, Trigger
from django_dcron.targets.shadow import is_shadow

LIST_FIELDS = (
    "id",
    "job",
    "scheduled_at",
    "trigger",
    "state",
    "reason",
    "attempt",
    "due_at",
    "claimed_at",
    "queued_at",
    "started_at",
    "finished_at",
    "missed_before",
    "missed_from",
    "rerun_of",
    "node",
    "cancel_requested_at",
)
SHOWN_MESSAGE_LENGTH = 1_000
"""The maximum number of characters of an attempt's message. The log endpoint returns all of it."""


class RunJobSerializer(AnySerializer):
    """The job of the run."""

    id = serializers.IntegerField(read_only=True)
    namespace = serializers.CharField(read_only=True)
    name = serializers.CharField(read_only=True)
    deleted_at = fields.UtcTimeField(
        read_only=True, allow_null=True, help_text="Null unless the job was deleted."
    )


class RunSerializer(StrictModelSerializer):
    """A run of a job."""

    job = RunJobSerializer(read_only=True)
    state = serializers.ChoiceField([state.value for state in State], read_only=True)
    trigger = serializers.ChoiceField(
        [trigger.value for trigger in Trigger], source="shown_trigger", read_only=True
    )
    rerun_of = serializers.UUIDField(source="rerun_of_id", read_only=True, allow_null=True)

    class Meta:
        model = Run
        fields: tuple[str, ...] = LIST_FIELDS
        read_only_fields: tuple[str, ...] = LIST_FIELDS


class RerunSerializer(RunSerializer):
    """The new run of a rerun."""

    shadow = serializers.SerializerMethodField(help_text=SHADOW_HELP)

    class Meta(RunSerializer.Meta):
        fields = (*LIST_FIELDS, "shadow")
        read_only_fields = fields

    def get_shadow(self, run: Run) -> bool:
        return is_shadow(run.job.target)


class RunPageSerializer(AnySerializer):
    next = serializers.URLField(
        read_only=True,
        allow_null=True,
        help_text="The URL of the next page. Null on the last page. A page may have few or "
        "no rows and still have a next page.",
    )
    results = RunSerializer(many=True, read_only=True)


class DefinitionChangeSerializer(AnySerializer):
    """A field of the job that has changed since the attempt started."""

    field = serializers.CharField(read_only=True)
    then = fields.StrictJsonField(read_only=True, allow_null=True)
    now = fields.StrictJsonField(read_only=True, allow_null=True)


class RecordedDefinitionSerializer(AnySerializer):
    """The job's definition when the attempt started. Secrets are masked."""

    version = serializers.IntegerField(read_only=True, help_text="The job's version.")
    content = fields.JsonObjectField(read_only=True, help_text="The job's fields, as in an export.")
    changes = DefinitionChangeSerializer(
        many=True, read_only=True, help_text="The fields in which the job differs now."
    )


class AttemptSerializer(StrictModelSerializer):
    """One try at a run. Its log, traceback and result are at `log/`."""

    outcome = serializers.ChoiceField(
        ["", *(outcome.value for outcome in Outcome)],
        read_only=True,
        help_text="Empty while the attempt is open.",
    )
    late_outcome = serializers.ChoiceField(
        ["", *(outcome.value for outcome in Outcome)],
        read_only=True,
        help_text="The outcome that the worker reported after the attempt was declared "
        "lost or had timed out. It has no effect.",
    )
    message = serializers.CharField(
        source="message_start",
        read_only=True,
        help_text=f"The first {SHOWN_MESSAGE_LENGTH} characters of the message.",
    )
    definition = RecordedDefinitionSerializer(
        source="shown_definition",
        read_only=True,
        allow_null=True,
        help_text="What the attempt ran. Null if the user may not view jobs.",
    )

    class Meta:
        model = Attempt
        fields = (
            "number",
            "worker",
            "release",
            "definition",
            "due_at",
            "queued_at",
            "started_at",
            "finished_at",
            "outcome",
            "late_outcome",
            "exception_class",
            "message",
            "progress_done",
            "progress_total",
            "progress_note",
        )
        read_only_fields = fields


class RunDetailSerializer(RunSerializer):
    """A run with its own arguments and its attempts."""

    args = fields.JsonListField(
        read_only=True, allow_null=True, help_text="Null if the run uses the job's arguments."
    )
    kwargs = fields.JsonObjectField(
        read_only=True,
        allow_null=True,
        help_text="Null if the run uses the job's keyword arguments.",
    )
    attempts = AttemptSerializer(
        source="shown_attempts",
        many=True,
        read_only=True,
        allow_null=True,
        help_text="Null if the user may not view attempts.",
    )

    follows = serializers.UUIDField(
        source="follows_id",
        read_only=True,
        allow_null=True,
        help_text="The run whose end started this one (chains).",
    )

    class Meta(RunSerializer.Meta):
        fields = (*LIST_FIELDS, "follows", "args", "kwargs", "idempotency_key", "attempts")
        read_only_fields = fields


class LogQuery(StrictSerializer):
    attempt = serializers.IntegerField(
        required=False,
        min_value=1,
        max_value=32_767,
        help_text="The number of the attempt. Defaults to the latest.",
    )
    text = serializers.ChoiceField(
        ("log", "message", "traceback", "result"), default="log", help_text="The text to return."
    )


class CancelSerializer(StrictSerializer):
    reason = fields.StrictCharField(
        required=False,
        allow_blank=True,
        default="",
        max_length=LONGEST_REASON,
        help_text="The reason. The API appends the user's name.",
    )


def list_runs(scope: Scope) -> QuerySet[Run]:
    """Return runs with only the columns that a list shows.

    Jobs are read in a separate query: with a join, a database may start from the jobs and sort all
    their runs.
    """
    jobs = Prefetch("job", EVERYTHING.rows(Job).only("namespace", "name", "deleted_at"))
    return scope.runs.only(*LIST_FIELDS, "original_deleted").prefetch_related(jobs)


def visible_attempts_of(run: Run, scope: Scope, *, with_definitions: bool) -> list[Attempt]:
    rows = scope.attempts.filter(run=run.pk).order_by("number")
    rows = rows.annotate(message_start=Left("message", SHOWN_MESSAGE_LENGTH))
    rows = rows.defer("message", "traceback", "log", "result")
    attempts: list[Any] = list(rows.select_related("definition") if with_definitions else rows)
    for attempt in attempts:
        attempt.run = run
        attempt.shown_definition = definition_document(attempt) if with_definitions else None
    return attempts
