"""Group the alerts of a list by cause. The database groups and counts them.

Invariants:

- Grouping applies to the alerts that the list's filters and search match, and that the user may
  see.
- The alerts of a job with the same event and the same incident are a group. So are alerts about the
  same node, about the same error of the health verdict, and about outages.
- A row links to the list of exactly the alerts that it counts.
- A page of groups takes one query that groups, one for the newest alerts of its groups and one for
  their jobs. No query joins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import PAGE_VAR
from django.core.paginator import InvalidPage
from django.db.models import Case, CharField, Count, F, Max, Min, QuerySet, Value, When
from django.db.models.functions import Left, Length
from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_dcron.admin.lists.base import ShortRowsChangeList
from django_dcron.admin.lists.bounded import BoundedPaginator
from django_dcron.diagnosis.bounded_count import MAX_COUNTED
from django_dcron.models import Alert
from django_dcron.policies.alerting import AlertKind

UNGROUPED = "ungrouped"
TIMESTAMP_LENGTH = len(":1234567890")
"""The end of the key of an alert about the health verdict: the time since which the error lasts."""
CAUSE_LOOKUPS = (
    "job__id__exact",
    "job__isnull",
    "incident__id__exact",
    "incident__isnull",
    "subject__exact",
    "key__startswith",
)
"""The parameters that list the alerts of a group, besides the event and ``UNGROUPED``."""


@dataclass(frozen=True, slots=True)
class AlertGroup:
    kind: str
    job: int | None
    incident: int | None
    cause: str
    """Without a job: the subject, or the error of the health verdict."""
    newest: int
    """The key of the newest alert."""
    number: int
    first: datetime
    sent: int
    pending: int
    first_channel: str
    last_channel: str
    """The first and the last channel in alphabetical order."""

    @property
    def given_up(self) -> int:
        return self.number - self.sent - self.pending

    @property
    def lookups(self) -> dict[str, str]:
        """The parameters that list the alerts of this group."""
        found = {UNGROUPED: "1", "kind__exact": self.kind}
        for name in ("job", "incident"):
            key = getattr(self, name)
            found |= {f"{name}__isnull": "1"} if key is None else {f"{name}__id__exact": str(key)}
        if self.job is None and self.kind == AlertKind.UNHEALTHY:
            found["key__startswith"] = f"{self.cause}:"
        elif self.job is None:
            found["subject__exact"] = self.cause
        return found


def group_alerts(alerts: QuerySet[Alert]) -> QuerySet[Alert, Any]:
    """Return the groups of the alerts, the one with the newest alert first."""
    cause = Case(
        When(job__isnull=False, then=Value("")),
        When(kind=AlertKind.UNHEALTHY, then=Left("key", Length("key") - TIMESTAMP_LENGTH)),
        default=F("subject"),
        output_field=CharField(),
    )
    groups: Any = (
        alerts.order_by().prefetch_related(None).values("kind", "job", "incident", cause=cause)
    )
    groups = groups.annotate(
        newest=Max("pk"),
        number=Count("pk"),
        first=Min("created_at"),
        sent=Count("sent_at"),
        pending=Count("try_at"),
        first_channel=Min("channel"),
        last_channel=Max("channel"),
    )
    newest_first: QuerySet[Alert, Any] = groups.order_by("-newest")
    return newest_first


class GroupingFilter(admin.SimpleListFilter):
    """Choose between one row per cause, the default, and one row per alert."""

    title = _("grouping")
    parameter_name = UNGROUPED

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("1", _("One row per alert"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Alert]) -> QuerySet[Alert]:
        return queryset

    def choices(self, changelist: Any) -> Iterator[Any]:
        grouped, *others = super().choices(changelist)
        query = changelist.get_query_string(remove=[UNGROUPED, *CAUSE_LOOKUPS])
        yield {**grouped, "query_string": query, "display": _("One row per cause")}
        yield from others


def is_grouped(request: HttpRequest) -> bool:
    return request.GET.get(UNGROUPED) != "1"


class GroupPaginator(BoundedPaginator):
    """Paginate loaded groups: up to ``MAX_COUNTED``, and one more if there are more."""

    @cached_property
    def _count_beyond_limit(self) -> int:
        return len(self.object_list)


class AlertChangeList(ShortRowsChangeList):
    """A list of alerts, or of groups. The row of a group is its newest alert, with the group."""

    def get_results(self, request: HttpRequest) -> None:
        self.is_grouped = is_grouped(request)
        if self.is_grouped:
            self._read_groups()
        else:
            self.queryset = self.queryset.defer("text")
            super().get_results(request)

    def _read_groups(self) -> None:
        """Set what Django's method sets, without a query that only counts: it would group again."""
        groups: Any = list(group_alerts(self.queryset)[: MAX_COUNTED + 1])
        self.paginator = GroupPaginator(groups, self.list_per_page)
        self.result_count = self.paginator.count
        self.full_result_count = None
        self.show_full_result_count = self.show_admin_actions = self.can_show_all = False
        self.multi_page = self.result_count > self.list_per_page
        try:
            rows = self.paginator.page(self.page_num).object_list
        except InvalidPage as error:
            raise IncorrectLookupParameters from error
        self.result_list: Any = self._newest_alerts([AlertGroup(**row) for row in rows])

    def _newest_alerts(self, groups: list[AlertGroup]) -> list[Any]:
        rows = Alert.objects.prefetch_related("job").defer("text")
        alerts: dict[int, Any] = rows.in_bulk([group.newest for group in groups])
        for group in groups:
            if group.newest in alerts:  # otherwise, it was just pruned
                alerts[group.newest].group = group
        return [alerts[group.newest] for group in groups if group.newest in alerts]

    def url_for_result(self, result: Any) -> str:
        if not self.is_grouped or result.group.number == 1:
            return super().url_for_result(result)
        return self.get_query_string(result.group.lookups, remove=[PAGE_VAR])

    @property
    def note(self) -> str:
        """Link from the alerts of a group to all groups."""
        if self.is_grouped or not any(name in self.params for name in CAUSE_LOOKUPS):
            return ""
        url = self.get_query_string(remove=[UNGROUPED, PAGE_VAR, "kind__exact", *CAUSE_LOOKUPS])
        text = gettext("Show all causes")
        return format_html('<p class="dcron-list-note"><a href="{}">{}</a></p>', url, text)
