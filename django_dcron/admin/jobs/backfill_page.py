"""The backfill page of a job: the user previews the runs, then creates them.

Invariants:

- Neither opening the page nor the preview creates a run.
- The second form creates the runs that the preview showed. Occurrences that have got a run in the
  meantime are omitted.
- The second form contains the job's version and the end of the previewed range, so that it can't
  create other runs.
"""

from __future__ import annotations

import shlex
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied, ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseNotAllowed,
    HttpResponseRedirect,
)
from django.utils import translation
from django.utils.html import format_html
from django.utils.timezone import get_current_timezone_name, localtime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_dcron import control
from django_dcron.admin.action_forms import InstantField, ObjectActionForm
from django_dcron.admin.display import change_url, list_url, may_view
from django_dcron.admin.jobs.page import schedule_zone_name
from django_dcron.admin.visibility import visible_node_cautions
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.start_caution import backfill_cautions
from django_dcron.exceptions import InvalidValue, TranslatableError
from django_dcron.jobs.action_texts import backfilled_text
from django_dcron.jobs.backfill import DEFAULT_LIMIT, MAX_LIMIT, Backfill
from django_dcron.models import Job, Run
from django_dcron.utils.time_format import format_site_time

if TYPE_CHECKING:
    from django_dcron.admin.jobs.admin import JobAdmin

PREVIEWED_AT_ENDS = 5
"""How many of the first and of the last occurrences the preview shows."""
SECOND = timedelta(seconds=1)
TITLE = gettext_lazy("Backfill")
URL_NAME = "django_dcron_job_backfill"
OUTDATED = gettext_lazy(
    "The job was changed after the preview, so no runs were created. The preview now "
    "shows the changed job."
)


class LocalTimeInput(forms.DateTimeInput):
    """The browser's date and time input, with seconds."""

    input_type = "datetime-local"

    def __init__(self) -> None:
        super().__init__({"step": "1"}, format="%Y-%m-%dT%H:%M:%S")


class BackfillForm(ObjectActionForm):
    start = InstantField(label=gettext_lazy("From"), widget=LocalTimeInput())
    end = InstantField(label=gettext_lazy("Until (exclusive)"), widget=LocalTimeInput())
    limit = forms.IntegerField(
        label=gettext_lazy("Limit"),
        initial=DEFAULT_LIMIT,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_LIMIT)],
        help_text=gettext_lazy(
            "The maximum number of runs to create, such as 100. Backfill again to create the rest."
        ),
    )
    version = forms.IntegerField(required=False, widget=forms.HiddenInput)
    """The version of the job in the preview."""
    previewed_until = InstantField(required=False, widget=forms.HiddenInput)
    """The preview showed the occurrences before this time."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        for name in ("start", "end"):
            self.fields[name].help_text = _("Time zone: %(zone)s") % {
                "zone": get_current_timezone_name()
            }

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        start, end = cleaned.get("start"), cleaned.get("end")
        if start and end and start >= end:
            text = _("The end must be after the start.")
            self.add_error("end", ValidationError(text, code="end_not_after_start"))
        elif start and start >= database_now(alias_for(Run)):
            text = _("This time is in the future. Enter a past time.")
            self.add_error("start", ValidationError(text, code="future"))
        return cleaned

    def add_backfill_error(self, error: TranslatableError) -> None:
        """Add an error of ``control.backfill`` to its field, or to the form if it has none."""
        if isinstance(error, InvalidValue) and error.field in self.fields:
            self.add_error(error.field, error.problem.translate(translation))
        elif error.code == "pruned":  # the error names options that this form doesn't have
            text = _(
                "The runs before %(kept)s were pruned, so it's unknown which of these occurrences "
                "ran. Start at %(start)s, or run all of them with: %(command)s"
            )
            kept = datetime.fromisoformat(str(error.params["kept"]))
            kept += timedelta(microseconds=-kept.microsecond % 1_000_000)  # the form has seconds
            params = {
                "kept": format_site_time(kept),
                "start": f"{_first_input(kept):%Y-%m-%d %H:%M:%S}",
                "command": self._command_over_pruned(),
            }
            self.add_error("start", ValidationError(text, code="pruned", params=params))
        else:
            self.add_error(None, error.translate(translation))

    def _command_over_pruned(self) -> str:
        start, end = (self.cleaned_data[name].isoformat() for name in ("start", "end"))
        limit = str(self.cleaned_data["limit"])
        options = ("--limit", limit, "--over-pruned")
        return shlex.join(["manage.py", "dcron", "backfill", str(self.row), start, end, *options])


def _first_input(instant: datetime) -> datetime:
    """Return the first local time at ``instant`` or later that the form accepts.

    The form refuses times that the site's clocks show twice.
    """
    local = localtime(instant)
    while local.replace(fold=0).utcoffset() != local.replace(fold=1).utcoffset():
        local = localtime(local.astimezone(UTC) + SECOND)
    return local


class BackfillPreview:
    """The template's data for a planned backfill."""

    def __init__(self, planned: Backfill, form: BackfillForm, job: Job):
        self.planned = planned
        self.count = len(planned.occurrences)
        self.cautions = backfill_cautions(job) if self.count else []
        self.first = planned.occurrences[:PREVIEWED_AT_ENDS]
        self.last = planned.occurrences[max(self.count - PREVIEWED_AT_ENDS, PREVIEWED_AT_ENDS) :]
        self.omitted = self.count - len(self.first) - len(self.last)
        self.zone = schedule_zone_name(job)
        self.hidden_fields = {
            "start": form.cleaned_data["start"].isoformat(),
            "end": planned.until.isoformat(),
            "limit": str(form.cleaned_data["limit"]),
            "version": str(job.version),
            "previewed_until": (planned.continue_from or planned.until).isoformat(),
            "create": "1",
        }


def backfill_view(model_admin: JobAdmin, request: HttpRequest, object_id: str) -> HttpResponse:
    if not model_admin.may_backfill(request):
        raise PermissionDenied
    if request.method not in ("GET", "HEAD", "POST"):
        return HttpResponseNotAllowed(["GET", "HEAD", "POST"])
    job = model_admin.get_object(request, unquote(object_id))
    if job is None:
        raise Http404
    if not model_admin.may_backfill(request, job):
        raise PermissionDenied
    if request.method != "POST":
        return _page(model_admin, request, job, BackfillForm(row=job, initial=_initial(request)))
    form, backfill = BackfillForm(request.POST, row=job), None
    if form.is_valid():
        is_confirmed = "create" in request.POST
        is_current = form.cleaned_data["version"] == job.version
        create = is_confirmed and is_current
        try:
            backfill = control.backfill(
                job, **_range(form, as_previewed=create), dry_run=not create
            )
        except TranslatableError as error:
            form.add_backfill_error(error)
        else:
            if create:
                return _created_response(model_admin, request, job, backfill, form)
            if is_confirmed:
                form.add_error(None, ValidationError(OUTDATED, code="outdated"))
    preview = BackfillPreview(backfill, form, job) if backfill else None
    return _page(model_admin, request, job, form, preview)


def _initial(request: HttpRequest) -> dict[str, Any]:
    """Return initial values from the query string.

    Invalid values are kept, and fail when the user submits the form.
    """
    values = {name: request.GET[name] for name in ("start", "end", "limit") if name in request.GET}
    return {"end": database_now(alias_for(Run)).replace(microsecond=0), **_parse_values(values)}


def _parse_values(values: dict[str, str]) -> dict[str, Any]:
    """Parse values of the query string, so that times are shown in the site's time zone."""
    fields = BackfillForm.base_fields
    parsed: dict[str, Any] = {}
    for name, text in values.items():
        try:
            parsed[name] = fields[name].clean(text)
        except forms.ValidationError:
            parsed[name] = text
    return parsed


def _range(form: BackfillForm, *, as_previewed: bool) -> dict[str, Any]:
    values = {name: form.cleaned_data[name] for name in ("start", "end", "limit")}
    if as_previewed and (previewed_until := form.cleaned_data["previewed_until"]):
        values["end"] = min(values["end"], previewed_until)
    return values


def _page(
    model_admin: JobAdmin,
    request: HttpRequest,
    job: Job,
    form: BackfillForm,
    preview: BackfillPreview | None = None,
) -> HttpResponse:
    site = model_admin.admin_site
    context = {
        "title": TITLE,
        "subtitle": str(job),
        "original": job,
        "back": change_url(job, site),
        "form": form,
        "preview": preview,
        "is_paused": job.is_paused,
        "node_cautions": visible_node_cautions(job, request, site) if preview else [],
    }
    return model_admin.render_page(request, "job/backfill.html", context)


def _created_response(
    model_admin: JobAdmin, request: HttpRequest, job: Job, created: Backfill, form: BackfillForm
) -> HttpResponse:
    site = model_admin.admin_site
    if not created.occurrences:
        model_admin.message_user(
            request, _("No runs were created because they all exist already."), messages.WARNING
        )
    else:
        text = backfilled_text(created)
        model_admin.message_user(request, f"“{job}”: {text}", messages.SUCCESS)
    continue_from = created.continue_from or form.cleaned_data["previewed_until"]
    end = form.cleaned_data["end"]
    if continue_from and continue_from < end:
        query = urlencode({"start": continue_from.isoformat(), "end": end.isoformat()})
        text = format_html('<a href="{}?{}">{}</a>', request.path, query, _("Backfill the rest"))
        model_admin.message_user(request, text, messages.INFO)
    if not may_view(request, Run, site):
        return HttpResponseRedirect(change_url(job, site))
    return HttpResponseRedirect(
        list_url(Run, site, job__id__exact=str(job.pk), trigger__exact="backfill")
    )
