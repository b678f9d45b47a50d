"""The fields of a job that people set, in the admin, in code or through the API.

``Job`` adds the columns that the package maintains. Exports list the fields in this order.
"""

from __future__ import annotations

from django.conf import settings
from django.core.validators import MaxLengthValidator, MaxValueValidator, MinValueValidator
from django.db import models
from django.utils.translation import gettext_lazy as _

from django_dcron.models.calendar import MAX_DESCRIPTION_LENGTH, Calendar
from django_dcron.models.hidden_characters import validate_text
from django_dcron.models.job_fields import (
    EXCLUSION_LABELS,
    FROM_ONE_SECOND,
    FROM_ZERO,
    MISFIRE_LABELS,
    NAME,
    OVERLAP_LABELS,
    QUEUE,
    duration_field,
    json_list_field,
    optional_duration_field,
)
from django_dcron.models.job_policies import JobPoliciesMixin
from django_dcron.models.limit import Limit
from django_dcron.models.parsed_schedule import ParsedScheduleMixin
from django_dcron.policies.job_labels import DEFAULT_NAMESPACE
from django_dcron.policies.misfire import MisfirePolicy
from django_dcron.policies.overlap import OverlapPolicy
from django_dcron.policies.retry import MAX_ATTEMPTS
from django_dcron.schedules.calendar import ExclusionPolicy
from django_dcron.schedules.schedule import MAX_LENGTH


def site_time_zone() -> str:
    """Return Django's setting ``TIME_ZONE``.

    ``get_default_timezone_name`` returns an abbreviation such as +05 for zones such as Etc/GMT-5.
    """
    return settings.TIME_ZONE


class JobSettings(ParsedScheduleMixin, JobPoliciesMixin, models.Model):
    namespace = models.CharField(
        _("namespace"),
        max_length=64,
        default=DEFAULT_NAMESPACE,
        validators=[NAME],
        help_text=_(
            "The name of a group of jobs, such as billing. A node can serve all namespaces or only "
            "one."
        ),
    )
    name = models.CharField(
        _("name"),
        max_length=120,
        validators=[NAME],
        help_text=_("Unique in the namespace. Example: import-orders."),
    )
    description = models.TextField(
        _("description"),
        blank=True,
        validators=[MaxLengthValidator(MAX_DESCRIPTION_LENGTH), validate_text],
        help_text=_(
            "What the job does and whom to contact, such as “Imports orders. Contact: shop team”."
        ),
    )

    target = models.CharField(
        _("target"),
        max_length=255,
        help_text=_(
            "A Celery task, a Django task, a @cron function, command:NAME or shell:NAME. "
            "Example: shop.tasks.import_orders."
        ),
        error_messages={
            "blank": _(
                "Enter the name of a task or @cron function, such as shop.tasks.import_orders."
            )
        },
    )
    args = json_list_field(
        _("arguments"),
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
        max_length=MAX_LENGTH,
        help_text=_(
            "Five cron fields, such as 30 3 * * MON-FRI, or six with seconds first. Also "
            "@hourly, @every 1h30m and @at 2026-12-01T09:00. WD#3 as day of month is the third "
            "working day. For every second Friday: @rrule 2026-01-02T09:00 "
            "FREQ=WEEKLY;INTERVAL=2;BYDAY=FR. With several lines, the times of all lines apply."
        ),
    )
    timezone = models.CharField(
        _("time zone"),
        max_length=64,
        default=site_time_zone,
        help_text=_("Time zone of the schedule, such as Europe/Berlin."),
    )
    starts_at = models.DateTimeField(
        _("starts at"),
        null=True,
        blank=True,
        help_text=_("The job has no occurrences before this time. Empty: no limit."),
    )
    ends_at = models.DateTimeField(
        _("ends at"),
        null=True,
        blank=True,
        help_text=_("The job has no occurrences after this time. Empty: no limit."),
    )
    after = models.JSONField(
        _("run after"),
        default=dict,
        blank=True,
        help_text=_(
            'A JSON object of jobs and the outcome to wait for: "succeeded", "failed" or '
            '"ended". Example: {"import-orders": "succeeded"}. Use the schedule @never to run '
            "the job only then."
        ),
    )
    calendar = models.ForeignKey(
        Calendar,
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="jobs",
        verbose_name=_("calendar"),
        help_text=_("Calendar of the dates and times without runs. Empty: none are excluded."),
        error_messages={
            "invalid": _(
                "Unknown calendar '%(value)s'. Create it in the admin or with "
                "control.save_calendar."
            )
        },
    )
    calendar_policy = models.CharField(
        _("on excluded dates and times"),
        max_length=12,
        default=ExclusionPolicy.SKIP.value,
        choices=EXCLUSION_LABELS,
        help_text=_("What happens to occurrences on dates or at times that the calendar excludes."),
    )
    jitter = duration_field(
        0,
        verbose_name=_("jitter"),
        validators=FROM_ZERO,
        help_text=_(
            "Delays each run by a random time up to this value, so that jobs of the same minute "
            "don't all start at once."
        ),
    )

    enabled = models.BooleanField(
        _("enabled"), default=True, help_text=_("Clear the checkbox to pause the job.")
    )
    pause_reason = models.CharField(_("pause reason"), max_length=255, blank=True)
    paused_until = models.DateTimeField(
        _("paused until"),
        null=True,
        blank=True,
        help_text=_("The job resumes automatically at this time. Empty: until someone resumes it."),
    )

    misfire_policy = models.CharField(
        _("misfire policy"),
        max_length=12,
        default=MisfirePolicy.RUN_LATEST.value,
        choices=MISFIRE_LABELS,
        help_text=_(
            "What happens to occurrences that couldn't start in time, for example because of an "
            "outage."
        ),
    )
    misfire_grace = duration_field(
        60,
        verbose_name=_("misfire grace"),
        validators=FROM_ONE_SECOND,
        help_text=_("How late a run may start before the misfire policy applies."),
    )
    catchup_limit = models.PositiveIntegerField(
        _("catch-up limit"),
        default=100,
        validators=[MinValueValidator(1), MaxValueValidator(10_000)],
        help_text=_("Maximum number of missed occurrences that “Run all” runs, such as 100."),
    )
    overlap_policy = models.CharField(
        _("overlap policy"),
        max_length=16,
        default=OverlapPolicy.SKIP.value,
        choices=OVERLAP_LABELS,
        help_text=_("What happens to a new run while an earlier run is unfinished."),
    )
    limit = models.ForeignKey(
        Limit,
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="jobs",
        verbose_name=_("limit"),
        help_text=_(
            "Limit of the runs that may execute at once or start within an interval, shared with "
            "other jobs. Empty: no limit."
        ),
        error_messages={
            "invalid": _(
                "Unknown limit '%(value)s'. Create it in the admin, or with manage.py dcron limit."
            )
        },
    )
    start_deadline = optional_duration_field(
        _("start deadline"),
        help_text=_("How late a run may start under any policy. Empty: no limit."),
    )

    queue = models.CharField(
        _("queue"),
        max_length=120,
        blank=True,
        validators=[QUEUE],
        help_text=_(
            "Queue that the workers read, such as imports. Empty: the target's default queue."
        ),
    )
    priority = models.PositiveSmallIntegerField(
        _("priority"),
        null=True,
        blank=True,
        validators=[MaxValueValidator(9)],
        help_text=_(
            "A number from 0 to 9. RabbitMQ and Django tasks run 9 first, Redis runs 0 first. "
            "Empty: the target's priority."
        ),
    )
    timeout = optional_duration_field(
        _("timeout"), help_text=_("An attempt that takes longer is stopped. Empty: no limit.")
    )

    max_attempts = models.PositiveSmallIntegerField(
        _("maximum attempts"),
        default=1,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_ATTEMPTS)],
        help_text=_("How many times to try a run, including the first attempt, such as 3."),
    )
    retry_backoff = duration_field(
        10,
        verbose_name=_("retry backoff"),
        validators=FROM_ZERO,
        help_text=_("Wait before the second attempt."),
    )
    retry_backoff_factor = models.FloatField(
        _("backoff factor"),
        default=2.0,
        validators=[MinValueValidator(1.0), MaxValueValidator(100.0)],
        help_text=_("Each wait is this many times longer than the previous one, such as 2."),
    )
    retry_backoff_max = duration_field(
        3600,
        verbose_name=_("maximum backoff"),
        validators=FROM_ZERO,
        help_text=_("Upper limit of each wait."),
    )
    retry_jitter = models.FloatField(
        _("retry jitter"),
        default=0.1,
        validators=[MinValueValidator(0.0), MaxValueValidator(1.0)],
        help_text=_("Fraction by which each wait varies randomly, such as 0.1 for 10%."),
    )
    retry_on = json_list_field(
        _("retry on"),
        help_text=_(
            'A JSON list of exception names, such as ["ConnectionError"]. Empty: all exceptions.'
        ),
    )
    never_retry_on = json_list_field(
        _("never retry on"),
        help_text=_(
            'A JSON list of exception names that are never retried, such as ["ValueError"].'
        ),
    )
    pause_after_failures = models.PositiveIntegerField(
        _("auto-pause after failures"),
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text=_(
            "Number of consecutive failed runs after which the job is paused, such as 5. Empty: "
            "never."
        ),
    )
    alerts = models.JSONField(
        _("alerts"),
        null=True,
        blank=True,
        help_text=_(
            'A JSON list of alert rules, such as [{"on": "failed", "to": ["ops"]}]. Empty: the '
            "rules in DCRON_ALERTS. []: no alerts."
        ),
    )
    keep_for = optional_duration_field(
        _("keep runs for"),
        help_text=_("How long to keep finished runs. Empty: the DCRON_KEEP_FOR setting."),
    )
    keep_failed_for = optional_duration_field(
        _("keep failed runs for"),
        help_text=_("How long to keep failed runs. Empty: the DCRON_KEEP_FAILED_FOR setting."),
    )
    keep_runs = models.PositiveIntegerField(
        _("maximum runs to keep"),
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text=_(
            "How many finished runs to keep, such as 1000. Empty: the DCRON_KEEP_RUNS setting."
        ),
    )
    tags = json_list_field(
        _("tags"),
        help_text=_('A JSON list of tags, such as ["billing"].'),
    )

    class Meta:
        abstract = True
