"""Export the selected rows of a list, or all rows that match its filters, as CSV or JSON.

Invariants:

- Memory is bounded. The export loads up to ``MAX_ROWS`` keys, then ``CHUNK_SIZE`` rows at a time.
- No database cursor stays open while a slow client reads. Rows deleted meanwhile are omitted.
- The file name marks an incomplete export, and so does ``"complete": false`` in JSON.
- Spreadsheets interpret no CSV cell as a formula. JSON contains the values as they are.
- Times are ISO 8601 in UTC. Durations of runs are in seconds.
- The fields of jobs are those of ``jobs.representation``.

django-import-export isn't used: its tablib keeps the whole file in memory, and its import saves
rows without ``control``.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseRedirect,
    StreamingHttpResponse,
)
from django.urls import URLPattern, path, reverse
from django.utils.timezone import now
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_safe

from django_dcron.admin.base import M
from django_dcron.admin.display import list_url
from django_dcron.admin.lists.base import ListAdmin
from django_dcron.utils.batches import in_batches
from django_dcron.utils.csv_cells import csv_cell

if TYPE_CHECKING:
    from django.http.response import HttpResponseBase
    from django_stubs_ext import StrOrPromise

MAX_ROWS = 100_000
CHUNK_SIZE = 500

ExportColumn = tuple[str, Callable[[Any], Any]]
"""The name of the column, and a function that reads its value from a row."""


def fields_of(model: type[Model], *names: str) -> list[ExportColumn]:
    def reader(name: str) -> Callable[[Any], Any]:
        return lambda row: getattr(row, name)

    return [(name, reader(name)) for name in names]


class ExportedAdmin(ListAdmin[M]):
    exported: Sequence[ExportColumn] = ()
    export_links: Sequence[tuple[str, StrOrPromise]] = (
        ("csv", gettext_lazy("Export CSV")),
        ("json", gettext_lazy("Export JSON")),
    )
    """The formats of the list's links, with their labels."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(require_safe(self.export_view))
        return [path("export/<slug:kind>/", view, name=self._export_url_name), *super().get_urls()]

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        filters = request.GET.copy()
        filters.pop("p", None)  # the export covers all pages
        links = [
            (label, f"{self._export_url(kind)}?{filters.urlencode()}")
            for kind, label in self.export_links
        ]
        return super().changelist_view(request, {"exports": links} | (extra_context or {}))

    def export_view(self, request: HttpRequest, kind: str) -> HttpResponseBase:
        """Export the list with its filters and its search."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        if all(kind != each for each, _label in self.export_links):
            raise Http404
        try:
            changelist = self.get_changelist_instance(request)
        except IncorrectLookupParameters:
            return HttpResponseRedirect(list_url(self.model, self.admin_site, e="1"))
        more = self.has_unsearched_rows(changelist)
        return self.export(request, changelist.queryset, kind, more=more)

    def has_unsearched_rows(self, changelist: ChangeList) -> bool:
        """Return whether more rows may match the filters than those of the list."""
        return False

    def export(
        self, request: HttpRequest, rows: QuerySet[M], kind: str, *, more: bool = False
    ) -> StreamingHttpResponse:
        """Export ``rows``. ``more``: mark the export as incomplete in any case."""
        keys = list(rows.values_list("pk", flat=True)[: MAX_ROWS + 1])
        complete = len(keys) <= MAX_ROWS and not more
        del keys[MAX_ROWS:]
        name = str(self.model._meta.model_name)
        content_type, write = WRITERS[kind]
        lines = write(f"{name}s", self.exported, self._in_chunks(request, keys), complete)
        suffix = "" if complete else f"-first-{len(keys)}"
        file = f"dcron-{name}s{suffix}-{now().astimezone(UTC):%Y%m%dT%H%M%SZ}.{kind}"
        disposition = {"Content-Disposition": f'attachment; filename="{file}"'}
        return StreamingHttpResponse(lines, content_type=content_type, headers=disposition)

    def _in_chunks(self, request: HttpRequest, keys: list[Any]) -> Iterator[M]:
        """Yield the rows in the order of the list, chunk by chunk."""
        rows = self.exported_rows(request)
        for chunk in in_batches(keys, CHUNK_SIZE):
            rows_by_key = {row.pk: row for row in rows.filter(pk__in=chunk)}
            yield from (rows_by_key[key] for key in chunk if key in rows_by_key)

    def exported_rows(self, request: HttpRequest) -> QuerySet[M]:
        """Return the rows with everything that the columns in ``exported`` read."""
        return self.get_queryset(request).order_by()

    def _export_url(self, kind: str) -> str:
        return reverse(
            f"admin:{self._export_url_name}", args=[kind], current_app=self.admin_site.name
        )

    @property
    def _export_url_name(self) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_export"


@admin.action(description=gettext_lazy("Export as CSV"), permissions=["view"])
def export_csv(
    model_admin: ExportedAdmin[Any], request: HttpRequest, rows: QuerySet[Any]
) -> HttpResponseBase:
    return model_admin.export(request, rows, "csv")


@admin.action(description=gettext_lazy("Export as JSON"), permissions=["view"])
def export_json(
    model_admin: ExportedAdmin[Any], request: HttpRequest, rows: QuerySet[Any]
) -> HttpResponseBase:
    return model_admin.export(request, rows, "json")


@admin.action(description=gettext_lazy("Export as JSON lines"), permissions=["view"])
def export_lines(
    model_admin: ExportedAdmin[Any], request: HttpRequest, rows: QuerySet[Any]
) -> HttpResponseBase:
    return model_admin.export(request, rows, "jsonl")


EXPORTS = [export_csv, export_json]
JSON_LINES_EXPORTS = [export_csv, export_lines]
JSON_LINES_LINKS = (
    ("csv", gettext_lazy("Export CSV")),
    ("jsonl", gettext_lazy("Export JSON lines")),
)


class _PassThroughFile:
    """A file for ``csv.writer`` whose ``write`` returns the text."""

    def write(self, text: str) -> str:
        return text


def _write_csv(
    name: str, columns: Sequence[ExportColumn], rows: Iterable[Any], complete: bool
) -> Iterator[str]:
    writer: Any = csv.writer(_PassThroughFile())
    yield writer.writerow([title for title, _read in columns])
    for row in rows:
        yield writer.writerow([csv_cell(_json_value(read(row))) for _title, read in columns])


def _write_json(
    name: str, columns: Sequence[ExportColumn], rows: Iterable[Any], complete: bool
) -> Iterator[str]:
    yield f'{{"complete": {json.dumps(complete)}, "{name}": ['
    separator = "\n"
    for row in rows:
        values = {title: _json_value(read(row)) for title, read in columns}
        yield separator + json.dumps(values, ensure_ascii=False, default=str)
        separator = ",\n"
    yield "\n]}\n"


def _write_lines(
    name: str, columns: Sequence[ExportColumn], rows: Iterable[Any], complete: bool
) -> Iterator[str]:
    for row in rows:
        values = {title: _json_value(read(row)) for title, read in columns}
        yield json.dumps(values, ensure_ascii=False, default=str) + "\n"


WRITERS = {
    "csv": ("text/csv; charset=utf-8", _write_csv),
    "json": ("application/json", _write_json),
    "jsonl": ("application/jsonl", _write_lines),
}


def _json_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
        return int(seconds) if seconds.is_integer() else seconds
    return value
