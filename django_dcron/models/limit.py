"""A shared limit: how many runs of its jobs may execute at once, or start within an interval.

The name is the primary key, so that exports and declarations can refer to a limit by name.

Invariants:

- UNIQUE (limit, key, number): a place belongs to at most one run. A new place gets a number up to
  the limit's ``max_running``, so at most that many runs with the same key execute.
- UNIQUE (limit, key, number) of ``LimitStart``: within an interval, at most ``max_started`` runs
  with the same key start, because each start takes a number up to ``max_started``.
- Places are given and freed under the lock of the limit's row (``runs.limits``).
- A run whose ``limited`` is true has one row of ``LimitPlace``. The row has a number while the run
  executes or is about to start, and none while the run waits. Other runs have no row.
- A limit that a job names, or that a run needs, can't be deleted.
"""

from __future__ import annotations

from collections.abc import Collection

from django.core.exceptions import ValidationError
from django.core.validators import MaxLengthValidator, MaxValueValidator, MinValueValidator
from django.db import models
from django.utils.translation import gettext_lazy as _

from django_dcron.models.calendar import MAX_DESCRIPTION_LENGTH
from django_dcron.models.calendar import NAME as NAME_IN_URL
from django_dcron.models.exact_text import ExactCharField
from django_dcron.models.hidden_characters import validate_text
from django_dcron.models.job_fields import optional_duration_field
from django_dcron.policies.limits import LONGEST_KEY, is_key_template

LARGEST_MAXIMUM = 1000


def validate_key(template: str) -> None:
    """Raise ``ValidationError`` if the text isn't a template of keys."""
    if not is_key_template(template):
        raise ValidationError(
            _(
                "“%(value)s” isn't a valid key. Use text with arguments in braces, such as "
                "customer:{kwargs[customer_id]} or {args[0]}."
            ),
            code="invalid",
            params={"value": template},
        )


class Limit(models.Model):
    name = models.CharField(
        _("name"),
        max_length=120,
        primary_key=True,
        validators=[NAME_IN_URL],
        help_text=_("The name that jobs refer to, such as payment-api. It can't be changed later."),
    )
    description = models.TextField(
        _("description"),
        blank=True,
        validators=[MaxLengthValidator(MAX_DESCRIPTION_LENGTH), validate_text],
        help_text=_(
            "What the limit protects and whom to contact, such as “The payment API allows three "
            "connections. Contact: billing”."
        ),
    )
    max_running = models.PositiveIntegerField(
        _("maximum running"),
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(LARGEST_MAXIMUM)],
        help_text=_(
            "How many runs of all jobs with this limit may execute at the same time, such as 3. "
            "Further runs wait and start in order of their due times. Empty: no limit."
        ),
    )
    max_started = models.PositiveIntegerField(
        _("maximum started"),
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(LARGEST_MAXIMUM)],
        help_text=_("How many runs may start within the interval, such as 100. Empty: no limit."),
    )
    interval = optional_duration_field(
        _("interval"),
        help_text=_(
            "The interval for the maximum started, such as 1m. The maximum applies to any interval "
            "of this length."
        ),
    )
    key = models.CharField(
        _("key"),
        max_length=LONGEST_KEY,
        blank=True,
        validators=[validate_key, validate_text],
        help_text=_(
            "Counts the runs separately for each value of an argument, such as "
            "customer:{kwargs[customer_id]} or {args[0]}. Empty: counts all runs together."
        ),
    )
    version = models.PositiveIntegerField(_("version"), default=1, editable=False)

    class Meta:
        verbose_name = _("limit")
        verbose_name_plural = _("limits")
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name

    def clean_fields(self, exclude: Collection[str] | None = None) -> None:
        """Validate each field, then the maxima together if they are valid."""
        super().clean_fields(exclude)
        # A form excludes the fields that it has found invalid.
        if not {"max_running", "max_started", "interval"} & {*(exclude or ())}:
            self._check_maxima()

    def _check_maxima(self) -> None:
        if self.max_running is None and self.max_started is None:
            text = _("Enter a maximum of running runs, of started runs, or both.")
            raise ValidationError({"max_running": ValidationError(text, code="no_maximum")})
        if (self.max_started is None) != (self.interval is None):
            text = _("Enter a maximum of started runs with an interval, such as 100 in 1m.")
            missing = "interval" if self.interval is None else "max_started"
            raise ValidationError({missing: ValidationError(text, code="incomplete")})


class LimitPlace(models.Model):
    """A run's place in a limit, or its wait for one."""

    run = models.OneToOneField(
        "Run", on_delete=models.CASCADE, primary_key=True, related_name="limit_place"
    )
    limit = models.ForeignKey(
        Limit, on_delete=models.PROTECT, related_name="places", db_index=False
    )
    key = ExactCharField(max_length=LONGEST_KEY, blank=True)
    number = models.PositiveIntegerField(null=True)
    due_at = models.DateTimeField()

    class Meta:
        default_permissions = ()
        constraints = (
            models.UniqueConstraint(
                fields=("limit", "key", "number"), name="dcron_limit_place_number"
            ),
        )
        indexes = (
            models.Index(fields=("limit", "key", "number", "due_at"), name="dcron_limit_line"),
        )

    def __str__(self) -> str:
        return f"{self.limit_id} {self.key} {self.number}"


class LimitStart(models.Model):
    """One of the ``max_started`` numbers of a limit, and the latest start that took it.

    The number is free again once the interval has passed since that start.
    """

    limit = models.ForeignKey(
        Limit, on_delete=models.CASCADE, related_name="starts", db_index=False
    )
    key = ExactCharField(max_length=LONGEST_KEY, blank=True)
    number = models.PositiveIntegerField()
    started_at = models.DateTimeField()

    class Meta:
        default_permissions = ()
        constraints = (
            models.UniqueConstraint(
                fields=("limit", "key", "number"), name="dcron_limit_start_number"
            ),
        )
        indexes = (models.Index(fields=("started_at",), name="dcron_limit_started"),)

    def __str__(self) -> str:
        return f"{self.limit_id} {self.key} {self.number}"
