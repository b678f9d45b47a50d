"""Ask for confirmation and the action's form before an action is applied to many rows.

Invariants:

- The action applies to the rows that the page showed. The page carries their keys instead of a
  filter, which may match other rows later.
- If all rows are selected and there are more than one request can process, the action applies to
  those up to the highest key at that time that match the filter when it is their turn. Each request
  processes the next rows by key, and then submits itself again.
- The page submits to the same list action, so that CSRF and permissions are checked again.
- Rows that the action can't apply to are omitted and listed with the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import model_ngettext
from django.core.exceptions import BadRequest, ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _

from django_dcron.admin.action_forms import ObjectActionForm
from django_dcron.admin.display import link
from django_dcron.admin.lists.bounded import bounded_count_text
from django_dcron.diagnosis.bounded_count import count_up_to

if TYPE_CHECKING:
    from django_dcron.admin.actions import ActionAdmin
    from django_dcron.admin.object_action import ObjectAction

CONFIRMED = "confirmed"
FILTERS = "list_filters"
"""The form field with the list's query string, for the redirect after the action."""
MAX_SHOWN = 20
MAX_COUNTED = 100_000
SELECT_ACROSS = "select_across"
UNTIL, AFTER, DONE, TOTAL = "all_until", "all_after", "all_done", "all_total"
"""The form fields of an action on all matching rows: the bounds of the keys, and the progress.

No field of an action's form has these names.
"""


def confirm_or_perform(
    model_admin: ActionAdmin[Any],
    request: HttpRequest,
    action: ObjectAction[Any],
    rows: QuerySet[Any],
    most: int,
) -> HttpResponse:
    """Show the confirmation page, or apply a confirmed action to the first ``most`` rows."""
    if UNTIL in request.POST:
        return _continue(model_admin, request, action, rows, most)
    is_confirmed = CONFIRMED in request.POST
    submitted = request.POST if is_confirmed else None
    form = action.form(submitted) if action.form else None
    if not is_confirmed or (form is not None and not form.is_valid()):
        return _page(model_admin, request, action, rows, most, form)
    selected = list(rows[: most + 1])
    if not selected:
        text = _("Nothing was changed because the selected items no longer exist.")
        model_admin.message_user(request, text, messages.WARNING)
    if len(selected) > most:
        text = _("Only the first %(count)d selected items were processed.") % {"count": most}
        model_admin.message_user(request, text, messages.WARNING)
    model_admin.perform(request, action, selected[:most])
    filters = request.POST.get(FILTERS, "")
    return HttpResponseRedirect(f"{request.path}?{filters}" if filters else request.get_full_path())


def _continue(
    model_admin: ActionAdmin[Any],
    request: HttpRequest,
    action: ObjectAction[Any],
    rows: QuerySet[Any],
    most: int,
) -> HttpResponse:
    """Apply the action to the next rows of all that match."""
    form = action.form(request.POST) if action.form else None
    if form is not None and not form.is_valid():
        return _page(model_admin, request, action, rows, most, form)
    numbers = {name: request.POST.get(name, "") for name in (UNTIL, AFTER, DONE, TOTAL)}
    rows = rows.order_by("pk").filter(pk__lte=_key(model_admin, numbers[UNTIL]))
    if numbers[AFTER]:
        rows = rows.filter(pk__gt=_key(model_admin, numbers[AFTER]))
    selected = list(rows[: most + 1])
    batch = selected[:most]
    model_admin.perform(request, action, batch)
    done = _number(numbers[DONE]) + len(batch)
    if len(selected) > most:
        context = {
            **numbers,
            DONE: done,
            AFTER: batch[-1].pk,
            TOTAL: max(_number(numbers[TOTAL]), done + 1),
        }
        return _progress_page(model_admin, request, action, form, context)
    text = _("%(count)d selected items were processed.") % {"count": done}
    model_admin.message_user(request, text, messages.INFO)
    return HttpResponseRedirect(request.get_full_path())


def _key(model_admin: ActionAdmin[Any], text: str) -> Any:
    try:
        return model_admin.opts.pk.to_python(text)
    except ValidationError:
        raise BadRequest("invalid key") from None


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _progress_page(
    model_admin: ActionAdmin[Any],
    request: HttpRequest,
    action: ObjectAction[Any],
    form: ObjectActionForm | None,
    numbers: dict[str, Any],
) -> HttpResponse:
    site = model_admin.admin_site
    context = {
        **site.each_context(request),
        "title": action.label,
        "opts": model_admin.opts,
        "media": model_admin.media,
        "action": action,
        "form": form,
        "numbers": numbers,
        "across": SELECT_ACROSS,
        "checkbox": ACTION_CHECKBOX_NAME,
        "path": request.get_full_path(),
        "back": request.get_full_path(),
    }
    request.current_app = site.name
    return TemplateResponse(request, "admin/django_dcron/continue_action.html", context)


def _page(
    model_admin: ActionAdmin[Any],
    request: HttpRequest,
    action: ObjectAction[Any],
    rows: QuerySet[Any],
    most: int,
    form: ObjectActionForm | None,
) -> HttpResponse:
    site = model_admin.admin_site
    first_rows = list(rows[: most + 1])
    selected, refused = [], []
    for row in first_rows[:most]:
        if refusal := model_admin.refusal(request, action, row):
            refused.append((link(row, site), refusal))
        else:
            selected.append(row)
    takes_all = len(first_rows) > most and request.POST.get(SELECT_ACROSS) == "1"
    numbers = {}
    if takes_all:
        last = rows.order_by("-pk").first()
        numbers = {UNTIL: last.pk if last else "", TOTAL: count_up_to(rows, MAX_COUNTED)}
    filters = request.POST.get(FILTERS, request.GET.urlencode())
    name = model_ngettext(model_admin.opts, len(selected))
    context = {
        **site.each_context(request),
        "title": action.label
        if takes_all
        else _("%(action)s: %(count)d %(name)s")
        % {"action": action.label, "count": len(selected), "name": name},
        "opts": model_admin.opts,
        "media": model_admin.media,
        "action": action,
        "submit_label": action.label if takes_all else action.submit_label(len(selected)),
        "form": form,
        "selected": [
            (link(row, site), model_admin.state_label(row)) for row in selected[:MAX_SHOWN]
        ],
        "more": max(len(selected) - MAX_SHOWN, 0),
        "refused": refused[:MAX_SHOWN],
        "refused_more": max(len(refused) - MAX_SHOWN, 0),
        "most": most,
        "found": bounded_count_text(rows) if len(first_rows) > most else None,
        "checkbox": ACTION_CHECKBOX_NAME,
        "keys": [row.pk for row in selected[: 1 if takes_all else None]],
        "takes_all": takes_all,
        "across": SELECT_ACROSS,
        "numbers": numbers,
        "confirmed": CONFIRMED,
        "filters_name": FILTERS,
        "filters": filters,
        "path": f"{request.path}?{filters}" if takes_all else request.path,
        "back": f"{request.path}?{filters}",
    }
    request.current_app = site.name
    return TemplateResponse(request, "admin/django_dcron/confirm_action.html", context)
