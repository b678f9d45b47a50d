"""Actions on a row other than editing it: buttons on its page, and actions of its list.

Invariants:

- An action is declared once. Permissions, POST and CSRF, forms and messages work the same for all
  actions.
- Each action has its own permission (``trigger_job``, ``cancel_run``). The change permission
  doesn't include it.
- A user also needs the view permission, which no action's permission includes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.contrib.auth import get_permission_codename
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction
from django.db.models import Model, QuerySet
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseNotAllowed,
    HttpResponseRedirect,
)
from django.urls import URLPattern, path, reverse
from django.utils import translation
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_dcron.admin.action_forms import ObjectActionForm
from django_dcron.admin.base import BaseAdmin, M
from django_dcron.admin.display import change_url, link, list_url
from django_dcron.admin.lists.confirmation import confirm_or_perform
from django_dcron.admin.object_action import ActionResult, Button, ObjectAction
from django_dcron.admin.row_input import RowInputs
from django_dcron.admin.visibility import admin_scope, may_view_row
from django_dcron.db.routing import alias_for
from django_dcron.exceptions import DcronError, TranslatableError
from django_dcron.jobs.action_texts import LONGEST_REASON, signed_reason
from django_dcron.jobs.batching import refusal_text

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

REFUSALS = (DcronError, ValidationError)
"""Exceptions that refuse an action on one object."""
OTHER_ARGUMENTS = "django_dcron.run_job_with_arguments"
"""Permission to run a job with other arguments, or to rerun a run that had such arguments."""
FROM_LIST = "_list"
"""Query parameter of an action in a row of the list: the list's own query string."""
MAX_ROWS = 500
"""Limit on the rows of one action, because "select all" may select a history of a million runs."""
MAX_LINES = 10
"""Limit on the lines of one message."""


def submitted_reason(request: HttpRequest) -> str:
    """Return the reason that the user typed, always with the user's name."""
    typed = request.POST.get("reason", "").strip()[:LONGEST_REASON]
    return signed_reason(typed, request.user.get_username())


def validated_data(
    form: type[ObjectActionForm], request: HttpRequest, row: Model | None
) -> dict[str, Any]:
    """Return the cleaned data of the submitted form. Raises ``ValidationError``."""
    submitted = form(request.POST, row=row)
    if not submitted.is_valid():
        raise ValidationError([text for texts in submitted.errors.values() for text in texts])
    return submitted.cleaned_data


def _has_own_permission(action: str) -> Callable[..., bool]:
    def has_permission(
        self: ActionAdmin[Any], request: HttpRequest, obj: Model | None = None
    ) -> bool:
        codename = get_permission_codename(action, self.opts)
        return request.user.has_perm(f"{self.opts.app_label}.{codename}")

    return has_permission


class ActionAdmin(BaseAdmin[M]):
    object_actions: Sequence[ObjectAction[M]] = ()

    # Django looks up the same names for the list's actions.
    has_trigger_permission = _has_own_permission("trigger")
    has_pause_permission = _has_own_permission("pause")
    has_cancel_permission = _has_own_permission("cancel")
    has_rerun_permission = _has_own_permission("rerun")
    has_acknowledge_permission = _has_own_permission("acknowledge")

    class Media:
        css: ClassVar = {"all": ["django_dcron/object_actions.css"]}
        js: ClassVar = [forms.Script("django_dcron/object_actions.js", defer=True)]

    def state_label(self, obj: M) -> str:
        """Return the state of ``obj`` as a short label."""
        return ""

    def may(self, request: HttpRequest, action: ObjectAction[M], obj: M | None = None) -> bool:
        """Return whether the user may apply the action to ``obj``, or to any row if it's None."""
        if not self.has_view_permission(request, obj):
            return False
        if action.permission == "add":
            return self.has_add_permission(request)
        if not getattr(self, f"has_{action.permission}_permission")(request, obj):
            return False
        return obj is None or request.user.has_perms(action.also_needs(obj))

    def refusal(
        self, request: HttpRequest, action: ObjectAction[M], obj: M, *, in_list: bool = False
    ) -> StrOrPromise:
        """Return why this user can't apply the action to ``obj`` now, or an empty string.

        ``in_list``: whether the row was selected in the list, perhaps with many others.
        """
        if not self.may(request, action, obj):
            return _("You don't have permission to do this.")
        if in_list and action.refusal_in_list is not None:
            return action.refusal_in_list(obj)
        return action.refusal(obj)

    def buttons(self, request: HttpRequest, obj: M) -> list[Button]:
        return [
            Button(
                label=action.label,
                url=reverse(
                    f"admin:{self._action_url_name}",
                    args=[obj.pk, action.name],
                    current_app=self.admin_site.name,
                ),
                form=self._empty_form(action, obj) if not action.has_page else None,
                has_page=action.has_page,
                is_primary=action.is_primary,
                submit_label=action.submit_label(),
                form_id=_form_id(action),
            )
            for action in self.object_actions
            if not self.refusal(request, action, obj)
        ]

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.action_view)
        return [
            path("<path:object_id>/do/<str:name>/", view, name=self._action_url_name),
            *super().get_urls(),
        ]

    def action_view(self, request: HttpRequest, object_id: str, name: str) -> HttpResponse:
        """Apply the action on POST, or show its form."""
        action = next((action for action in self.object_actions if action.name == name), None)
        if action is None:
            raise Http404
        if not self.may(request, action):
            raise PermissionDenied
        allowed = ["GET", "HEAD", "POST"] if action.form else ["POST"]
        if request.method not in allowed:
            return HttpResponseNotAllowed(allowed)
        obj = self.get_object(request, unquote(object_id))
        if obj is None:
            raise Http404
        if not self.may(request, action, obj):
            raise PermissionDenied
        if action.form is not None:
            data = request.POST if request.method == "POST" else None
            form = action.form(data, row=obj, rows=RowInputs(self.admin_site, request))
            if not form.is_valid():
                return self._show_form(request, action, obj, form)
        results = self.perform(request, action, [obj])
        if FROM_LIST in request.GET:
            url, query = list_url(self.model, self.admin_site), request.GET[FROM_LIST]
            return HttpResponseRedirect(f"{url}?{query}" if query else url)
        return HttpResponseRedirect(self._redirect_url(request, obj, results))

    def _show_form(
        self, request: HttpRequest, action: ObjectAction[M], obj: M, form: ObjectActionForm
    ) -> HttpResponse:
        context = {
            "title": action.label,
            "submit_label": action.submit_label(),
            "subtitle": str(obj),
            "original": obj,
            "back": change_url(obj, self.admin_site),
            "action": action,
            "form": form,
            "media": self.media + form.media,
        }
        return self.render_page(request, "object_action.html", context)

    def _empty_form(self, action: ObjectAction[M], obj: M) -> ObjectActionForm | None:
        """Return an empty form, or None if the action has none.

        The element ids contain the action's name, because a page may have several forms.
        """
        if action.form is None:
            return None
        form = action.form(row=obj, auto_id=f"id_{action.name}_%s")
        for field in form.fields.values():
            field.widget.attrs["form"] = _form_id(action)
        return form

    def perform(
        self,
        request: HttpRequest,
        action: ObjectAction[M],
        objects: Iterable[M],
        *,
        in_list: bool = False,
        shows_results: bool = True,
    ) -> list[ActionResult]:
        """Apply the action to each object. A refusal for one object doesn't affect the others.

        ``in_list``: whether the objects were selected in the list.
        ``shows_results``: whether messages list the successes, too.
        """
        results, lines, cautions, problems = [], [], [], []
        applied: dict[int, M] = {}
        for obj, outcome in self._outcomes(request, action, objects, in_list):
            if isinstance(outcome, ActionResult):
                results.append(outcome)
                applied[obj.pk] = obj
                lines.append(format_html("“{}”: {}", obj, self._result_text(request, outcome)))
                cautions += [format_html("“{}”: {}", obj, each) for each in outcome.cautions]
            else:
                problems.append(format_html("“{}”: {}", obj, outcome))
        scope = admin_scope(request, self.admin_site)
        for pk, caution in action.cautions_after([*applied.values()], scope).items():
            cautions.append(format_html("“{}”: {}", applied[pk], caution))
        if shows_results:
            self._message_user(request, lines, messages.SUCCESS)
        self._message_user(request, cautions, messages.WARNING)
        self._message_user(request, problems, messages.ERROR)
        return results

    def _outcomes(
        self, request: HttpRequest, action: ObjectAction[M], objects: Iterable[M], in_list: bool
    ) -> Iterator[tuple[M, ActionResult | StrOrPromise]]:
        """Apply the action to each object. Yields each object with its result or refusal text."""
        rows = list(objects)
        if action.apply_many is not None and len(rows) > 1:
            yield from self._outcomes_of_many(request, action, action.apply_many, rows, in_list)
            return
        for row in rows:
            # Read the row again: the last of many rows may have been read long ago.
            obj = self.get_queryset(request).filter(pk=row.pk).first()
            refusal = self._refusal_now(request, action, obj, in_list)
            if obj is None or refusal:
                yield obj or row, refusal
                continue
            try:
                yield obj, self._apply(request, action, obj)
            except REFUSALS as error:
                yield obj, error_text(error)

    def _refusal_now(
        self, request: HttpRequest, action: ObjectAction[M], obj: M | None, in_list: bool
    ) -> StrOrPromise:
        if obj is None:
            return _("It no longer exists.")
        return self.refusal(request, action, obj, in_list=in_list)

    def _apply(self, request: HttpRequest, action: ObjectAction[M], obj: M) -> ActionResult:
        if not action.refusal_if_hidden:
            return action.apply(request, obj)
        with transaction.atomic(using=alias_for(type(obj))):
            result = action.apply(request, obj)
            scope = admin_scope(request, self.admin_site)
            if result.created and not scope.sees(result.created):  # undone by the exception
                raise ValidationError(action.refusal_if_hidden)
            return result

    def _outcomes_of_many(
        self,
        request: HttpRequest,
        action: ObjectAction[M],
        apply: Callable[[HttpRequest, Sequence[M]], Sequence[ActionResult | Exception]],
        rows: Sequence[M],
        in_list: bool,
    ) -> list[tuple[M, ActionResult | StrOrPromise]]:
        found = self.get_queryset(request).in_bulk([row.pk for row in rows])
        outcomes: dict[Any, tuple[M, ActionResult | StrOrPromise]] = {}
        allowed: list[M] = []
        for row in rows:
            obj = found.get(row.pk)
            refusal = self._refusal_now(request, action, obj, in_list)
            if obj is None or refusal:
                outcomes[row.pk] = obj or row, refusal
            else:
                allowed.append(obj)
        try:
            results = apply(request, allowed)
        except REFUSALS as error:
            results = [error] * len(allowed)
        for obj, result in zip(allowed, results, strict=True):
            if isinstance(result, ActionResult):
                outcomes[obj.pk] = obj, result
            else:
                outcomes[obj.pk] = obj, refusal_text(result, obj)
        return [outcomes[row.pk] for row in rows]

    def _result_text(self, request: HttpRequest, result: ActionResult) -> str:
        if result.created and self._may_view(request, result.created):
            return link(result.created, self.admin_site, result.text)
        return result.text

    def _redirect_url(self, request: HttpRequest, obj: M, results: list[ActionResult]) -> str:
        created = results[0].created if results else None
        for target in (created, obj):
            if target and self._may_view(request, target):
                return change_url(target, self.admin_site)
        return reverse("admin:index", current_app=self.admin_site.name)

    def _may_view(self, request: HttpRequest, row: Model) -> bool:
        site = self.admin_site
        return may_view_row(request, row, site) and admin_scope(request, site).sees(row)

    def _message_user(self, request: HttpRequest, lines: list[SafeString], level: int) -> None:
        if not lines:
            return
        displayed = lines[:MAX_LINES]
        if more := len(lines) - len(displayed):
            displayed.append(format_html("{}", _("… and %(count)d more") % {"count": more}))
        self.message_user(
            request,
            format_html_join(SafeString("<br>"), "{}", ((line,) for line in displayed)),
            level,
        )

    @property
    def _action_url_name(self) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_action"


def _form_id(action: ObjectAction[Any]) -> str:
    return f"dcron-do-{action.name}"


def as_list_action(
    action: ObjectAction[Any],
) -> Callable[[Any, HttpRequest, QuerySet[Any]], HttpResponse]:
    """Return a list action that applies the action to many rows after a confirmation."""

    @admin.action(description=action.label, permissions=[action.permission])
    def list_action(
        model_admin: ActionAdmin[Any], request: HttpRequest, queryset: QuerySet[Any]
    ) -> HttpResponse:
        return confirm_or_perform(model_admin, request, action, queryset, MAX_ROWS)

    list_action.__name__ = action.name
    return list_action


def error_text(error: Exception) -> str:
    """Return the message of ``error``, translated to the active language if possible."""
    if isinstance(error, ValidationError):
        return " ".join(error.messages)
    return error.translate(translation) if isinstance(error, TranslatableError) else str(error)
