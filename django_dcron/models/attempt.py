"""An attempt: one execution of a run.

The transaction that starts an attempt inserts its row. UNIQUE (run, number) prevents a second
start.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from django.db import models
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_dcron.models.definition import Definition
from django_dcron.models.run import Run
from django_dcron.policies.lifecycle import Outcome

OUTCOME_LABELS = [
    (Outcome.SUCCEEDED.value, _("Succeeded")),
    (Outcome.FAILED.value, _("Failed")),
    (Outcome.TIMED_OUT.value, _("Timed out")),
    (Outcome.LOST.value, _("Lost")),
    (Outcome.CANCELLED.value, _("Cancelled")),
]

LONGEST_RELEASE = 64
LONGEST_PLACE = 500


class Attempt(models.Model):
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="attempts", db_index=False)
    number = models.PositiveSmallIntegerField(_("number"), help_text=_("Counted from 1."))
    token = models.UUIDField(
        editable=False,
        help_text=_("Identifies the execution that started the attempt."),
    )
    worker = models.CharField(_("worker"), max_length=255)
    # A constraint would lock the definition's row at each start.
    definition = models.ForeignKey(
        Definition,
        on_delete=models.DO_NOTHING,
        null=True,
        editable=False,
        related_name="+",
        db_constraint=False,
        db_index=False,
        help_text=_("What the job was when the attempt started."),
    )
    release = models.CharField(
        _("release"),
        max_length=LONGEST_RELEASE,
        blank=True,
        help_text=_("The release of the worker's code: DCRON_RELEASE, or else the Git commit."),
    )
    due_at = models.DateTimeField(
        _("due at"), null=True, help_text=_("For a retry, the end of its backoff.")
    )
    queued_at = models.DateTimeField(
        _("queued at"),
        null=True,
        help_text=_("Last recorded dispatch before the start."),
    )
    started_at = models.DateTimeField(_("started at"))
    finished_at = models.DateTimeField(_("finished at"), null=True)
    outcome = models.CharField(_("outcome"), max_length=10, choices=OUTCOME_LABELS, blank=True)
    late_outcome = models.CharField(
        _("late outcome"),
        max_length=10,
        choices=OUTCOME_LABELS,
        blank=True,
        help_text=_(
            "Outcome that the worker reported after the attempt was declared lost or had timed "
            "out. It has no effect."
        ),
    )
    exception_class = models.CharField(_("exception"), max_length=255, blank=True)
    message = models.TextField(_("message"), blank=True)
    traceback = models.TextField(_("traceback"), blank=True)
    raised_in = models.CharField(
        max_length=LONGEST_PLACE,
        blank=True,
        editable=False,
        help_text=_("The file, line and function of the job's code that raised the exception."),
    )
    log = models.TextField(_("log"), blank=True)
    result = models.TextField(
        _("result"), blank=True, help_text=_("JSON. If it was cut, a mark shows where.")
    )
    progress_done = models.PositiveBigIntegerField(_("done"), null=True)
    progress_total = models.PositiveBigIntegerField(_("total"), null=True)
    progress_note = models.CharField(_("progress"), max_length=255, blank=True)

    incident = models.BigIntegerField(
        null=True,
        editable=False,
        help_text=_(
            "The incident that the failure belongs to. 0 until a node groups it; null without a "
            "failure."
        ),
    )

    class Meta:
        verbose_name = _("attempt")
        verbose_name_plural = _("attempts")
        ordering = ("run", "number")
        constraints = (
            models.UniqueConstraint(fields=("run", "number"), name="dcron_attempt_number"),
        )
        # On PostgreSQL, the index contains only failed attempts (``use_partial_indexes``).
        indexes = (models.Index(fields=("incident", "id"), name="dcron_attempt_incident"),)

    def __str__(self) -> str:
        values = {"run": self.run, "number": self.number}
        return gettext("%(run)s, attempt %(number)d") % values

    @property
    def return_value(self) -> Any:
        """The value that the job's code returned, as JSON stores it.

        None if it returned None or hasn't returned. ``{"repr": ...}`` for a value that JSON can't
        store. Raises ``ValueError`` if the text was cut.
        """
        try:
            return json.loads(self.result) if self.result else None
        except ValueError as error:
            raise ValueError(
                f"The result of {self} was cut, because it was longer than DCRON_RESULT_LIMIT. "
                "Return less, or raise the setting."
            ) from error

    @property
    def duration(self) -> timedelta | None:
        return self.finished_at - self.started_at if self.finished_at else None
