"""The admin of runs, which is read-only except for the actions cancel and rerun."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.functional import SimpleLazyObject
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_dcron import control
from django_dcron.admin.action_forms import ReasonForm
from django_dcron.admin.actions import (
    OTHER_ARGUMENTS,
    ActionAdmin,
    as_list_action,
    submitted_reason,
)
from django_dcron.admin.audit_log import AuditedAdmin
from django_dcron.admin.auto_refresh import RELOAD_PAGE
from django_dcron.admin.chain_list import ChainList
from django_dcron.admin.display import (
    EMPTY,
    link,
    may_view,
    preformatted,
    render_muted,
    render_time,
    state_badge,
)
from django_dcron.admin.lists.export import EXPORTS
from django_dcron.admin.object_action import ActionResult, ObjectAction
from django_dcron.admin.runs.listing import RunListAdmin
from django_dcron.admin.runs.page import PARTS, RunPage, run_page_part
from django_dcron.admin.visibility import admin_scope
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis import chains
from django_dcron.diagnosis.chain_graph import chain_of_run
from django_dcron.diagnosis.start_caution import start_cautions
from django_dcron.jobs.action_texts import cancelled_text, rerun_text
from django_dcron.models import Attempt, Job, Run
from django_dcron.models.run import claimed_ahead
from django_dcron.policies.lifecycle import Trigger
from django_dcron.targets import redact_secrets

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

RERUNS_SHOWN = 20
JOB_ARGUMENTS_NOTE = gettext_lazy("The job's current arguments")
RECORDED_ARGUMENTS_NOTE = gettext_lazy("The job's arguments when the run started")


def _cancel(request: HttpRequest, run: Run) -> ActionResult:
    cancelled = control.cancel(run, submitted_reason(request))
    return ActionResult(cancelled_text(cancelled))


def _cancel_many(request: HttpRequest, runs: Sequence[Run]) -> Sequence[ActionResult | Exception]:
    refused = control.cancel_many(runs, submitted_reason(request))
    return [
        refused.get(position) or ActionResult(cancelled_text(run))
        for position, run in enumerate(runs)
    ]


def _without_claimed_ahead(runs: QuerySet[Run]) -> QuerySet[Run]:
    return runs.exclude(claimed_ahead(database_now(alias_for(Run))))


def _why_no_rerun(run: Run) -> str:
    if not run.is_final:
        return _("The run hasn't finished yet.")
    if run.job.deleted_at is not None:
        return _("%(job)s can't be run, because it has been deleted.") % {"job": run.job}
    return ""


def _rerun(request: HttpRequest, run: Run) -> ActionResult:
    cautions = start_cautions(run.job)
    rerun = control.rerun(run)
    return ActionResult(rerun_text(rerun), rerun, cautions)


ACTIONS: tuple[ObjectAction[Run], ...] = (
    ObjectAction(
        "cancel",
        gettext_lazy("Cancel"),
        _cancel,
        "cancel",
        refusal=lambda run: _("The run has already finished.") if run.is_final else "",
        form=ReasonForm,
        narrow_all=_without_claimed_ahead,
        apply_many=_cancel_many,
        explanation=gettext_lazy(
            "Runs that haven't started are cancelled immediately. Running ones are asked to stop. "
            "Runs that you tick are cancelled even if their scheduled time is in the future. The "
            "link that selects all runs of the list omits such runs."
        ),
        confirm_label=lambda number: ngettext("Cancel run", "Cancel runs", number),
    ),
    ObjectAction(
        "rerun",
        gettext_lazy("Run again"),
        _rerun,
        "rerun",
        also_needs=lambda run: [OTHER_ARGUMENTS] if run.has_other_arguments else [],
        refusal=_why_no_rerun,
        explanation=gettext_lazy(
            "Each finished run is repeated immediately, for the same scheduled time and with "
            "the same arguments."
        ),
    ),
)


@admin.register(Run)
class RunAdmin(RunListAdmin, AuditedAdmin[Run], ActionAdmin[Run]):
    object_actions = ACTIONS
    actions = [*(as_list_action(action) for action in ACTIONS), *EXPORTS]

    readonly_fields = ("id", "job_link")

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Run | None:
        """Attach the request's scope and the chain, because read-only fields get no request."""
        run: Any = super().get_object(request, object_id, from_field)
        if run is not None:
            run.scope = admin_scope(request, self.admin_site)
            run.chain = SimpleLazyObject(partial(chain_of_run, run, run.scope))
        return run  # type: ignore[no-any-return]

    def get_fieldsets(self, request: HttpRequest, obj: Run | None = None) -> Any:
        """Return the fields that don't change while the run is active.

        The page's parts show all others. Fields of the job need the permission to view jobs.
        """
        sees_jobs = may_view(request, Job, self.admin_site)
        fields = ["job_link" if sees_jobs else "job_name", "shown_trigger"]
        if obj is not None:
            fields += ["rerun_of_link"] if obj.rerun_of_id else []
            fields += ["reruns"] if obj.is_final else []
            fields += ["follows"] if self._follows_unknown_run(obj) else []
        arguments = ("arguments", "keyword_arguments")
        if not sees_jobs:
            arguments = ("own_arguments", "own_keyword_arguments")
        keys = ("id", "idempotency_key") if obj is not None and self._shows_key(obj) else ("id",)
        return [(_("Job and arguments"), {"fields": (tuple(fields), arguments, keys)})]

    def _follows_unknown_run(self, run: Any) -> bool:
        """Return whether the chain lacks the run that ``run`` follows."""
        if run.trigger != Trigger.CHAIN:
            return False
        return not run.chain or run.chain.first.run == run

    def _shows_key(self, run: Any) -> bool:
        """Return whether the user may see the key, which may contain another run's id."""
        contains_run_id = run.trigger == Trigger.CHAIN and run.scope.narrows(Run)
        return bool(run.idempotency_key) and not (
            contains_run_id and chains.followed_run(run, run.scope) is None
        )

    def state_label(self, obj: Run) -> str:
        return state_badge(obj.state)

    @admin.display(description=gettext_lazy("arguments"))
    def arguments(self, run: Run) -> str:
        return _own_arguments(redact_secrets(run.args)) or _job_arguments(run, "args")

    @admin.display(description=gettext_lazy("keyword arguments"))
    def keyword_arguments(self, run: Run) -> str:
        return _own_arguments(redact_secrets(run.kwargs)) or _job_arguments(run, "kwargs")

    @admin.display(description=gettext_lazy("arguments"))
    def own_arguments(self, run: Run) -> str:
        return _own_arguments(redact_secrets(run.args)) or render_muted(JOB_ARGUMENTS_NOTE)

    @admin.display(description=gettext_lazy("keyword arguments"))
    def own_keyword_arguments(self, run: Run) -> str:
        return _own_arguments(redact_secrets(run.kwargs)) or render_muted(JOB_ARGUMENTS_NOTE)

    @admin.display(description=gettext_lazy("trigger"))
    def shown_trigger(self, run: Run) -> str:
        return run.shown_trigger_label

    @admin.display(description=gettext_lazy("rerun of"))
    def rerun_of_link(self, run: Any) -> str:
        original = run.scope.row_if_visible(run.rerun_of)
        return link(original, self.admin_site) if original else EMPTY

    @admin.display(description=gettext_lazy("triggered by"))
    def follows(self, run: Any) -> str:
        previous = chains.followed_run(run, run.scope)
        if previous is not None:
            return link(previous, self.admin_site)
        if run.scope.narrows(Run):
            return render_muted(
                _("a run that was deleted or that you don't have permission to view")
            )
        run_id = chains.followed_run_id(run)
        return render_muted(_("run %(id)s (deleted)") % {"id": run_id}) if run_id else EMPTY

    @admin.display(description=gettext_lazy("reruns"))
    def reruns(self, run: Any) -> str:
        reruns = run.scope.runs.filter(rerun_of=run.pk).order_by("scheduled_at")
        lines = (
            (link(rerun, self.admin_site, render_time(rerun.scheduled_at)),)
            for rerun in reruns[:RERUNS_SHOWN]
        )
        return format_html_join(", ", "{}", lines) or EMPTY

    def add_form_context(
        self, request: HttpRequest, context: dict[str, Any], obj: Run | None
    ) -> None:
        super().add_form_context(request, context, obj)
        if obj is not None:
            context["buttons"] = self.buttons(request, obj)
            context |= self._page_context(obj, request)
            graph = obj.chain  # type: ignore[attr-defined]
            if graph:
                sees_jobs = may_view(request, Job, self.admin_site)
                context["chain"] = ChainList(graph, obj, self.admin_site, sees_jobs)

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.part_view)
        return [
            path("<uuid:run_id>/part/<str:name>/", view, name="django_dcron_run_part"),
            *super().get_urls(),
        ]

    def part_view(self, request: HttpRequest, run_id: UUID, name: str) -> HttpResponse:
        """Refresh a part of the page. If the run is final or deleted, reload the whole page."""
        if name not in PARTS:
            raise Http404
        may_see = self.has_view_permission(request)
        if not may_see or (name == "attempts" and not may_view(request, Attempt, self.admin_site)):
            raise PermissionDenied
        run = self.get_object(request, str(run_id))
        if run is not None and not self.has_view_permission(request, run):
            raise PermissionDenied
        if run is None or run.is_final:
            return HttpResponse(headers=RELOAD_PAGE)
        request.current_app = self.admin_site.name
        page = RunPage(run, request, self.admin_site)
        return run_page_part(run, name, self.admin_site).refresh_response(page.context(), request)

    def _page_context(self, run: Run, request: HttpRequest) -> dict[str, Any]:
        shown: Any = run
        page = shown.page = RunPage(run, request, self.admin_site)
        request.current_app = self.admin_site.name
        names = PARTS if page.shows_attempts else PARTS[:1]
        parts = [
            run_page_part(run, name, self.admin_site).render(page.context(), request)
            for name in names
        ]
        return {**page.context(), "parts": parts}


def _own_arguments(value: Any) -> str:
    """Render arguments of the run itself, or return an empty string if it has none."""
    return "" if value is None else _with_note(value, _("Set for this run"))


def _job_arguments(run: Any, name: str) -> str:
    """Render the job's arguments: those that the run has started with, or the current ones."""
    content = run.page.latest_content
    if name in content:
        return _with_note(redact_secrets(content[name]), RECORDED_ARGUMENTS_NOTE)
    return _with_note(redact_secrets(getattr(run.job, name)), JOB_ARGUMENTS_NOTE)


def _with_note(value: Any, note: StrOrPromise) -> str:
    return format_html(
        "{}{}", preformatted(json.dumps(value, ensure_ascii=False)), render_muted(note)
    )
