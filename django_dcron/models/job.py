"""A job: the stored definition of what runs, when, and by which policies.

People and code write these columns; the scheduler's position is in ``Cursor`` and the outcomes are in ``Statistics``.
Use ``django_dcron.control.save`` to write a job: it also moves the cursor. A job written past it (``QuerySet.update``,
``loaddata``, SQL) is noticed by the scheduler, a little later.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models import F
from django.utils.translation import gettext_lazy as _

from django_dcron.domain.calendar import ExclusionPolicy
from django_dcron.domain.misfire import Misfire, MisfirePolicy
from django_dcron.domain.overlap import OverlapPolicy, read_policy
from django_dcron.domain.retry import RetryPolicy
from django_dcron.exceptions import InvalidCalendar
from django_dcron.models.calendar import Calendar
from django_dcron.models.job_validation import definition_errors
from django_dcron.models.scheduled import Scheduled
from django_dcron.phrases import gettext_noop

NAME = RegexValidator(
    r"^[\w.@:-]+(?: [\w.@:-]+)*\Z",
    _("Use letters, digits, single spaces and any of _ . - @ : only."),
)
QUEUE = RegexValidator(
    r"\A[!-~]+\Z",
    _("“%(value)s” cannot name a queue. Use printable ASCII characters without spaces."),
)
"""AMQP refuses other names, and with them the messages of every job in the batch."""

CALENDAR = MaxValueValidator(timedelta(days=36_500), _("Use at most 36500d."))
"""Any duration of a job is at most so long: beyond, sums of dates leave the calendar."""
FROM_ZERO = [MinValueValidator(timedelta(), _("Use at least 0s.")), CALENDAR]
FROM_ONE_SECOND = [MinValueValidator(timedelta(seconds=1), _("Use at least 1s.")), CALENDAR]


def _duration(seconds: int, **options: Any) -> models.DurationField[Any, Any]:
    return models.DurationField(default=timedelta(seconds=seconds), **options)


_NO_CALENDAR = gettext_noop("calendar: there is no “%(name)s” (allowed: the name of a calendar)")


class JobQuerySet(models.QuerySet["Job"]):
    def enabled(self) -> JobQuerySet:
        return self.filter(enabled=True)

    def in_shards(self, shards: Collection[int], of: int) -> JobQuerySet:
        if len(shards) == of:
            return self
        return self.alias(shard=F("pk") % of).filter(shard__in=shards)


class Job(Scheduled, models.Model):
    namespace = models.CharField(
        _("namespace"),
        max_length=64,
        default="default",
        validators=[NAME],
        help_text=_("Groups jobs; a scheduler can be told to serve one namespace only."),
    )
    name = models.CharField(
        _("name"), max_length=120, validators=[NAME], help_text=_("Unique within its namespace.")
    )
    description = models.TextField(_("description"), blank=True, help_text=_("What it is for; who to ask."))

    target = models.CharField(
        _("target"),
        max_length=255,
        help_text=_(
            "What to run: the name of a Celery task, the path of a Django task, a function registered with @cron, "
            "command:NAME or shell:NAME as the settings allow."
        ),
    )
    args = models.JSONField(
        _("arguments"),
        default=list,
        blank=True,
        help_text=_("A JSON list of positional arguments, such as [1, true]."),
    )
    kwargs = models.JSONField(
        _("keyword arguments"),
        default=dict,
        blank=True,
        help_text=_('A JSON object, such as {"city": "Berlin"}.'),
    )

    schedule = models.CharField(
        _("schedule"),
        max_length=255,
        help_text=_(
            "Five cron fields such as 30 3 * * MON-FRI, six with seconds first, @hourly, @every 1h30m, or once: "
            "@at 2026-12-01T09:00."
        ),
    )
    timezone = models.CharField(
        _("time zone"),
        max_length=64,
        default="UTC",
        help_text=_("The zone the schedule's times are in, such as Europe/Berlin."),
    )
    starts_at = models.DateTimeField(
        _("starts at"), null=True, blank=True, help_text=_("No occurrence before this.")
    )
    ends_at = models.DateTimeField(
        _("ends at"), null=True, blank=True, help_text=_("No occurrence after this.")
    )
    after = models.JSONField(
        _("after"),
        default=dict,
        blank=True,
        help_text=_(
            'A JSON object: it also runs whenever one of these jobs has "succeeded", "failed" or "ended", such as '
            '{"import-orders": "succeeded"}. With the schedule @never, only then.'
        ),
    )
    calendar = models.ForeignKey(
        Calendar,
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="jobs",
        verbose_name=_("calendar"),
        help_text=_("It excludes dates from the schedule. Empty: none are."),
    )
    calendar_policy = models.CharField(
        _("on an excluded date"),
        max_length=12,
        default=ExclusionPolicy.SKIP.value,
        choices=[
            (ExclusionPolicy.SKIP.value, _("skip: no occurrence")),
            (
                ExclusionPolicy.NEXT_DAY.value,
                _("move to the next date that is not excluded"),
            ),
        ],
        help_text=_("What becomes of an occurrence on a date that the calendar excludes."),
    )
    jitter = _duration(
        0,
        verbose_name=_("jitter"),
        validators=FROM_ZERO,
        help_text=_(
            "Spreads each run over so much time after its occurrence, so that jobs of one minute do not rush."
        ),
    )

    enabled = models.BooleanField(
        _("enabled"), default=True, help_text=_("A paused job has no new occurrences.")
    )
    pause_reason = models.CharField(_("pause reason"), max_length=255, blank=True)
    paused_until = models.DateTimeField(
        _("paused until"),
        null=True,
        blank=True,
        help_text=_("It resumes by itself then. Empty: by hand only."),
    )

    misfire_policy = models.CharField(
        _("if not started in time"),
        max_length=12,
        default=MisfirePolicy.RUN_LATEST.value,
        choices=[
            (MisfirePolicy.SKIP.value, _("skip: record them as missed")),
            (MisfirePolicy.RUN_LATEST.value, _("run the latest, count the others on it")),
            (MisfirePolicy.RUN_ALL.value, _("run all, oldest first, up to the catch-up limit")),
        ],
        help_text=_("What becomes of occurrences that an outage has kept from starting."),
    )
    misfire_grace = _duration(
        60,
        verbose_name=_("misfire grace"),
        validators=FROM_ONE_SECOND,
        help_text=_("How late a run may start before it counts as not started in time."),
    )
    catchup_limit = models.PositiveIntegerField(
        _("catch-up limit"),
        default=100,
        validators=[MinValueValidator(1), MaxValueValidator(10_000)],
        help_text=_('With "run all": at most so many; the rest are recorded as missed.'),
    )
    overlap_policy = models.CharField(
        _("if still running"),
        max_length=16,
        default=OverlapPolicy.SKIP.value,
        choices=[
            (OverlapPolicy.ALLOW.value, _("allow: run side by side")),
            (OverlapPolicy.SKIP.value, _("skip the new run")),
            (OverlapPolicy.QUEUE_ONE.value, _("let one wait, skip more")),
            (OverlapPolicy.QUEUE_ALL.value, _("let all wait, in order")),
            (OverlapPolicy.CANCEL_RUNNING.value, _("cancel the running one")),
        ],
        help_text=_("What becomes of a run while an earlier one is unfinished."),
    )
    start_deadline = models.DurationField(
        _("start deadline"),
        null=True,
        blank=True,
        validators=FROM_ONE_SECOND,
        help_text=_("Never start later than this after the due time, whatever the policy. Empty: no limit."),
    )

    queue = models.CharField(
        _("queue"),
        max_length=120,
        blank=True,
        validators=[QUEUE],
        help_text=_("The workers' queue. Empty: the target task's own."),
    )
    priority = models.PositiveSmallIntegerField(
        _("priority"),
        null=True,
        blank=True,
        validators=[MaxValueValidator(9)],
        help_text=_(
            "0 to 9, as the broker understands it (RabbitMQ and Django's tasks: 9 is first; Redis: 0 is first). Empty: none."
        ),
    )
    timeout = models.DurationField(
        _("timeout"),
        null=True,
        blank=True,
        validators=FROM_ONE_SECOND,
        help_text=_("A run that takes longer is stopped. Empty: no limit."),
    )

    max_attempts = models.PositiveSmallIntegerField(
        _("attempts"),
        default=1,
        validators=[MinValueValidator(1), MaxValueValidator(100)],
        help_text=_("How often a run is tried, the first time included."),
    )
    retry_backoff = _duration(
        10,
        verbose_name=_("retry backoff"),
        validators=FROM_ZERO,
        help_text=_("The wait before the second attempt."),
    )
    retry_backoff_factor = models.FloatField(
        _("backoff factor"),
        default=2.0,
        validators=[MinValueValidator(1.0), MaxValueValidator(100.0)],
        help_text=_("Each further wait is so many times the one before."),
    )
    retry_backoff_max = _duration(
        3600,
        verbose_name=_("longest backoff"),
        validators=FROM_ZERO,
        help_text=_("No wait is longer."),
    )
    retry_jitter = models.FloatField(
        _("retry jitter"),
        default=0.1,
        validators=[MinValueValidator(0.0), MaxValueValidator(1.0)],
        help_text=_("Spreads each wait by up to this fraction to either side: 0.1 is 10 %."),
    )
    retry_on = models.JSONField(
        _("retry on"),
        default=list,
        blank=True,
        help_text=_('A JSON list of exception names, such as ["ConnectionError"]. Empty: on any.'),
    )
    never_retry_on = models.JSONField(
        _("never retry on"),
        default=list,
        blank=True,
        help_text=_("A JSON list of exception names that end the run."),
    )
    pause_after_failures = models.PositiveIntegerField(
        _("pause after failures"),
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text=_("After so many failed runs in a row the job pauses itself. Empty: never."),
    )
    alerts = models.JSONField(
        _("alerts"),
        null=True,
        blank=True,
        help_text=_(
            'A JSON list of rules, such as [{"on": "failed", "to": ["ops"]}]. Empty: those of DCRON_ALERTS; []: none.'
        ),
    )
    keep_for = models.DurationField(
        _("keep for"),
        null=True,
        blank=True,
        validators=FROM_ONE_SECOND,
        help_text=_("How long its finished runs are kept. Empty: as long as DCRON_KEEP_FOR says."),
    )
    keep_failed_for = models.DurationField(
        _("keep failed for"),
        null=True,
        blank=True,
        validators=FROM_ONE_SECOND,
        help_text=_("How long its failed runs are kept. Empty: as long as DCRON_KEEP_FAILED_FOR says."),
    )
    keep_runs = models.PositiveIntegerField(
        _("keep runs"),
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text=_("At most so many of its finished runs are kept. Empty: as many as DCRON_KEEP_RUNS says."),
    )
    tags = models.JSONField(
        _("tags"), default=list, blank=True, help_text=_('A JSON list of words, such as ["billing"].')
    )

    declared = models.JSONField(
        _("declared in code"),
        null=True,
        editable=False,
        help_text=_(
            "The fields as @cron last declared them; null for a job made by people. Written by sync alone."
        ),
    )
    version = models.PositiveIntegerField(_("version"), default=1, editable=False)
    created_at = models.DateTimeField(_("created at"), auto_now_add=True)
    updated_at = models.DateTimeField(_("updated at"), auto_now=True)

    objects = JobQuerySet.as_manager()

    class Meta:
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        ordering = ("namespace", "name")
        permissions = (
            ("trigger_job", _("Can run jobs now, and backfill them")),
            ("run_job_with_arguments", _("Can run jobs with other arguments than their own")),
            ("pause_job", _("Can pause and resume jobs")),
        )
        constraints = (
            models.UniqueConstraint(fields=("namespace", "name"), name="dcron_job_namespace_name"),
        )

    def __str__(self) -> str:
        return self.name if self.namespace == "default" else f"{self.namespace}/{self.name}"

    def clean_fields(self, exclude: Collection[str] | None = None) -> None:
        """Each field alone, then all that fields alone cannot say; the same for the admin, code and the API."""
        errors: dict[str, Any] = {}
        try:
            super().clean_fields(exclude)
        except ValidationError as error:
            errors = error.error_dict
        errors |= definition_errors(self, unsound={*errors, *(exclude or ())})
        if errors:
            raise ValidationError(errors)

    @property
    def calendar_dates(self) -> str | None:
        """The calendar's text; None: there is no calendar. Raises ``InvalidCalendar`` if none has that name, as may be of a job
        that is not saved."""
        try:
            return self.calendar.dates if self.calendar else None
        except Calendar.DoesNotExist:
            raise InvalidCalendar(_NO_CALENDAR, name=self.calendar_id) from None

    @property
    def misfire(self) -> Misfire:
        return Misfire(MisfirePolicy(self.misfire_policy), self.misfire_grace, self.catchup_limit)

    @property
    def overlap(self) -> OverlapPolicy:
        return read_policy(self.overlap_policy)

    @property
    def retry(self) -> RetryPolicy:
        return RetryPolicy(
            max_attempts=self.max_attempts,
            backoff=self.retry_backoff,
            factor=self.retry_backoff_factor,
            backoff_max=self.retry_backoff_max,
            jitter=self.retry_jitter,
            retry_on=self.retry_on,
            never_retry_on=self.never_retry_on,
        )
