"""The admin of freezes, and the banner on every page while one is in force.

Invariants:

- Users who may view jobs see freezes. Only users with ``freeze_jobs`` begin and end them.
- A user who may see only some jobs freezes only namespaces in which they may see all jobs.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db import DatabaseError, InterfaceError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import translation
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timezone import get_current_timezone_name
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_dcron import control
from django_dcron.admin.action_forms import UntilField
from django_dcron.admin.actions import ActionAdmin, as_list_action
from django_dcron.admin.audit_log import AuditedAdmin
from django_dcron.admin.display import (
    EMPTY,
    badge,
    list_url,
    may_view,
    moment_column,
    render_time,
    site_of,
    time_left,
)
from django_dcron.admin.lists.base import ListAdmin
from django_dcron.admin.object_action import ActionResult, ObjectAction
from django_dcron.admin.visibility import admin_scope
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.bounded_count import count_up_to
from django_dcron.diagnosis.visible_rows import visible_freezes
from django_dcron.exceptions import NotPossible
from django_dcron.jobs.action_texts import unfrozen_text
from django_dcron.models import Freeze, Job, Run
from django_dcron.policies.freezing import ALL_NAMESPACES, FreezeExtent, holding_freeze
from django_dcron.policies.health.problems import bounded_number
from django_dcron.utils.time_format import format_site_time

if TYPE_CHECKING:
    FreezeModelForm = forms.ModelForm[Freeze]
else:
    FreezeModelForm = forms.ModelForm


RENDERED = "_dcron_freezes_are_shown"
"""The request attribute that records that the page contains the banner.

A template that calls the tag may extend another template that calls it as well.
"""
FREEZES = "_dcron_freezes"
"""The request attribute with the freezes in force, which are read once for a page."""
REFUSAL = "_dcron_freeze_refusal"
"""The request attribute with the reason why the freeze that the user wants was refused."""


def banner(request: HttpRequest) -> dict[str, Any]:
    """Return the context of the banner: the freezes in force that the user may see.

    It's empty for a second call in one request.
    """
    if hasattr(request, RENDERED):
        return {}
    setattr(request, RENDERED, True)
    site = site_of(request)
    freezes = freezes_in_force(request)
    has_list = site.is_registered(Freeze) and may_view(request, Freeze, site)
    return {"freezes": freezes, "list_url": list_url(Freeze, site) if has_list else ""}


def freezes_in_force(request: HttpRequest) -> list[Freeze]:
    """Return the freezes in force that the user may see; none if they can't be read."""
    if not hasattr(request, FREEZES):
        setattr(request, FREEZES, _read_freezes(request, site_of(request)))
    found: list[Freeze] = getattr(request, FREEZES)
    return found


def freeze_of_next_run(request: HttpRequest, job: Job, at: datetime | None) -> FreezeExtent | None:
    """Return the freeze that holds back the job's next run at ``at``, if the user may see it."""
    if at is None:
        return None
    extents = (freeze.extent for freeze in freezes_in_force(request))
    return holding_freeze(extents, namespace=job.namespace, at=at)


def _read_freezes(request: HttpRequest, site: admin.AdminSite) -> list[Freeze]:
    if not may_view(request, Job, site):
        return []
    try:
        return list(visible_freezes(admin_scope(request, site)).in_force())
    except (DatabaseError, InterfaceError):
        return []


def _freezable_namespaces(request: HttpRequest, site: admin.AdminSite) -> list[str]:
    """Return the namespaces that the user may freeze; first ``ALL_NAMESPACES``, if allowed."""
    scope = admin_scope(request, site)
    namespaces = set(scope.jobs.order_by().values_list("namespace", flat=True).distinct())
    if not scope.narrows(Job):
        return [ALL_NAMESPACES, *sorted(namespaces)]
    jobs = Job.objects.using(alias_for(Job)).order_by()
    hidden = jobs.exclude(pk__in=scope.keys(Job)).values_list("namespace", flat=True).distinct()
    return sorted(namespaces - set(hidden))


class FreezeForm(FreezeModelForm):
    namespace = forms.ChoiceField(
        label=_("Namespace"),
        required=False,
        help_text=_(
            "During the freeze, scheduled, backfilled and chained runs don't start, even if they "
            "are already queued. Running runs continue, and manual runs start. After the freeze, "
            "the misfire policy of each job decides about late occurrences."
        ),
    )
    until = UntilField(label=_("Until"), required=False)
    replace = forms.BooleanField(
        label=_("Replace the freeze in force"),
        required=False,
        help_text=_("Tick this to change the reason of the freeze, or to end it earlier."),
    )
    allowed_namespaces: Iterable[str] = ()
    refusal: NotPossible | None = None
    """Why ``control`` refused the values, if it did."""

    class Meta:
        model = Freeze
        fields = ("namespace", "reason", "until")

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        field: Any = self.fields["namespace"]
        field.choices = [
            (namespace, namespace or gettext("All namespaces"))
            for namespace in self.allowed_namespaces
        ]
        self.fields["until"].help_text = gettext(
            "Enter a duration or a time (%(zone)s), such as 2h or 18:00. Leave empty to freeze "
            "until someone ends the freeze."
        ) % {"zone": get_current_timezone_name()}

    def clean_reason(self) -> str:
        reason: str = self.cleaned_data["reason"].strip()
        return reason

    def validate_unique(self) -> None:
        """Accept a frozen namespace: freezing it again replaces the reason and the end."""

    def _post_clean(self) -> None:
        super()._post_clean()  # type: ignore[misc]  # Django's hook
        if self.errors:
            return
        values = self.cleaned_data
        if values["namespace"] not in self.allowed_namespaces:
            text = gettext("You don't have permission to view all jobs that the freeze affects.")
            self.add_error("namespace", ValidationError(text, code="forbidden"))
            return
        if self.refusal is not None:
            text = self.refusal.translate(translation)
            self.add_error("replace", ValidationError(text, code=self.refusal.code))


def _frozen_text(freeze: Freeze) -> str:
    """Return the end of the freeze and the time until then, so that a wrong day is noticed."""
    if freeze.until is None:
        return gettext("Frozen until someone ends the freeze.")
    values = {"until": format_site_time(freeze.until), "left": time_left(freeze.until)}
    return gettext("Frozen until %(until)s, %(left)s.") % values


def _replaced_text(replaced: Freeze) -> str:
    if replaced.until is None:
        text = gettext("Before, scheduling was frozen without an end: %(reason)s")
        return text % {"reason": replaced.reason}
    values = {"until": format_site_time(replaced.until), "reason": replaced.reason}
    return gettext("Before, scheduling was frozen until %(until)s: %(reason)s") % values


def _running_runs(freeze: Freeze, request: HttpRequest, site: admin.AdminSite) -> SafeString | None:
    """Link the number of running runs in the scope of a freeze in force; None if it has ended."""
    if not (may_view(request, Run, site) and _is_in_force(freeze)):
        return None
    runs, filters = admin_scope(request, site).runs.running(), {"state__exact": "running"}
    if freeze.namespace:
        runs = runs.filter(job__namespace=freeze.namespace)
        filters["namespace"] = freeze.namespace
    number = bounded_number(count_up_to(runs)).translate(translation)
    return format_html('<a href="{}">{}</a>', list_url(Run, site, **filters), number)


def _end_freeze(request: HttpRequest, freeze: Freeze) -> ActionResult:
    control.unfreeze(freeze.namespace, by=request.user.get_username())
    return ActionResult(unfrozen_text())


def _end_refusal(freeze: Freeze) -> str:
    return "" if _is_in_force(freeze) else gettext("The freeze has ended.")


def _is_in_force(freeze: Freeze) -> bool:
    return freeze.extent.is_in_force(database_now(alias_for(Freeze)))


END = ObjectAction(
    "unfreeze",
    _("End freeze"),
    _end_freeze,
    "freeze",
    refusal=_end_refusal,
    explanation=_("Scheduled runs start again. Misfire policies decide about missed occurrences."),
)


@admin.register(Freeze)
class FreezeAdmin(ActionAdmin[Freeze], AuditedAdmin[Freeze], ListAdmin[Freeze]):
    form = FreezeForm
    object_actions = (END,)
    actions = (as_list_action(END),)
    list_display = ("scope", "state", "reason", "frozen_by", "since_column", "until_column")
    empty_text = _("Scheduling was never frozen. Add a freeze here, for example during a deploy.")
    fields = ("scope", "state", "reason", "frozen_by", "since_column", "until_column", "ended_by")

    since_column = moment_column("since", _("since"))

    def get_queryset(self, request: HttpRequest) -> QuerySet[Freeze]:
        return visible_freezes(admin_scope(request, self.admin_site)).order_by("namespace")

    def get_fields(self, request: HttpRequest, obj: Freeze | None = None) -> Any:
        if obj is None:
            own = ("namespace", "reason", "until")
            may_replace = hasattr(request, REFUSAL) or freezes_in_force(request)
            return (*own, "replace") if may_replace else own
        has_number = getattr(obj, "running_runs", None) is not None
        return (*self.fields, "running_column") if has_number else self.fields

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Freeze | None:
        """Attach the number of running runs."""
        freeze = super().get_object(request, object_id, from_field)
        if freeze is not None:
            number = _running_runs(freeze, request, self.admin_site)
            freeze.running_runs = number  # type: ignore[attr-defined]
        return freeze

    def get_form(
        self, request: HttpRequest, obj: Freeze | None = None, change: bool = False, **kwargs: Any
    ) -> Any:
        form: Any = super().get_form(request, obj, change, **kwargs)
        form.allowed_namespaces = tuple(_freezable_namespaces(request, self.admin_site))
        form.refusal = getattr(request, REFUSAL, None)
        return form

    def has_view_permission(self, request: HttpRequest, obj: Freeze | None = None) -> bool:
        return may_view(request, Job, self.admin_site)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def has_freeze_permission(self, request: HttpRequest, obj: Freeze | None = None) -> bool:
        if not request.user.has_perm("django_dcron.freeze_jobs"):
            return False
        return obj is None or obj.namespace in _freezable_namespaces(request, self.admin_site)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request) and self.has_freeze_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: Freeze | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Freeze | None = None) -> bool:
        return False

    @admin.display(description=_("namespace"), ordering="namespace")
    def scope(self, freeze: Freeze) -> str:
        return str(freeze)

    @admin.display(description=_("state"))
    def state(self, freeze: Freeze) -> str:
        if _is_in_force(freeze):
            return badge("paused", gettext("Frozen"))
        return badge("cancelled", gettext("Ended"))

    @admin.display(description=_("until"), ordering="until")
    def until_column(self, freeze: Freeze) -> str:
        return render_time(freeze.until) if freeze.until else EMPTY

    @admin.display(description=_("running runs"))
    def running_column(self, freeze: Any) -> str:
        return str(freeze.running_runs)

    def save_model(self, request: HttpRequest, obj: Freeze, form: FreezeForm, change: bool) -> None:
        freeze = control.freeze(
            obj.reason,
            obj.namespace,
            obj.until,
            replace=form.cleaned_data["replace"],
            by=request.user.get_username(),
        )
        obj.replaced = freeze.replaced
        for field in Freeze._meta.concrete_fields:
            setattr(obj, field.attname, getattr(freeze, field.attname))

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            return super().changeform_view(request, *args, **kwargs)
        except NotPossible as refused:
            setattr(request, REFUSAL, refused)
            return super().changeform_view(request, *args, **kwargs)  # the form with the error

    def response_add(
        self, request: HttpRequest, obj: Freeze, post_url_continue: str | None = None
    ) -> HttpResponse:
        self.message_user(request, _frozen_text(obj), messages.SUCCESS)
        if (old := obj.replaced) and (old.reason, old.until) != (obj.reason, obj.until):
            self.message_user(request, _replaced_text(old), messages.INFO)
        return super().response_add(request, obj, post_url_continue)

    def add_form_context(
        self, request: HttpRequest, context: dict[str, Any], obj: Freeze | None
    ) -> None:
        super().add_form_context(request, context, obj)
        if obj is not None:
            context["buttons"] = self.buttons(request, obj)
