"""Filter runs by a text in the logs of their attempts, and show the line with the text.

Invariants:

- The list searches within all other filters, so it applies this filter last.
- Only users who may view attempts have the filter. For others, its parameter is invalid.
- The page says how many runs were searched, and links to the search of older runs.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import PAGE_VAR, SEARCH_VAR
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_dcron.admin.display import may_view
from django_dcron.admin.lists.base import ShortRowsChangeList
from django_dcron.admin.lists.confirmation import SELECT_ACROSS
from django_dcron.admin.lists.lookups import check_value
from django_dcron.admin.lists.text_filter import TextFilter
from django_dcron.admin.runs.attempt_texts import matching_lines_url
from django_dcron.admin.visibility import admin_scope
from django_dcron.diagnosis.log_search import (
    LogSearch,
    RunPosition,
    runs_older_than,
    search_logs,
)
from django_dcron.models import Attempt, Run

LOG_TEXT = "log"
OLDER_THAN = "log_before"
"""The parameter with the oldest run of the previous search, after which the search continues."""


class LogFilter(TextFilter):
    """The input for the text. ``RunChangeList`` searches the logs."""

    title = _("log")
    parameter_name = LOG_TEXT

    def __init__(self, request: HttpRequest, params: Any, model: Any, model_admin: Any):
        super().__init__(request, params, model, model_admin)
        self.older_than = _parse_position(params.pop(OLDER_THAN, [""])[-1])

    def expected_parameters(self) -> list[Any]:
        return [LOG_TEXT, OLDER_THAN]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset


def is_action_on_ticked_rows(request: HttpRequest) -> bool:
    """Return whether the request applies an action to rows that the user has ticked.

    By then, newer runs may have moved these rows out of the search.
    """
    ticked = request.POST.getlist(ACTION_CHECKBOX_NAME)
    takes_all = request.POST.get(SELECT_ACROSS, "").lower() not in ("", "0", "false")
    return bool(ticked) and not takes_all


class RunChangeList(ShortRowsChangeList):
    """The list of runs, which searches the logs of the runs that all filters match."""

    log_search: LogSearch | None = None
    log_filter: LogFilter

    def get_queryset(self, request: HttpRequest, *args: Any, **options: Any) -> QuerySet[Run]:
        rows: QuerySet[Run] = super().get_queryset(request, *args, **options)
        spec = self._spec()
        if spec is None or not spec.text or is_action_on_ticked_rows(request):
            return rows
        if spec.older_than is not None:
            rows = runs_older_than(rows, spec.older_than)
        scope = admin_scope(request, self.model_admin.admin_site)
        self.log_filter, self.log_search = spec, search_logs(rows, spec.text, scope)
        return rows.filter(pk__in=list(self.log_search.matches))

    @property
    def note(self) -> str:
        """Say which runs were searched. The template shows the note above the rows."""
        search = self.log_search
        if search is None:
            return self._suggestion()
        context: dict[str, Any] = {"search": search}
        if search.more and search.oldest:
            older = {OLDER_THAN: _format_position(search.oldest)}
            context["older_url"] = self.get_query_string(older, remove=[PAGE_VAR])
        if self.log_filter.older_than is not None:
            context["newest_url"] = self.get_query_string(remove=[OLDER_THAN, PAGE_VAR])
        return render_to_string("admin/django_dcron/run/log_search.html", context)

    def _suggestion(self) -> str:
        """Suggest searching the logs for a text that isn't in the name of a job."""
        if not self.query or self.result_count or self._spec() is None:
            return ""
        url = self.get_query_string({LOG_TEXT: self.query}, remove=[SEARCH_VAR, PAGE_VAR])
        text = gettext("Search the logs for “%(text)s”") % {"text": self.query}
        return format_html('<p class="dcron-list-note"><a href="{}">{}</a></p>', url, text)

    def _spec(self) -> LogFilter | None:
        return next((each for each in self.filter_specs if isinstance(each, LogFilter)), None)

    def render_log_line(self, run: Any) -> str:
        """Render the first line of the run's log that contains the text."""
        match = self.log_search.matches.get(run.pk) if self.log_search else None
        if match is None:
            return ""
        url = matching_lines_url(
            match.attempt_id, self.log_filter.text, self.model_admin.admin_site
        )
        context = {"match": match, "url": url, "attempts": run.attempt}
        return render_to_string("admin/django_dcron/run/log_line.html", context)


def searches_logs(request: HttpRequest, site: Any) -> bool:
    return bool(request.GET.get(LOG_TEXT, "").strip()) and may_view(request, Attempt, site)


def _format_position(position: RunPosition) -> str:
    return f"{position.scheduled_at.isoformat()},{position.run_id}"


def _parse_position(text: str) -> RunPosition | None:
    if not text:
        return None
    try:
        time, _comma, run_id = text.partition(",")
        check_value(Run._meta.get_field("scheduled_at"), time)
        at = datetime.fromisoformat(time)
        if at.tzinfo is None:
            raise ValueError(f"{time!r} has no time zone")
        return RunPosition(at, UUID(run_id))
    except (ValueError, OverflowError, ValidationError) as error:
        raise IncorrectLookupParameters(error) from error
