"""Validators, choices and limits of the fields of a job."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.utils.translation import gettext_lazy as _

from django_dcron.models.hidden_characters import NameValidator
from django_dcron.policies.misfire import MisfirePolicy
from django_dcron.policies.overlap import OverlapPolicy
from django_dcron.schedules.calendar import ExclusionPolicy

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

NAME = NameValidator(
    r"^[\w.@:-]+(?: [\w.@:-]+)*\Z",
    _("Use only letters, digits, _ . - @ : and single spaces."),
)
QUEUE = RegexValidator(
    r"\A[!-~]+\Z",
    _("“%(value)s” isn't a valid queue name. Use printable ASCII characters without spaces."),
)
"""AMQP refuses other names, and a refused name also fails the other messages of its batch."""

MAX_DURATION = MaxValueValidator(timedelta(days=36_500), _("Use at most 36500d."))
"""The limit for all durations of a job. With longer ones, date arithmetic overflows."""
FROM_ZERO = [MinValueValidator(timedelta(), _("Use at least 0s.")), MAX_DURATION]
FROM_ONE_SECOND = [MinValueValidator(timedelta(seconds=1), _("Use at least 1s.")), MAX_DURATION]

EXCLUSION_LABELS = [
    (ExclusionPolicy.SKIP.value, _("Skip")),
    (
        ExclusionPolicy.NEXT_DAY.value,
        _("Move to the next date that isn't excluded"),
    ),
    (ExclusionPolicy.WINDOW_END.value, _("Run once when the excluded time ends")),
]
MISFIRE_LABELS = [
    (MisfirePolicy.SKIP.value, _("Skip: record as missed")),
    (MisfirePolicy.RUN_LATEST.value, _("Run latest: the others count as missed")),
    (MisfirePolicy.RUN_ALL.value, _("Run all: oldest first, up to the catch-up limit")),
]
OVERLAP_LABELS = [
    (OverlapPolicy.ALLOW.value, _("Allow: run in parallel")),
    (OverlapPolicy.SKIP.value, _("Skip the new run")),
    (OverlapPolicy.QUEUE_ONE.value, _("Queue one, skip the others")),
    (OverlapPolicy.QUEUE_ALL.value, _("Queue all, run in order")),
    (OverlapPolicy.CANCEL_RUNNING.value, _("Cancel the earlier run")),
]


def duration_field(seconds: int, **options: Any) -> models.DurationField[Any, Any]:
    return models.DurationField(default=timedelta(seconds=seconds), **options)


def optional_duration_field(
    verbose_name: StrOrPromise, *, help_text: StrOrPromise
) -> models.DurationField[Any, timedelta | None]:
    return models.DurationField(
        verbose_name, null=True, blank=True, validators=FROM_ONE_SECOND, help_text=help_text
    )


def json_list_field(
    verbose_name: StrOrPromise, *, help_text: StrOrPromise
) -> models.JSONField[Any, Any]:
    return models.JSONField(verbose_name, default=list, blank=True, help_text=help_text)
