"""A filter by time: today, the last hours or days, or an exact range in the site's time zone."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from django.contrib.admin import ListFilter
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import SEARCH_VAR, ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.timezone import is_naive, localtime, make_aware
from django.utils.translation import gettext_lazy as _

from django_dcron.admin.display import site_of
from django_dcron.admin.lists.filters import other_parameters
from django_dcron.admin.lists.text_filter import REASON_LOOKUP
from django_dcron.admin.visibility import admin_scope
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.run_ids import id_range_in
from django_dcron.models import Attempt, Run
from django_dcron.policies.lifecycle import UNFINISHED
from django_dcron.schedules.timetable import BEGIN, END

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

PRESET = "when"
SPANS = {"1h": timedelta(hours=1), "24h": timedelta(hours=24), "7d": timedelta(days=7)}
PRESET_LABELS = [
    ("today", _("Today")),
    ("1h", _("Last hour")),
    ("24h", _("Last 24 hours")),
    ("7d", _("Last 7 days")),
]
YEARS = range(BEGIN.year, END.year)
"""Outside these years, a time zone or ``ORDER_TOLERANCE`` could overflow ``datetime``."""
RUNS_SEARCHED = 100_000
ATTEMPTS_SEARCHED = 100_000
ORDER_TOLERANCE = timedelta(minutes=1)
"""The maximum difference between the order of attempts by start and their order by key."""


class TimeRange(NamedTuple):
    """A range with an inclusive start and an exclusive end, each None if it's open."""

    since: datetime | None
    until: datetime | None


class TimeInput(NamedTuple):
    """An input of the form for a custom range."""

    name: str
    label: StrOrPromise
    value: str


class TimeFilter(ListFilter):
    """Filter runs by occurrence, in the order of an index.

    No index covers the trigger or the reason of a run. If one of them is chosen, the list searches
    only the ``RUNS_SEARCHED`` latest runs before the end of the range. Runs scheduled at the same
    time as the oldest of them are included. A filter by one job or by an unfinished state removes
    this limit, because an index finds the matching runs. A filter by reason keeps the limit for one
    job, too, because a job may have millions of runs.
    """

    title = _("time")
    template = "admin/django_dcron/time_filter.html"
    column = "scheduled_at"
    parameter_name = PRESET
    """Not used here. Themes such as django-unfold read it from each filter."""

    def __init__(self, request: HttpRequest, params: Any, model: Any, model_admin: Any):
        super().__init__(request, params, model, model_admin)
        self.model = model
        self.since_name, self.until_name = f"{self.column}__gte", f"{self.column}__lt"
        self.others: list[tuple[str, str]] = []
        """The other filters, which the form submits again."""
        for name in self.expected_parameters():
            if name in params:
                self.used_parameters[name] = params.pop(name)[-1]
        since, until = (
            self.used_parameters.get(name) for name in (self.since_name, self.until_name)
        )
        self.custom_range = TimeRange(_parse_time(since), _parse_time(until))

    def expected_parameters(self) -> list[Any]:
        return [PRESET, self.since_name, self.until_name]

    def has_output(self) -> bool:
        return True

    @property
    def is_filled_in(self) -> bool:
        return self.custom_range != TimeRange(None, None)

    @cached_property
    def bounds(self) -> TimeRange:
        """The range of the chosen preset, or the custom range."""
        preset = self.used_parameters.get(PRESET)
        if preset in SPANS:
            now = database_now(alias_for(self.model))
            return TimeRange(now - SPANS[preset], now)
        if preset == "today":
            now = localtime(database_now(alias_for(self.model)))
            midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
            return TimeRange(midnight, midnight + timedelta(days=1))  # in wall-clock time
        return self.custom_range

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return self.within(self.searched_rows(request, queryset))

    def searched_rows(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Limit the rows that the list searches, if no index supports the other filters."""
        parameters = request.GET
        by_trigger = "trigger__exact" in parameters and "job__id__exact" not in parameters
        by_reason = bool(parameters.get(REASON_LOOKUP))
        if not (by_trigger or by_reason) or parameters.get("state__exact") in UNFINISHED:
            return queryset
        until = self.custom_range.until
        runs = Run.objects.filter(scheduled_at__lt=until) if until else Run.objects.all()
        latest = runs.order_by("-scheduled_at", "-pk").values_list("scheduled_at", flat=True)
        last = latest[RUNS_SEARCHED - 1 : RUNS_SEARCHED].first()
        return queryset.filter(scheduled_at__gte=last) if last else queryset

    def within(self, queryset: QuerySet[Any]) -> QuerySet[Any]:
        since, until = self.bounds
        bounds = {self.since_name: since, self.until_name: until}
        return queryset.filter(**{name: at for name, at in bounds.items() if at is not None})

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        own = self.expected_parameters()
        self.others = other_parameters(changelist, own)
        preset = self.used_parameters.get(PRESET)
        yield {
            "selected": preset is None and not self.is_filled_in,
            "query_string": changelist.get_query_string(remove=own),
            "display": _("Any time"),
        }
        for value, label in PRESET_LABELS:
            yield {
                "selected": preset == value,
                "query_string": changelist.get_query_string({PRESET: value}, remove=own),
                "display": label,
            }

    @property
    def inputs(self) -> list[TimeInput]:
        """The inputs of the range."""
        since, until = (_format_time(at) for at in self.custom_range)
        return [
            TimeInput(self.since_name, _("From"), since),
            TimeInput(self.until_name, _("Before"), until),
        ]


class AttemptTimeFilter(TimeFilter):
    """Filter attempts by start, which has no index.

    Keys ascend with the start. The list covers only the ``ATTEMPTS_SEARCHED`` latest attempts
    before the end of the range. A search for a run removes this limit, because an index finds its
    attempts.
    """

    column = "started_at"

    def searched_rows(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        runs = admin_scope(request, site_of(request)).runs
        if id_range_in(runs, request.GET.get(SEARCH_VAR, "")):
            return queryset
        last = Attempt.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
        until = self.custom_range.until
        if until is not None:
            last = _last_started_before(until + ORDER_TOLERANCE, last)
        return queryset.filter(pk__gt=last - ATTEMPTS_SEARCHED, pk__lte=last)


def _last_started_before(limit: datetime, last: int) -> int:
    """Return the greatest key of an attempt that started before ``limit``, or 0 without one.

    A binary search reads one row per step.
    """
    low, high = 0, last
    while low < high:
        middle = (low + high + 1) // 2
        rows = Attempt.objects.filter(pk__gte=middle).order_by("pk")
        row = rows.values_list("pk", "started_at").first()
        if row is not None and row[1] < limit:
            low = row[0]
        else:
            high = middle - 1
    return low


def _parse_time(text: Any) -> datetime | None:
    """Parse a date, with or without a time, in the site's time zone unless it names an offset."""
    if not text:
        return None
    try:
        at = datetime.fromisoformat(text)
        if at.year not in YEARS:
            raise ValueError(f"{text!r} is out of range (allowed: years {YEARS[0]} to {YEARS[-1]})")
        return (make_aware(at) if is_naive(at) else at).astimezone(UTC)
    except ValueError as error:
        raise IncorrectLookupParameters(error) from error


def _format_time(at: datetime | None) -> str:
    """Format the time as the value of an ``<input type="datetime-local">``."""
    if at is None:
        return ""
    return (
        localtime(at).replace(tzinfo=None).isoformat(timespec="seconds" if at.second else "minutes")
    )
