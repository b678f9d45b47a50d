"""The admin of jobs: their list, form and actions. Every write goes through ``control``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from django.contrib import admin
from django.core.exceptions import ValidationError
from django.core.paginator import Page
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.timezone import get_current_timezone_name
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_safe

from django_dcron import control, targets
from django_dcron.admin.actions import (
    OTHER_ARGUMENTS,
    ActionAdmin,
    as_list_action,
)
from django_dcron.admin.audit_log import LogLine
from django_dcron.admin.conflicts import VersionedAdmin, needs_save
from django_dcron.admin.display import (
    EMPTY,
    breakable,
    render_muted,
    render_time,
    state_badge,
    time_in_zone,
)
from django_dcron.admin.jobs import (
    backfill_page,
    deletion,
    list_row,
    palette,
    preset_links,
    restore_page,
    revert_page,
)
from django_dcron.admin.jobs.countdown import countdown_texts, time_until
from django_dcron.admin.jobs.form import JobForm
from django_dcron.admin.jobs.form_tabs import FIELDSETS
from django_dcron.admin.jobs.job_actions import ACTIONS, NOT_VISIBLE
from django_dcron.admin.jobs.page import (
    JobPage,
    JobViewsAdmin,
    job_state_badges,
    pause_note,
    schedule_in_words,
    schedule_zone_name,
)
from django_dcron.admin.jobs.preview import PreviewedAdmin
from django_dcron.admin.lists.base import rows_to_show
from django_dcron.admin.lists.export import EXPORTS, ExportedAdmin
from django_dcron.admin.lists.facets import (
    FacetChangeList,
    JobStateFacet,
    LastOutcomeFacet,
    NamespaceFacet,
    TagFacet,
)
from django_dcron.admin.lists.filters import (
    QueueFilter,
    SourceFilter,
    TargetKindFilter,
    titled_filter,
)
from django_dcron.admin.lists.saved_filters import SavedFiltersAdmin
from django_dcron.admin.object_action import Button
from django_dcron.admin.row_input import RowInputs
from django_dcron.admin.visibility import admin_scope, without_deleted_jobs
from django_dcron.db import clock
from django_dcron.diagnosis.job_state import next_run_of, problem_of, statistics_of
from django_dcron.diagnosis.lookahead import translate_problem
from django_dcron.jobs import sync
from django_dcron.jobs.representation import JOB_FIELDS, DocumentField
from django_dcron.jobs.reverting import fields_changed_later
from django_dcron.models import AuditEntry, Job

TAGS_SHOWN = 5
ARGUMENTS = ("args", "kwargs")


def _redacted(field: DocumentField, job: Job) -> Any:
    return field.redacted(field.json_of(job))


@admin.register(Job)
class JobAdmin(
    VersionedAdmin[Job],
    JobViewsAdmin,
    PreviewedAdmin,
    SavedFiltersAdmin[Job],
    ExportedAdmin[Job],
    ActionAdmin[Job],
):
    form = JobForm
    object_actions = ACTIONS
    actions = [
        *(as_list_action(action) for action in ACTIONS if not action.has_page),
        *EXPORTS,
        deletion.delete_selected,
    ]

    list_display = ("label", "status", "last_outcome", "next_run")
    list_select_related = ("cursor", "statistics", "calendar")
    list_per_page = 50  # each row draws 30 runs
    list_filter = (
        JobStateFacet,
        LastOutcomeFacet,
        NamespaceFacet,
        TagFacet,
        TargetKindFilter,
        SourceFilter,
        QueueFilter,
        ("overlap_policy", titled_filter(gettext_lazy("overlap policy"))),
        ("misfire_policy", titled_filter(gettext_lazy("misfire policy"))),
    )
    search_fields = ("name", "namespace", "description", "target", "schedule")
    empty_text = gettext_lazy(
        "No jobs yet. Add one here, or declare it in code with @cron and run manage.py dcron sync."
    )
    exported = tuple((name, partial(_redacted, field)) for name, field in JOB_FIELDS.items())
    fieldsets = FIELDSETS

    delete_confirmation_template = "admin/django_dcron/job/delete_confirmation.html"
    delete_selected_confirmation_template = (
        "admin/django_dcron/job/delete_selected_confirmation.html"
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Job]:
        return without_deleted_jobs(super().get_queryset(request))

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[FacetChangeList]:
        return FacetChangeList

    def without_long_columns(self, rows: QuerySet[Job]) -> QuerySet[Job]:
        return rows.defer(*ARGUMENTS, "declared", "imported")

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(partial(backfill_page.backfill_view, self))
        revert = self.admin_site.admin_view(partial(revert_page.revert_view, self))
        restore = self.admin_site.admin_view(partial(restore_page.restore_view, self))
        find = self.admin_site.admin_view(require_safe(partial(palette.palette_view, self)))
        return [
            path("palette/", find, name=palette.URL_NAME),
            path("restore/<int:entry_id>/", restore, name=restore_page.URL_NAME),
            path("<path:object_id>/backfill/", view, name=backfill_page.URL_NAME),
            path("<path:object_id>/revert/<int:version>/", revert, name=revert_page.URL_NAME),
            *super().get_urls(),
        ]

    def has_delete_several_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may delete jobs and the site hasn't disabled the action."""
        is_enabled = any(name == "delete_selected" for name, _action in self.admin_site.actions)
        return is_enabled and self.has_delete_permission(request)

    def has_trigger_with_arguments_permission(
        self, request: HttpRequest, obj: Job | None = None
    ) -> bool:
        return self.has_trigger_permission(request, obj) and request.user.has_perm(OTHER_ARGUMENTS)

    def may_backfill(self, request: HttpRequest, job: Job | None = None) -> bool:
        return self.has_view_permission(request, job) and self.has_trigger_permission(request, job)

    def buttons(self, request: HttpRequest, obj: Job) -> list[Button]:
        buttons = super().buttons(request, obj)
        if self.may_backfill(request, obj):
            url = reverse(
                f"admin:{backfill_page.URL_NAME}", args=[obj.pk], current_app=self.admin_site.name
            )
            buttons.append(Button(backfill_page.TITLE, url, has_page=True))
        return buttons

    def history_lines(
        self, request: HttpRequest, obj: Job, page: Page[AuditEntry]
    ) -> Sequence[LogLine]:
        lines = super().history_lines(request, obj, page)
        later = fields_changed_later(obj, page[-1]) if page.has_next() else set()
        return revert_page.with_revert_urls(self, request, obj, lines, later)

    @admin.display(description=gettext_lazy("name"), ordering="name")
    def label(self, job: Job) -> str:
        tags = ((tag,) for tag in job.tags[:TAGS_SHOWN])
        tag_html = format_html_join(" ", '<span class="dcron-tag">{}</span>', tags)
        target = render_muted(breakable(job.target))
        return format_html("{}{}{}", job, target, render_muted(tag_html))

    def state_label(self, obj: Job) -> str:
        return job_state_badges(obj)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        context = {"countdown": countdown_texts()} | (extra_context or {})
        response = super().changelist_view(request, context)
        if rows := rows_to_show(response):
            list_row.attach_rows(self, request, rows)
        return response

    @admin.display(description=gettext_lazy("next run"), ordering="cursor__next_at")
    def next_run(self, job: Job) -> str:
        """Show the next run and the schedule in one column, so that the list fits a laptop."""
        at, zone = next_run_of(job), schedule_zone_name(job)
        text = render_time(at, near=clock.now())
        if at is not None:
            row = getattr(job, "row", None)
            until = time_until(at, row.freeze if row is not None else None)
            text = format_html('{} <span class="dcron-quiet">{}</span>', text, until)
            if zone is not None and zone != get_current_timezone_name():
                text = format_html("{}{}", text, render_muted(time_in_zone(at, zone)))
        lines = format_html_join(
            SafeString("<br>"), "<code>{}</code>", ((line,) for line in job.schedule.splitlines())
        )
        schedule = format_html("{}{}", lines, render_muted(schedule_in_words(job)))
        return format_html('{}<div class="dcron-row-schedule">{}</div>', text, schedule)

    @admin.display(
        description=gettext_lazy("last outcome"), ordering="statistics__last_finished_at"
    )
    def last_outcome(self, job: Job) -> str:
        """Show the last outcome, and the latest runs to users who may view them."""
        row = getattr(job, "row", None)
        runs = list_row.render_history(row) if row is not None else ""
        statistics = statistics_of(job)
        if statistics is None or not statistics.last_state:
            return runs or EMPTY
        badge = state_badge(statistics.last_state)
        if row is not None and row.last_url:
            badge = format_html('<a href="{}">{}</a>', row.last_url, badge)
        when = render_time(statistics.last_finished_at, near=clock.now())
        return format_html('<div>{} <span class="dcron-quiet">{}</span></div>{}', badge, when, runs)

    @admin.display(description=gettext_lazy("status"), ordering="enabled")
    def status(self, job: Job) -> str:
        notes = [pause_note(job), translate_problem(job, problem_of(job))]
        row = getattr(job, "row", None)
        return format_html(
            "{}{}{}{}",
            job_state_badges(job),
            list_row.render_running(row) if row is not None else "",
            render_muted(" ".join(filter(None, notes))),
            row.buttons if row is not None else "",
        )

    def add_form_context(
        self, request: HttpRequest, context: dict[str, Any], obj: Job | None
    ) -> None:
        super().add_form_context(request, context, obj)
        if obj is not None:
            if not self.has_change_permission(request, obj):
                for name in ARGUMENTS:  # redacts this page only, because nothing saves ``obj`` here
                    setattr(obj, name, targets.redact_secrets(getattr(obj, name)))
            page = JobPage(obj.pk, request, self)
            context |= {"page": page, "buttons": self.buttons(request, page.job)}
        elif not context.get("is_popup"):
            context["presets"] = preset_links.list_preset_links(request)

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """Return the values of a preset and of the query."""
        from_query = super().get_changeform_initial_data(request)
        return {**preset_links.initial_values(request), **from_query}

    def get_form(
        self, request: HttpRequest, obj: Job | None = None, change: bool = False, **kwargs: Any
    ) -> type[JobForm]:
        """Add what the user may see to the form class, which Django creates for each request."""
        form: Any = super().get_form(request, obj, change, **kwargs)
        form.scope = admin_scope(request, self.admin_site)
        form.rows = RowInputs(self.admin_site, request)
        return form  # type: ignore[no-any-return]

    def save_model(self, request: HttpRequest, obj: Job, form: JobForm, change: bool) -> None:
        # The save of an unchanged job may end its quarantine.
        if needs_save(obj) or problem_of(obj):
            version = form.cleaned_data["seen_version"] if change else None
            control.save(obj, expected_version=version)
        if not form.scope.sees(obj):  # the save is rolled back
            raise ValidationError(NOT_VISIBLE)

    def get_deleted_objects(
        self, objs: QuerySet[Job] | Sequence[Job], request: HttpRequest
    ) -> tuple[list[str], dict[str, Any], set[str], list[str]]:
        """List what a deletion removes. The permission to delete a job covers its history."""
        jobs = list(objs)
        may_delete = self.has_delete_permission(request) and all(
            self.has_delete_permission(request, job) for job in jobs
        )
        summary = deletion.deletion_summary(jobs, admin_scope(request, self.admin_site))
        perms_needed = set() if may_delete else {str(self.opts.verbose_name)}
        return summary.lines, summary.counts, perms_needed, []

    def render_delete_form(self, request: HttpRequest, context: dict[str, Any]) -> HttpResponse:
        context |= {"is_declared": sync.is_still_declared(context["object"])}
        return super().render_delete_form(request, context)

    def delete_model(self, request: HttpRequest, obj: Job) -> None:
        deletion.delete_unless_gone(obj, erase=deletion.ERASE in request.POST)

    def response_delete(self, request: HttpRequest, obj_display: str, obj_id: int) -> HttpResponse:
        """Link to the page that undoes the deletion."""
        response = super().response_delete(request, obj_display, obj_id)
        if url := restore_page.url_after_deletion(self, request, obj_id):
            text = format_html('<a href="{}">{}</a>', url, _("Undo the deletion"))
            self.message_user(request, text)
        return response

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> None:
        for job in queryset:
            deletion.delete_unless_gone(job, erase=deletion.ERASE in request.POST)
