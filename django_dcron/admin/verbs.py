"""What an operator can do to a job or a run besides editing: as buttons on its page and as actions on the list.

A verb is declared once; permission, POST and CSRF, what it asks for, messages and the history entry are the same for all.

Each verb has a permission of its own (``trigger_job``, ``cancel_run``), which the right to change the row does not include; nor
does it include the right to see the row, which is needed besides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.contrib.auth import get_permission_codename
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import translation
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_dcron.admin.base import BaseAdmin, M
from django_dcron.admin.display import change_url, link
from django_dcron.admin.lists.confirmation import ask_or_do
from django_dcron.admin.verb_forms import LONGEST_REASON, VerbForm
from django_dcron.admin.visibility import may_view_row, scope_of
from django_dcron.exceptions import DcronError, Told
from django_dcron.models import Job, Run
from django_dcron.observability import noting
from django_dcron.observability.differences import values_of

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

OTHER_ARGUMENTS = "django_dcron.run_job_with_arguments"
"""The permission to run a job with other arguments than its own, which running it again with those takes as well."""
MOST_AT_ONCE = 500
"""How many rows one action touches: "select all" over a long history must not run for an hour."""
MOST_LINES = 10


@dataclass(frozen=True, slots=True)
class Done:
    text: str
    """What was done; for the message and the history."""
    made: Model | None = None
    """What came of it, linked; the button leads there."""


def _nothing(obj: Any) -> StrOrPromise:
    return ""


def _no_permissions(obj: Any) -> Sequence[str]:
    return ()


@dataclass(frozen=True, slots=True)
class Verb(Generic[M]):
    name: str
    label: StrOrPromise
    apply: Callable[[HttpRequest, M], Done]
    permission: str
    """The admin's method that decides is ``has_<permission>_permission``: ``trigger`` for ``trigger_job``."""
    also_needs: Callable[[M], Sequence[str]] = _no_permissions
    """Further permissions that this row takes, such as ``django_dcron.run_job_with_arguments``."""
    against: Callable[[M], StrOrPromise] = _nothing
    """Why it makes no sense for the row as it is, in words: it has no button then, and is refused. Whether it is possible is for
    ``control`` to say."""
    form: type[VerbForm] | None = None
    """What it asks for first. ``apply`` reads it once more, by ``asked``."""
    has_page: bool = False
    """The form is on a page of its own, and not beside the button; such a verb is about one row, not many."""
    is_primary: bool = False
    explained: StrOrPromise = ""
    """What it does, for who is asked about many rows."""


@dataclass(frozen=True, slots=True)
class Button:
    label: StrOrPromise
    url: str
    form: forms.Form | None = None
    """To be shown beside it."""
    has_page: bool = False
    """It is a link."""
    is_primary: bool = False


def reason(request: HttpRequest) -> str:
    """The reason typed beside the button, and always who it was."""
    typed = request.POST.get("reason", "").strip()[:LONGEST_REASON]
    name = request.user.get_username()
    return (
        _("%(reason)s (%(user)s)") % {"reason": typed, "user": name}
        if typed
        else _("by %(user)s") % {"user": name}
    )


def asked(form: type[VerbForm], request: HttpRequest, row: Model) -> dict[str, Any]:
    """What was filled in. Raises ``ValidationError``."""
    filled = form(request.POST, row=row)
    if not filled.is_valid():
        raise ValidationError([text for texts in filled.errors.values() for text in texts])
    return filled.cleaned_data


def _own(action: str) -> Callable[..., bool]:
    def has_permission(self: OperatedAdmin[Any], request: HttpRequest, obj: Model | None = None) -> bool:
        codename = get_permission_codename(action, self.opts)
        return request.user.has_perm(f"{self.opts.app_label}.{codename}")

    return has_permission


class OperatedAdmin(BaseAdmin[M]):
    verbs: Sequence[Verb[M]] = ()

    # By these names Django asks, too, for the actions of the list.
    has_trigger_permission = _own("trigger")
    has_pause_permission = _own("pause")
    has_cancel_permission = _own("cancel")
    has_rerun_permission = _own("rerun")

    class Media:
        css: ClassVar = {"all": ["django_dcron/verbs.css"]}

    def standing(self, obj: M) -> str:
        """How it is, in a word."""
        return ""

    def may(self, request: HttpRequest, verb: Verb[M], obj: M | None = None) -> bool:
        """``obj`` None: whether the user may apply the verb to any row at all."""
        if not self.has_view_permission(request, obj):
            return False
        if verb.permission == "add":
            return self.has_add_permission(request)
        if not getattr(self, f"has_{verb.permission}_permission")(request, obj):
            return False
        return obj is None or request.user.has_perms(verb.also_needs(obj))

    def against(self, request: HttpRequest, verb: Verb[M], obj: M) -> StrOrPromise:
        """Why this user can't apply the verb to ``obj`` as it is, in words; empty if they can."""
        return (
            verb.against(obj) if self.may(request, verb, obj) else _("You don't have permission to do this.")
        )

    def buttons(self, request: HttpRequest, obj: M) -> list[Button]:
        return [
            Button(
                verb.label,
                reverse(
                    f"admin:{self._verb_url_name}", args=[obj.pk, verb.name], current_app=self.admin_site.name
                ),
                self._unfilled(verb, obj) if verb.form and not verb.has_page else None,
                verb.has_page,
                verb.is_primary,
            )
            for verb in self.verbs
            if not self.against(request, verb, obj)
        ]

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.verb_view)
        return [path("<path:object_id>/do/<str:name>/", view, name=self._verb_url_name), *super().get_urls()]

    def verb_view(self, request: HttpRequest, object_id: str, name: str) -> HttpResponse:
        """A pressed button; or what the verb asks for, as a page."""
        verb = next((verb for verb in self.verbs if verb.name == name), None)
        if verb is None:
            raise Http404
        if not self.may(request, verb):
            raise PermissionDenied
        allowed = ["GET", "HEAD", "POST"] if verb.form else ["POST"]
        if request.method not in allowed:
            return HttpResponseNotAllowed(allowed)
        obj = self.get_object(request, unquote(object_id))
        if obj is None:
            raise Http404
        if not self.may(request, verb, obj):
            raise PermissionDenied
        if verb.form is not None:
            filled = verb.form(request.POST, row=obj) if request.method == "POST" else None
            if filled is None or not filled.is_valid():
                return self._ask(request, verb, obj, filled or verb.form(row=obj))
        done = self.perform(request, verb, [obj])
        return HttpResponseRedirect(self._where_next(request, obj, done))

    def _ask(self, request: HttpRequest, verb: Verb[M], obj: M, form: VerbForm) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),
            "title": verb.label,
            "subtitle": str(obj),
            "opts": self.opts,
            "original": obj,
            "back": change_url(obj, self.admin_site),
            "verb": verb,
            "form": form,
            "media": self.media,
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/django_dcron/verb.html", context)

    def _unfilled(self, verb: Verb[M], obj: M) -> VerbForm | None:
        """Several may be on one page."""
        return verb.form(row=obj, auto_id=f"id_{verb.name}_%s") if verb.form else None

    def perform(self, request: HttpRequest, verb: Verb[M], objects: Iterable[M]) -> list[Done]:
        """Apply the verb to each; one that refuses does not keep the others from it."""
        done, lines, problems = [], [], []
        for row in objects:
            # Read anew: it may have been read long ago, if it is the last of many.
            obj = self.get_queryset(request).filter(pk=row.pk).first()
            against = self.against(request, verb, obj) if obj else _("It is no longer there.")
            if obj is None or against:
                problems.append(format_html("“{}”: {}", obj or row, against))
                continue
            before = values_of(obj)
            try:
                result = verb.apply(request, obj)
            except (DcronError, ValidationError) as error:
                problems.append(format_html("“{}”: {}", obj, in_words(error)))
                continue
            if isinstance(obj, Job) and isinstance(result.made, Run):
                noting.note_deed(request.user, result.made, {}, result.text)
            else:
                noting.note_deed(request.user, obj, before, result.text)
            lines.append(format_html("“{}”: {}", obj, self._linked(request, result)))
            done.append(result)
        self._tell(request, lines, messages.SUCCESS)
        self._tell(request, problems, messages.ERROR)
        return done

    def _linked(self, request: HttpRequest, done: Done) -> str:
        if done.made and self._shows(request, done.made):
            return link(done.made, self.admin_site, done.text)
        return done.text

    def _where_next(self, request: HttpRequest, obj: M, done: list[Done]) -> str:
        made = done[0].made if done else None
        for target in (made, obj):
            if target and self._shows(request, target):
                return change_url(target, self.admin_site)
        return reverse("admin:index", current_app=self.admin_site.name)

    def _shows(self, request: HttpRequest, row: Model) -> bool:
        site = self.admin_site
        return may_view_row(request, row, site) and scope_of(request, site).sees(row)

    def _tell(self, request: HttpRequest, lines: list[SafeString], level: int) -> None:
        if not lines:
            return
        shown = lines[:MOST_LINES]
        if more := len(lines) - len(shown):
            shown.append(format_html("{}", _("… and %(count)d more.") % {"count": more}))
        self.message_user(
            request, format_html_join(SafeString("<br>"), "{}", ((line,) for line in shown)), level
        )

    @property
    def _verb_url_name(self) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_verb"


def as_action(verb: Verb[Any]) -> Callable[[Any, HttpRequest, QuerySet[Any]], HttpResponse]:
    """The verb for many rows of the list, which asks first."""

    @admin.action(description=verb.label, permissions=[verb.permission])
    def action(
        model_admin: OperatedAdmin[Any], request: HttpRequest, queryset: QuerySet[Any]
    ) -> HttpResponse:
        return ask_or_do(model_admin, request, verb, queryset, MOST_AT_ONCE)

    action.__name__ = verb.name
    return action


def in_words(error: Exception) -> str:
    """In the active language, if it can be said in it."""
    if isinstance(error, ValidationError):
        return " ".join(error.messages)
    return error.said(translation) if isinstance(error, Told) else str(error)
