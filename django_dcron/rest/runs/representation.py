"""A run as JSON: short in a list; by itself with its own arguments and its attempts. A job's arguments are the job's to show."""

from __future__ import annotations

from django.db.models import Prefetch, QuerySet
from django.db.models.functions import Left
from rest_framework import serializers

from django_dcron.domain.lifecycle import Outcome, State, Trigger
from django_dcron.models import Attempt, Run
from django_dcron.observability.scope import EVERYTHING, Scope
from django_dcron.rest import fields
from django_dcron.rest.serializing import AnySerializer, OfModel

SHORT = (
    "id", "job", "scheduled_at", "trigger", "state", "reason", "attempt", "due_at", "claimed_at", "queued_at", "started_at",
    "finished_at", "missed_before", "missed_from", "rerun_of", "node", "cancel_requested_at",
)  # fmt: skip
MESSAGE_SHOWN = 1_000
"""Characters of an attempt's message; all of it is where the log is."""


class OfJobSerializer(AnySerializer):
    """Whose run it is."""

    id = serializers.IntegerField(read_only=True)
    namespace = serializers.CharField(read_only=True)
    name = serializers.CharField(read_only=True)


class RunSerializer(OfModel):
    """What became of an occurrence."""

    job = OfJobSerializer(read_only=True)
    state = serializers.ChoiceField([state.value for state in State], read_only=True)
    trigger = serializers.ChoiceField([trigger.value for trigger in Trigger], read_only=True)
    rerun_of = serializers.UUIDField(source="rerun_of_id", read_only=True, allow_null=True)

    class Meta:
        model = Run
        fields: tuple[str, ...] = SHORT
        read_only_fields: tuple[str, ...] = SHORT


class RunPageSerializer(AnySerializer):
    next = serializers.URLField(
        read_only=True,
        allow_null=True,
        help_text="Null: this is the last page. A page may have few rows, or none, and yet a next one.",
    )
    results = RunSerializer(many=True, read_only=True)


class AttemptSerializer(OfModel):
    """A try at the run. Its log, traceback and result are at `log/`."""

    outcome = serializers.ChoiceField(
        ["", *(outcome.value for outcome in Outcome)], read_only=True, help_text="Empty: it goes on."
    )
    late_outcome = serializers.ChoiceField(
        ["", *(outcome.value for outcome in Outcome)],
        read_only=True,
        help_text="What its worker reported after it had been declared lost; it changed nothing.",
    )
    message = serializers.CharField(
        source="first_words", read_only=True, help_text=f"Its first {MESSAGE_SHOWN} characters."
    )

    class Meta:
        model = Attempt
        fields = (
            "number", "worker", "due_at", "queued_at", "started_at", "finished_at", "outcome", "late_outcome", "exception_class",
            "message", "progress_done", "progress_total", "progress_note",
        )  # fmt: skip
        read_only_fields = fields


class RunDetailSerializer(RunSerializer):
    """A run, its own arguments and its attempts."""

    args = fields.JsonList(read_only=True, allow_null=True, help_text="Null: the job's own.")
    kwargs = fields.JsonObject(read_only=True, allow_null=True, help_text="Null: the job's own.")
    attempts = AttemptSerializer(
        source="shown_attempts",
        many=True,
        read_only=True,
        allow_null=True,
        help_text="Null for who may not see attempts.",
    )

    follows = serializers.UUIDField(
        source="follows_id", read_only=True, allow_null=True, help_text="The run whose end made this one."
    )

    class Meta(RunSerializer.Meta):
        fields = (*SHORT, "follows", "args", "kwargs", "idempotency_key", "attempts")
        read_only_fields = fields


def short_runs(scope: Scope) -> QuerySet[Run]:
    """With what a list shows of them and no more. The jobs by a query of their own: with a join a database may start from the
    jobs, and sort all their runs."""
    jobs = Prefetch("job", EVERYTHING.jobs.only("namespace", "name"))
    return scope.runs.only(*SHORT).prefetch_related(jobs)


def attempts_of(run: Run, scope: Scope) -> QuerySet[Attempt]:
    attempts = scope.attempts.filter(run=run.pk).order_by("number")
    shown = attempts.annotate(first_words=Left("message", MESSAGE_SHOWN))
    return shown.defer("message", "traceback", "log", "result")
